"""A history or an archive on an object store: S3 and what speaks its protocol, Google Cloud Storage, Azure.

    create    PUT with If-None-Match: * (S3), or what the others have for it: the server keeps the first, and refuses the rest
    draft     a temporary file here, and then one PUT or one multipart upload, which appears whole or not at all

Addresses of servers, keys and regions come from the environment, as `obstore` reads it: AWS_ENDPOINT_URL,
AWS_ACCESS_KEY_ID, AWS_REGION and so on. Executors need the same, or a role of their machine.
"""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from io import SEEK_CUR, SEEK_END, SEEK_SET, RawIOBase
from typing import IO, TYPE_CHECKING, cast
from urllib.parse import urlsplit

import pyarrow.dataset as ds
import pyarrow.fs as pafs

from tenure.errors import InvalidArgument, OpenError
from tenure.extras import needs

if TYPE_CHECKING:
    from obstore.store import ObjectStore

#: Stores that can refuse to replace an object.
SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
_READERS = 16
#: How long requests that fail are tried again.
_RETRIES = timedelta(seconds=60)
_LOCAL = "a folder on a disk (a path, or file://…)"


class ObjectRoot:
    """A prefix of a bucket."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        if parts.scheme not in SCHEMES or not parts.netloc:
            raise InvalidArgument(
                f"{address}: a history or an archive lies in {_LOCAL}, or on an object store that can refuse to replace an object:"
                f" {', '.join(f'{scheme}://' for scheme in SCHEMES)}BUCKET/PREFIX"
            )
        with needs("objectstore", f"{parts.scheme}:// addresses"):
            import fsspec  # noqa: F401 - for `dataset`: said here, before any work
            import obstore
        self._obstore = obstore
        self._scheme, self._bucket, self._prefix = parts.scheme, parts.netloc, parts.path.strip("/")
        self.address = f"{parts.scheme}://{parts.netloc}/{self._prefix}".rstrip("/")
        with self._errors():
            self._store: ObjectStore = obstore.store.from_url(
                f"{parts.scheme}://{parts.netloc}", retry_config={"retry_timeout": _RETRIES}
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate errors of the object store: FileNotFoundError if the object is missing, OpenError for all others."""
        try:
            yield
        except self._obstore.exceptions.BaseError as exc:
            said = " ".join(str(exc).split("\n\n")[0].split())
            raise OpenError(f"{self.address} cannot be read or written: {said}") from exc

    def create(self, path: str, content: bytes) -> bool:
        errors = self._obstore.exceptions
        with self._errors():
            try:
                self._obstore.put(self._store, self._key(path), content, mode="create")
            except errors.NotSupportedError as exc:
                raise self._cannot_refuse() from exc
            except FileNotFoundError as exc:
                raise OpenError(f"{self.address}: there is no such bucket") from exc
            except errors.BaseError:
                # Taken; or written, and the answer was lost: entries differ, so that one's own is known by its content.
                if not self.exists(path):
                    raise
                return self.read([path]) == [content]
        return True

    def check_create(self) -> None:
        """Create one object twice, since some servers accept the condition and ignore it. Raises InvalidArgument then."""
        probe = f"_log/.probe-{uuid.uuid4().hex}"
        try:
            if not self.create(probe, b"1") or self.create(probe, b"2"):
                raise self._cannot_refuse()
        finally:
            with contextlib.suppress(self._obstore.exceptions.BaseError, FileNotFoundError):
                self._obstore.delete(self._store, self._key(probe))

    def _cannot_refuse(self) -> InvalidArgument:
        return InvalidArgument(
            f"{self.address}: this server replaces objects though it is asked not to (If-None-Match), so two runs could"
            f" overwrite each other's commits; take one that has conditional puts, or {_LOCAL}"
        )

    @contextmanager
    def draft(self, path: str) -> Iterator[IO[bytes]]:
        with tempfile.TemporaryFile() as file:
            yield file
            file.seek(0)
            with self._errors():
                self._obstore.put(self._store, self._key(path), file)

    def read(self, paths: Sequence[str]) -> list[bytes]:
        with ThreadPoolExecutor(_READERS) as threads:
            return list(threads.map(lambda path: self._get(self._key(path)), paths))

    def _get(self, key: str) -> bytes:
        with self._errors():
            return self._obstore.get(self._store, key).bytes().to_bytes()

    def open(self, path: str) -> IO[bytes]:
        with self._errors():
            return cast("IO[bytes]", _ObjectFile(self._store, self._key(path)))  # typeshed has no RawIOBase as IO

    def exists(self, path: str) -> bool:
        try:
            with self._errors():
                self._obstore.head(self._store, self._key(path))
        except FileNotFoundError:
            return False
        return True

    def files(self, folder: str) -> list[str]:
        home = f"{self._key(folder)}/"
        found = [key.removeprefix(home) for key in self._keys(home)]
        return [f"{folder}/{name}" for name in sorted(found) if "/" not in name and not name.startswith(".")]

    def attempts(self) -> list[str]:
        found = set()
        home = f"{self._key('')}/".lstrip("/")
        for key in self._keys(home):
            parts = key.removeprefix(home).split("/")
            at = next((at for at in (1, 2) if len(parts) > at + 2 and parts[at].startswith("run=")), None)
            if at is not None:
                found.add("/".join(parts[: at + 2]))
        return sorted(found)

    def remove(self, attempt: str) -> None:
        keys = self._keys(f"{self._key(attempt)}/")
        if keys:
            with self._errors(), contextlib.suppress(FileNotFoundError):  # another run removes the same
                self._obstore.delete(self._store, keys)

    def remove_drafts(self) -> None:
        """Do nothing: an upload that a killed process left is not visible, and the bucket's lifecycle rule ends it."""

    @contextmanager
    def lock(self, path: str) -> Iterator[bool]:
        """No object store has locks: the log decides between runs (`commit_log`)."""
        yield True

    def dataset(self, folders: Sequence[str]) -> ds.Dataset:
        from obstore.fsspec import FsspecStore

        # The cache of fsspec would keep the keys and addresses of an environment that has changed.
        files = FsspecStore(self._scheme, skip_instance_cache=True)  # type: ignore[call-overload] # fsspec's metaclass takes it
        system = pafs.PyFileSystem(pafs.FSSpecHandler(files))
        paths = [
            f"{self._bucket}/{self._key(path)}"
            for folder in folders
            for path in self.files(folder)
            if path.endswith(".parquet")
        ]
        return ds.dataset(paths, format="parquet", filesystem=system)

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{path}".strip("/")

    def _keys(self, prefix: str) -> list[str]:
        """The keys with a prefix, which ends with "/" or is empty."""
        # A store's own prefix is by whole parts, and gives no key that merely begins like it.
        with self._errors():
            pages = self._obstore.list(self._store, prefix=prefix.rstrip("/") or None)
            return [found["path"] for page in pages for found in page]


class _ObjectFile(RawIOBase):
    """An object, read by ranges."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        import obstore

        self._get_range, self._store, self._key = obstore.get_range, store, key
        self._size = obstore.head(store, key)["size"]
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        self._at = max(0, offset + {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: self._size}[whence])
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        content = self._get_range(self._store, self._key, start=self._at, end=end).to_bytes()
        self._at = end
        return content
