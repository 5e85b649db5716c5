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

from tenure.protocol.request_deadline import RequestDeadline
from tenure.telemetry import metrics_page

#: Seconds for one request, from the connection to the answer.
_SECONDS = 5.0


class _Handler(RequestDeadline, BaseHTTPRequestHandler):
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
    def __init__(self, listening: socket.socket) -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()  # the one it made: it serves on the caller's
        self.socket = listening

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a scraper that disconnected, or was too slow."""


@contextlib.contextmanager
def serving_metrics(listening: socket.socket) -> Iterator[None]:
    """Serve `/metrics` on a listening socket, in a thread, while the context is open. Closes the socket."""
    server = _Listener(listening)
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), name="tenure-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
