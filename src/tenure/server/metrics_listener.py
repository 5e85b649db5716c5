"""`/metrics` at an address of its own (`server.metrics_bind`), without other pages.

It needs no token: the address should be on a network that only scrapers reach. One thread answers one request after the
other, each within a few seconds, which bounds its cost.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

from tenure.errors import OpenError
from tenure.telemetry import metrics_page

#: Seconds for one request, from the connection to the answer.
_SECONDS = 5.0


class _Handler(BaseHTTPRequestHandler):
    timeout = _SECONDS
    server_version = "tenure"
    sys_version = ""

    def do_GET(self) -> None:
        found = self.path.partition("?")[0] == "/metrics"
        kind, body = metrics_page() if found else ("text/plain; charset=utf-8", b"there is only /metrics here\n")
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Do not log scrapes."""


class _Listener(HTTPServer):
    allow_reuse_address = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a scraper that disconnected, or was too slow."""


@contextlib.contextmanager
def serving_metrics(host: str, port: int) -> Iterator[int]:
    """Serve `/metrics` in a thread while the context is open; yields the port. Raises OpenError."""
    kind = type("_Listener6", (_Listener,), {"address_family": socket.AF_INET6}) if ":" in host else _Listener
    try:
        server = kind((host, port), _Handler)
    except OSError as exc:
        raise OpenError(f"cannot listen on {host}:{port} (server.metrics_bind): {exc.strerror or exc}") from exc
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), name="tenure-metrics", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
