"""A worker's health and metrics over HTTP, for container platforms and Prometheus.

GET /health      200 and {"status": "ok", …} while it claims; 503 and the reason when it cannot, or is stopping
GET /metrics     Prometheus metrics
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import msgspec

from tenure.errors import Unavailable
from tenure.telemetry import register_collectors

if TYPE_CHECKING:
    from tenure.worker.runner import Worker


class Health(msgspec.Struct, frozen=True):
    """The state of a worker, from `worker.health()`. `problem` is None if all is well."""

    worker: str
    problem: str | None
    running: int
    concurrency: int
    queues: list[str]
    outcomes: dict[str, int]


class HealthServer:
    """Serves both paths in a thread of its own until `close`. Raises Unavailable if the address cannot be bound."""

    def __init__(self, worker: Worker, host: str, port: int) -> None:
        from prometheus_client import make_wsgi_app
        from prometheus_client.exposition import ThreadingWSGIServer

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
            self._server = make_server(host, port, answer, ThreadingWSGIServer, _QuietHandler)
        except OSError as exc:
            raise Unavailable(f"--metrics-port: {host}:{port} cannot be bound: {exc.strerror or exc}") from None
        self.port: int = self._server.server_port
        threading.Thread(target=self._server.serve_forever, name="tenure-health", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _QuietHandler(WSGIRequestHandler):
    """Logs no requests, and limits the time of each client."""

    timeout = 10

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass
