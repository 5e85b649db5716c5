"""A worker's health and metrics over HTTP, for container platforms and Prometheus.

GET /health      200 and {"status": "ok", …} while it claims; 503 and the reason when it cannot, or is stopping
GET /metrics     Prometheus metrics
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import msgspec

from tenure.errors import OpenError
from tenure.protocol.request_deadline import RequestDeadline
from tenure.telemetry import register_collectors

if TYPE_CHECKING:
    from tenure.worker.runner import Worker

#: Seconds for one request, from the connection to the answer; and requests at once. Further ones are refused.
_SECONDS = 10.0
_AT_ONCE = 32


class Health(msgspec.Struct, frozen=True):
    """The state of a worker, from `worker.health()`. `problem` is None if all is well."""

    worker: str
    problem: str | None
    running: int
    concurrency: int
    queues: list[str]
    outcomes: dict[str, int]


class HealthServer:
    """Serves both paths in a thread of its own until `close`. Raises OpenError if it cannot listen there."""

    def __init__(self, worker: Worker, host: str, port: int) -> None:
        from prometheus_client import make_wsgi_app

        register_collectors(load=True)
        metrics = make_wsgi_app()

        def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
            path = environ.get("PATH_INFO")
            if path == "/metrics":
                answered: Iterable[bytes] = metrics(environ, start)
                return answered
            if path == "/health":
                health = worker.health()
                body = msgspec.json.encode({"status": health.problem or "ok"} | msgspec.to_builtins(health))
                status = "200 OK" if health.problem is None else "503 Service Unavailable"
            else:
                status, body = "404 Not Found", b'{"paths": ["/health", "/metrics"]}'
            start(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
            return [body]

        try:
            self._server = make_server(host, port, answer, _BoundedServer, _QuietHandler)
        except OSError as exc:
            why = os.strerror(exc.errno) if exc.errno and exc.errno > 0 else exc.strerror or str(exc)
            if exc.errno == errno.EADDRINUSE:
                why = f"{why} by another program: stop it, or choose another with --metrics-port"
            raise OpenError(f"cannot listen on {host}:{port}: {why}") from None
        self.port: int = self._server.server_port
        threading.Thread(target=self._server.serve_forever, name="tenure-health", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _BoundedServer(ThreadingMixIn, WSGIServer):
    """A thread for each request, so that a slow scraper delays no probe, but not for any number of them."""

    daemon_threads = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._free = threading.BoundedSemaphore(_AT_ONCE)
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnected, or was too slow."""


class _QuietHandler(RequestDeadline, WSGIRequestHandler):
    """Logs no requests, and limits the time of each client."""

    timeout = _SECONDS

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass
