"""Requests to a server: encode and send them, decode the replies, raise the errors that they hold."""

from __future__ import annotations

import os
import threading
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from tenure.backends.remote.address import Address
from tenure.backends.remote.credentials import Credentials
from tenure.backends.remote.transport import Answer, Transport
from tenure.errors import Unavailable
from tenure.model.names import DEFAULT_TENANT, QueueName
from tenure.process import Layer, renewed_after_fork
from tenure.protocol import messages as m
from tenure.protocol.calls import Operation
from tenure.protocol.formats import FORMATS, JSON, MSGPACK
from tenure.protocol.operations import OPERATIONS
from tenure.protocol.problems import error_of
from tenure.protocol.tracing import client_span, tracing

T = TypeVar("T")

#: For operations without a practical deadline: the check or copy of a large store.
LONG_MS = 86_400_000


class Requests:
    """A server's address and the requests to it."""

    def __init__(
        self,
        address: Address,
        *,
        encoding: str = "msgpack",
        credentials: Credentials | None = None,
        timeout: float = 30.0,
        ca_file: str | None = None,
        retry: bool = True,
    ) -> None:
        self.url = address.url
        self._format = FORMATS[encoding]
        self._transport = Transport(address, timeout=timeout, ca_file=ca_file, retry=retry)
        self._credentials = credentials or Credentials()
        self._base = address.base
        #: The part of every head after the path that never changes.
        self._common_head = f" HTTP/1.1\r\nHost: {address.authority}\r\nAccept: {self._format.content_type}\r\n"
        self._content_type = f"Content-Type: {self._format.content_type}\r\n"
        #: The id of the next request, if the caller has chosen it.
        self._request = ""
        renewed_after_fork(self, Layer.BACKEND)

    def renew_after_fork(self) -> None:
        """Forget the connections, which belong to the parent: the child opens its own."""
        self._transport.disown()

    def _ask(
        self,
        operation: Operation,
        path: str,
        tenant: str | None,
        request: object,
        answers: type[T],
        *,
        wait_ms: int = 0,
        cancel: threading.Event | None = None,
        patience: float | None = None,
    ) -> T:
        if not tracing():
            answer = self._answer(operation, path, tenant, request, "", wait_ms, cancel, patience)
            return self._read(answer, answers)
        carried: dict[str, str] = {}
        with client_span(operation.name, carried, {"server.address": self.url}):
            more = "".join([f"{header}: {value}\r\n" for header, value in carried.items()])
            answer = self._answer(operation, path, tenant, request, more, wait_ms, cancel, patience)
            return self._read(answer, answers)

    def _answer(
        self,
        operation: Operation,
        path: str,
        tenant: str | None,
        request: object,
        more: str = "",
        wait_ms: int = 0,
        cancel: threading.Event | None = None,
        patience: float | None = None,
    ) -> Answer:
        """Send a request and return the reply whatever its status. `more`: further header lines."""
        name = (self._request or os.urandom(16).hex()) if operation.remembered else ""
        start = f"{operation.method} {self._base}{path}{self._common_head}"
        if tenant is not None:
            more += f"Tenure-Tenant: {tenant}\r\n"
        # The parts that differ between requests come last: servers cache the rest (`protocol.head_cache`).
        named = f"Tenure-Request: {name}\r\n" if name else ""
        if request is None:
            body = b""
            more += named + ("\r\n" if operation.in_query else "Content-Length: 0\r\n\r\n")
        else:
            body = self._format.encode(request)
            more += f"{self._content_type}{named}Content-Length: {len(body)}\r\n\r\n"
        exchange = self._transport.exchange
        call_off = (lambda: self._call_off(name, tenant)) if wait_ms and cancel is not None else None
        while True:
            shown = self._credentials.header
            head = f"{start}{shown}{more}".encode("ascii")
            parts = (head + body,) if len(body) < 1 << 16 else (head, body)
            answer = exchange(parts, wait=wait_ms / 1000, patience=patience, cancel=cancel, call_off=call_off)
            # Refused: try again if the file has a new token, or another thread has read one meanwhile.
            if answer.status != 401 or (self._credentials.header == shown and not self._credentials.renew()):
                return answer

    def _read(self, answer: Answer, answers: type[T]) -> T:
        written = MSGPACK if "msgpack" in answer.content_type else JSON
        try:
            if answer.status == 200:
                return written.decode(answer.body, answers)
            problem = written.decode(answer.body, m.Problem)
        except msgspec.DecodeError as exc:
            raise Unavailable(f"{self.url} answers {answer.status}, and not as a Tenure server does: {exc}") from None
        raise error_of(problem)

    def _call_off(self, name: str, tenant: str | None) -> None:
        """Ask the server to cancel a waiting request, whose reply then tells the outcome."""
        head = f"DELETE {self._base}/v1/requests/{name}{self._common_head}{self._credentials.header}"
        if tenant is not None:
            head += f"Tenure-Tenant: {tenant}\r\n"
        self._transport.exchange([(head + "\r\n").encode("ascii")], patience=1.0)

    def _of_queue(
        self,
        verb: str,
        name: QueueName,
        rest: str,
        request: object,
        answers: type[T],
        *,
        wait_ms: int = 0,
        cancel: threading.Event | None = None,
    ) -> T:
        # The default tenant is not named: it is the token's.
        tenant = None if name.tenant == DEFAULT_TENANT else name.tenant
        return self._ask(
            OPERATIONS[verb],
            f"/v1/queues/{name.queue}{rest}",
            tenant,
            request,
            answers,
            wait_ms=wait_ms,
            cancel=cancel,
        )


def query_of(**values: object) -> str:
    given = {name: value for name, value in values.items() if value is not None}
    return "?" + urlencode(given) if given else ""
