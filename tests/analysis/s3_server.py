"""A server of the S3 protocol on loopback, with one bucket's objects in memory: what `obstore` asks for, and no more.

Each request is one step under a lock, as in S3: of two puts with `If-None-Match: *` one is refused. Signatures are not
checked. `OBJECT_STORE=http://127.0.0.1:5555` runs the same tests against another server, such as moto's.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

BUCKET = "tenure-tests"
PAGE = 100  # keys of a listing: small, so that tests turn pages


class Objects(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *, conditions: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        #: Whether it knows If-None-Match. There are servers that do not, and put anyway.
        self.conditions = conditions
        self.lock = threading.Lock()
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        #: Answers to conditional puts that are lost on the way, though the object is written.
        self.lost_answers = 0

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients are killed in the middle of requests; anything else is told."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type] # what it is given is handed on

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Objects

    def do_PUT(self) -> None:
        body, key, query = self._body(), self._key(), self._query()
        with self.server.lock:
            if "partNumber" in query:
                self.server.uploads[query["uploadId"]][int(query["partNumber"])] = body
            elif key in self.server.objects and self.headers["If-None-Match"] == "*" and self.server.conditions:
                self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            else:
                self.server.objects[key] = body
                if self.headers["If-None-Match"] == "*" and self.server.lost_answers:
                    self.server.lost_answers -= 1
                    self.close_connection = True
                    return
        self._answer(200, ETag=_etag(body))

    def do_POST(self) -> None:
        body, key, query = self._body(), self._key(), self._query()
        with self.server.lock:
            if "delete" in query:
                names = [name.text or "" for name in ElementTree.fromstring(body).iter() if name.tag.endswith("Key")]
                for name in names:
                    self.server.objects.pop(name, None)
                done = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in names)
                self._answer(200, f"<DeleteResult>{done}</DeleteResult>".encode())
            elif "uploads" in query:
                upload = str(len(self.server.uploads))
                self.server.uploads[upload] = {}
                told = f"<Bucket>{BUCKET}</Bucket><Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
                self._answer(200, f"<InitiateMultipartUploadResult>{told}</InitiateMultipartUploadResult>".encode())
            else:
                parts = self.server.uploads.pop(query["uploadId"])
                self.server.objects[key] = b"".join(parts[number] for number in sorted(parts))
                told = f"<Key>{escape(key)}</Key><ETag>{_etag(body)}</ETag>"
                self._answer(200, f"<CompleteMultipartUploadResult>{told}</CompleteMultipartUploadResult>".encode())

    def do_DELETE(self) -> None:
        with self.server.lock:
            self.server.objects.pop(self._key(), None)
            self.server.uploads.pop(self._query().get("uploadId", ""), None)
        self._answer(204)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        key, query = self._key(), self._query()
        if not key:
            self._answer(200, self._listing(query))
            return
        with self.server.lock:
            content = self.server.objects.get(key)
        if content is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        asked = self.headers["Range"]
        if asked is None:
            self._answer(200, content, ETag=_etag(content))
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        begin = int(first) if first else max(0, len(content) - int(last))
        end = min(len(content), int(last) + 1 if first and last else len(content))
        place = f"bytes {begin}-{end - 1}/{len(content)}"
        self._answer(206, content[begin:end], ETag=_etag(content), **{"Content-Range": place})

    def _listing(self, query: dict[str, str]) -> bytes:
        prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
        with self.server.lock:
            found = {key: len(content) for key, content in self.server.objects.items()}
        keys = sorted(key for key in found if key.startswith(prefix) and key > after)
        page = keys[:PAGE]
        told = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{found[key]}</Size><ETag>{_etag(b'')}</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in page
        )
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if len(keys) > PAGE else ""
        cut = "true" if more else "false"
        return f"<ListBucketResult><IsTruncated>{cut}</IsTruncated>{more}{told}</ListBucketResult>".encode()

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").lstrip("/")

    def parse_request(self) -> bool:
        """Refuse requests for other buckets, before their verb."""
        if not super().parse_request():
            return False
        if urlsplit(self.path).path.split("/")[1] == BUCKET:
            return True
        self._body()
        self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        return False

    def _query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"] or 0))

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Tests have nothing to say about each request."""


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


def environment(endpoint: str) -> dict[str, str]:
    """What `obstore` needs to know of a server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


@contextmanager
def serving(*, conditions: bool = True) -> Iterator[Objects]:
    """A server of this process."""
    with Objects(conditions=conditions) as server:
        threading.Thread(target=server.serve_forever, name="s3", daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


@contextmanager
def endpoint() -> Iterator[str]:
    """The address of a server with an empty bucket: the one that OBJECT_STORE names, or one of this process."""
    other = os.environ.get("OBJECT_STORE")
    if other is None:
        with serving() as server:
            yield server.endpoint
    else:
        urllib.request.urlopen(urllib.request.Request(f"{other}/{BUCKET}", method="PUT")).close()
        yield other
