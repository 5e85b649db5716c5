"""Carries an operation out on a backend, whatever server it came through.

    match ─▶ begin ─▶ run, or wait (`Attendance`) ─▶ reply

A server gives it method, path, headers and body, and writes what it answers; it knows sockets, this does not.
Every operation that writes runs under the request's id, so that a repeat gets the first answer. A waiting request is
known by its id too: it can be called off, and a repeat is answered as it is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from tenure.contract.backend import Backend, Watch
from tenure.contract.polling import Poller
from tenure.errors import Forbidden, InvalidArgument, NotFound, StoreClosed, TenureError, TooLarge, Unavailable
from tenure.model.lease import Settle
from tenure.model.names import QueueName
from tenure.protocol import formats
from tenure.protocol import messages as m
from tenure.protocol.calls import Call, Operation, Waiting
from tenure.protocol.formats import Format
from tenure.protocol.identity import Identity
from tenure.protocol.in_flight import Attendance, Attended
from tenure.protocol.limits import Limits
from tenure.protocol.operations import OPERATIONS, decoded_query
from tenure.protocol.problems import problem_of, retry_after
from tenure.telemetry import Telemetry

#: Verbs that touch few rows. Where no disk is waited for, one after another is quicker than side by side.
SMALL = frozenset({"enqueue", "claim", "settle", "extend", "progress", "get", "policy", "counts", "cancel", "store"})
REQUEST_ID = "tenure-request"
TENANT = "tenure-tenant"


class Reply(NamedTuple):
    status: int
    content_type: str
    body: bytes
    #: Further headers, as pairs.
    headers: tuple[tuple[str, str], ...] = ()


class Begun(NamedTuple):
    """A request that was understood, and is allowed."""

    operation: Operation
    call: Call
    #: The backend itself, without the memory of this request.
    backend: Backend
    waiting: Waiting | None
    format: Format
    #: By whom and what it is known while it waits.
    key: object


class Prepared(NamedTuple):
    """What a request's head decides, whatever its id and its body are."""

    operation: Operation
    identity: Identity
    tenant: str | None
    path: dict[str, str]
    written: Format
    answered: Format
    #: The queue its path names, where that was looked at already.
    name: QueueName | None = None


class Host:
    """One backend, open to requests. `local`: those who ask may name paths."""

    def __init__(self, backend: Backend, *, local: bool = False, limits: Limits | None = None) -> None:
        self.backend = backend
        self.limits = limits or Limits()
        self.local = local
        self.attendance = Attendance()
        #: Set when the server goes down: nobody waits any longer.
        self.stopping = False
        #: The store is in this process, and its commits wait for no disk.
        self.quick = backend.waits_on == "nothing"
        self._once: Callable[[bytes], Backend] | None = getattr(backend, "once", None)
        self._watch: Callable[..., Watch] = getattr(backend, "watch", None) or Poller().watch

    # ── understanding ────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(
        self,
        operation: Operation,
        path: dict[str, str],
        query: dict[str, str],
        headers: Mapping[str, str],
        body: bytes | bytearray | memoryview,
        identity: Identity,
    ) -> Begun:
        """Check all there is to check. `headers` by their names in lower case."""
        prepared = self.prepare(operation, path, headers, identity)
        return self.understand(prepared, query, headers.get(REQUEST_ID), body)

    def prepare(
        self, operation: Operation, path: dict[str, str], headers: Mapping[str, str], identity: Identity
    ) -> Prepared:
        if operation.local and not self.local:
            raise InvalidArgument("that is for callers who share the store's folder: ask the process that owns it")
        if not identity.may(operation.scope):
            raise Forbidden(f"this takes the scope {operation.scope!r}")
        tenant = identity.acting(headers.get(TENANT))
        written = formats.of_body(headers.get("content-type"))
        return Prepared(operation, identity, tenant, path, written, formats.of_reply(headers.get("accept"), written))

    def understand(
        self, prepared: Prepared, query: dict[str, str], name: str | None, body: bytes | bytearray | memoryview
    ) -> Begun:
        """`name`: the request's id."""
        operation, identity, tenant, path, written, answered, queue = prepared
        if operation.in_query:
            request = decoded_query(operation, query)
        elif not body and operation.asks is m.Nothing:
            request = m.Nothing()
        else:
            request = self._decoded(operation, written, body)
        self.limits.check(request)
        backend = self.backend
        key: object = None
        if name is not None and (operation.remembered or operation.waits):
            key = (tenant, name)
            if operation.remembered and self._once is not None:
                backend = self._once(outcome_id("" if identity.operator else identity.tenant, name))
        call = Call(backend, identity, tenant, path, request, queue)
        waiting = None if operation.waits is None else operation.waits(call)
        return Begun(operation, call, self.backend, waiting, answered, key or object())

    def _decoded(self, operation: Operation, written: Format, body: bytes | bytearray | memoryview) -> object:
        limit = max(self.limits.body_bytes, self.limits.inflated_bytes)  # servers look before they take or open a body
        if len(body) > limit:
            raise TooLarge("the request", len(body), limit)
        try:
            return written.decode(body, operation.asks)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise InvalidArgument(f"the request's body: {exc}") from None
        except ValueError as exc:  # text that is no UTF-8
            raise InvalidArgument(f"the request's body: {exc}") from None

    # ── carrying out ─────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, begun: Begun) -> object:
        """Carry out what does not wait."""
        with Telemetry.span(begun.operation.name):
            if begun.operation.waits is None or not begun.operation.remembered or not isinstance(begun.key, tuple):
                return begun.operation.run(begun.call)
            entry = self.attendance.enter(begun.key, lambda: None)
            try:
                with entry.turn.lock:
                    if entry.turn.ended:
                        return m.ClaimReply([])
                    answer = begun.operation.run(begun.call)
                    entry.got = _took(answer)
                    entry.turn.ended = not entry.got
                    return answer
            finally:
                self.attendance.leave(begun.key, entry)

    def watch(self, begun: Begun, told: Callable[[], None]) -> Watch:
        waiting = begun.waiting
        assert waiting is not None
        return self._watch(waiting.topics, min(waiting.wait_ms, self.limits.wait_ms), told)

    def look(self, begun: Begun, watch: Watch, entry: Attended) -> object | None:
        """Look once; None: go on waiting."""
        waiting, turn = begun.waiting, entry.turn
        assert waiting is not None
        with turn.lock:
            if turn.ended or entry.over:
                entry.got = turn.answer is not None
                turn.ended = not entry.got
                return turn.answer if turn.answer is not None else waiting.end(0)
            answer = waiting.look()
            if answer is not None:
                entry.got = _took(answer)
                turn.answer = answer if entry.got else None
                return answer
            left = watch.left_ms()
            if left <= 0 or self.stopping:
                turn.ended = begun.operation.remembered
                return waiting.end(left + max(0, waiting.wait_ms - self.limits.wait_ms))
        watch.again()
        return None

    def give_back(self, begun: Begun, entry: Attended, answer: object) -> None:
        """Whoever waited is gone: what was leased to them goes back, unless they have asked again and have it now."""
        entry.got = False
        if not isinstance(answer, m.ClaimReply) or not _took(answer) or not self.attendance.alone(entry):
            return
        proofs = answer.proofs()
        name = begun.call.identity.queue(answer.queue, answer.tenant)
        self.backend.settle(name, [Settle("release", proof) for proof in proofs])

    def call_off(self, identity: Identity, headers: Mapping[str, str], name: str) -> bool:
        """End a waiting request by its id."""
        return self.attendance.call_off((identity.acting(headers.get(TENANT)), name))

    def stop(self) -> None:
        """Answer all who wait with what there is."""
        self.stopping = True
        self.attendance.everyone()

    # ── answering ────────────────────────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def reply(begun: Begun, answer: object) -> Reply:
        if isinstance(answer, m.Stream):
            return Reply(200, formats.ARROW, answer.body)
        return Reply(200, begun.format.content_type, begun.format.encode(answer))

    @staticmethod
    def refusal(error: TenureError, headers: Mapping[str, str]) -> Reply:
        """An error as an answer, in the caller's format as far as that can be told."""
        try:
            written = formats.of_body(headers.get("content-type"))
        except InvalidArgument:
            written = formats.JSON
        form = formats.of_reply(headers.get("accept"), written)
        if isinstance(error, StoreClosed):  # to the caller, a store that is being closed is one that may come back
            error = Unavailable(f"the server is going down: {error}")
            error.retry_after = 1  # type: ignore[attr-defined]
        problem = problem_of(error)
        after = retry_after(error)
        extra: tuple[tuple[str, str], ...] = () if after is None else (("Retry-After", str(after)),)
        if problem.status == 401:
            extra += (("WWW-Authenticate", "Bearer"),)
        if isinstance(error, WrongMethod):
            problem = msgspec.structs.replace(problem, status=405)
            extra += (("Allow", ", ".join(error.allowed)),)
        return Reply(problem.status, form.problem_type, form.encode(problem), extra)


def _took(answer: object) -> bool:
    return isinstance(answer, m.ClaimReply) and answer.lease is not None


_REQUEST = re.compile(r"[A-Za-z0-9._-]{1,128}")


def outcome_id(tenant: str, name: str) -> bytes:
    """The id under which an outcome is kept: the caller's, and no other tenant's. Operators have none of their own."""
    if not _REQUEST.fullmatch(name):
        raise InvalidArgument(f"Tenure-Request is 1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-', not {name[:40]!r}")
    return hashlib.blake2b(f"{tenant}\0{name}".encode(), digest_size=16).digest()


class WrongMethod(InvalidArgument):
    """The path is there, and takes other methods."""

    def __init__(self, path: str, method: str, allowed: Sequence[str]) -> None:
        self.allowed = allowed
        super().__init__(f"{path} takes {', '.join(allowed)}, not {method}")


class Streamed(NamedTuple):
    """An answer that goes out piece by piece, each made when it is needed, in a worker thread."""

    content_type: str
    pieces: Iterator[bytes]
    headers: tuple[tuple[str, str], ...] = ()


# ── finding the operation ────────────────────────────────────────────────────────────────────────────────────────────


class Routes:
    """The operation of a method and path."""

    def __init__(self, operations: Mapping[str, Operation] = OPERATIONS) -> None:
        self._root: dict[str, Any] = {}
        for operation in operations.values():
            node = self._root
            for word in operation.path.split("/")[1:]:
                node = node.setdefault("{}" if word[0] == "{" else word, {})
                if word[0] == "{":
                    node["name"] = word[1:-1]
            node.setdefault("methods", {})[operation.method] = operation

    def find(self, method: str, path: str) -> tuple[Operation, dict[str, str]]:
        node, named = self._root, {}
        for word in path.split("/")[1:]:
            below = node.get(word) if word not in ("name", "methods", "{}") else None
            if below is None:
                below = node.get("{}")
                if below is None or not word:
                    raise NotFound(f"there is nothing at {path}")
                named[below["name"]] = unquote(word) if "%" in word else word
            node = below
        methods = node.get("methods")
        if not methods:
            raise NotFound(f"there is nothing at {path}")
        operation: Operation | None = methods.get(method)
        if operation is None:
            raise WrongMethod(path, method, sorted(methods))
        return operation, named


ROUTES = Routes()
