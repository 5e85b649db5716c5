"""The steps from a request to its reply, for every server; `answer` runs them in order.

    head ─▶ request ─▶ run, or wait ─▶ reply            an error at any step ─▶ refusal

    head       checks of method, path, headers and identity: scope, tenant, formats. No body has been read yet.
    request    the head with its body or query, decoded, within the limits
    run        the operation carried out on the backend, under the request's id: a repeat gets the first outcome
    wait       for an operation that waits: look again whenever the backend notifies (`Wait`)
    reply      the answer encoded in the caller's format

This module knows no sockets. A waiting request is identified by its id: the caller can cancel it, and a repeat shares
its outcome.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from time import perf_counter
from typing import NamedTuple, TypeVar

import msgspec

from tenure import telemetry
from tenure.clock import SystemClock
from tenure.contract.backend import Backend, PendingSync
from tenure.errors import Forbidden, InvalidArgument, OpenError, StoreClosed, TenureError, TooLarge, Unavailable
from tenure.model.job import MAX_PAYLOAD, Enqueued
from tenure.model.lease import Settle
from tenure.model.names import QueueName
from tenure.model.request import PlainRequests, RequestedJobs
from tenure.protocol import formats
from tenure.protocol import messages as m
from tenure.protocol.calls import Call, Operation, Waiting
from tenure.protocol.formats import Format
from tenure.protocol.free_space import GROWING, FreeSpace
from tenure.protocol.identity import Identity
from tenure.protocol.in_flight import RequestKey, RequestsInFlight
from tenure.protocol.limits import Limits
from tenure.protocol.operations import decoded_query
from tenure.protocol.problems import problem_of, retry_after
from tenure.protocol.routes import WrongMethod
from tenure.telemetry import Telemetry

T = TypeVar("T")
_clock = SystemClock()
#: Milliseconds between two log lines about a store that cannot answer.
_LOG_AGAIN_MS = 10_000
REQUEST_ID = "tenure-request"
TENANT = "tenure-tenant"


class Reply(NamedTuple):
    status: int
    content_type: str
    body: bytes
    #: Further headers, as (name, value).
    headers: tuple[tuple[str, str], ...] = ()


class RequestHead(NamedTuple):
    """The result of checking a request's head, independent of its id and body. The request is allowed."""

    operation: Operation
    identity: Identity
    #: The tenant. None: an operator named none.
    tenant: str | None
    #: The named segments of the path.
    path: dict[str, str]
    body_format: Format
    reply_format: Format
    #: The queue that the path names, if it was checked before.
    queue: QueueName | None = None


class DecodedRequest(NamedTuple):
    """A decoded, allowed request."""

    head: RequestHead
    call: Call
    #: What it waits for; None if it does not wait.
    waiting: Waiting | None
    #: Its key in `RequestsInFlight`: a RequestKey if it has an id, and may therefore arrive again.
    key: object
    #: Bytes of its body.
    size: int
    #: The id under which the store remembers its outcome; None if it does not.
    outcome: bytes | None = None

    @property
    def operation(self) -> Operation:
        return self.head.operation


class Outcome(NamedTuple):
    """The outcome of one request of a batch."""

    #: The answer, or the exception raised.
    answer: object
    #: The sync to wait for before the caller is answered; None if there is none.
    sync: PendingSync | None


def _merged_by(request: DecodedRequest) -> object:
    """Return the key by which adjacent requests are merged: the queue, if the request is one job with a payload only.

    Other requests get a key that equals no other.
    """
    jobs = request.call.request
    if request.outcome is None or request.operation.name != "enqueue" or type(jobs) is not list or len(jobs) != 1:
        return id(request)
    payload = jobs[0]
    return request.call.checked_queue if type(payload) is bytes and len(payload) <= MAX_PAYLOAD else id(request)


def _caught(verb: Callable[[], T]) -> T | Exception:
    """Return what `verb` returns, or the exception it raises: storing an error as an outcome may also need a sync."""
    try:
        return verb()
    except Exception as exc:  # noqa: BLE001 - passed on to the request's caller
        return exc


class Dispatcher:
    """Carries requests out on one backend. `local`: callers share the store's files, and may name paths."""

    def __init__(
        self, backend: Backend, *, local: bool = False, limits: Limits | None = None, space: FreeSpace | None = None
    ) -> None:
        """`space` is the free space of the store's disk, checked before operations that add data."""
        self.backend = backend
        self._space = space or FreeSpace(None, 0)
        self._hidden_logged_ms: int | None = None
        self.limits = limits or Limits()
        self.local = local
        self.in_flight = RequestsInFlight()
        #: Set when the server stops: waiting requests end.
        self.stopping = False

    # ── decoding ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def head(
        self, operation: Operation, path: dict[str, str], headers: Mapping[str, str], identity: Identity
    ) -> RequestHead:
        """Check scope and tenant, and choose the formats. `headers` have lower-case names.

        Raises Forbidden, InvalidArgument.
        """
        if operation.local and not self.local:
            raise InvalidArgument(
                "only callers that share the store's folder may do this: use the process that owns it"
            )
        if not identity.may(operation.scope):
            raise Forbidden(f"this needs the scope {operation.scope!r}")
        if operation.name in GROWING:
            self._space.check()
        tenant = identity.acting(headers.get(TENANT))
        written = formats.of_body(headers.get("content-type"))
        return RequestHead(operation, identity, tenant, path, written, formats.of_reply(headers.get("accept"), written))

    def request(
        self, head: RequestHead, query: dict[str, str], request_id: str | None, body: bytes | bytearray | memoryview
    ) -> DecodedRequest:
        """Decode and check the body (or the query). Raises InvalidArgument, TooLarge, NotFound."""
        operation, identity, tenant, path, written, _, queue = head
        if operation.in_query:
            request = decoded_query(operation, query)
        elif not body and operation.asks is m.Nothing:
            request = m.Nothing()
        else:
            request = self._decoded(operation, written, body)
        self.limits.check(request)
        backend = self.backend
        key: object = None
        outcome = None
        if request_id is not None and (operation.remembered or operation.waits):
            key = RequestKey(tenant, identity.subject, request_id, operation.name, tuple(path.values()))
            if operation.remembered:
                # Callers of the owner's socket are one user. A new owner may get the repeat of a request, and knows its
                # id only.
                id_scope = b"" if self.local else _id_scope(key, identity)
                outcome = outcome_id(id_scope, request_id)
                backend = backend.once(outcome)
        call = Call(backend, identity, tenant, path, request, self.in_flight, queue)
        waiting = None if operation.waits is None else operation.waits(call)
        return DecodedRequest(head, call, waiting, key or object(), len(body), outcome)

    def _decoded(self, operation: Operation, written: Format, body: bytes | bytearray | memoryview) -> object:
        limit = max(
            self.limits.body_bytes, self.limits.inflated_bytes
        )  # servers check the size before they read or decompress a body
        if len(body) > limit:
            raise TooLarge("the request", len(body), limit)
        try:
            return written.decode(body, operation.asks)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise InvalidArgument(f"the request's body: {exc}") from None
        except ValueError as exc:  # text that is not UTF-8
            raise InvalidArgument(f"the request's body: {exc}") from None

    # ── execution ────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, request: DecodedRequest) -> object:
        """Carry out a request that does not wait. Raises what the operation raises."""
        operation, key = request.head.operation, request.key
        with Telemetry.span(operation.name) as span:
            if operation.waits is None or not operation.remembered or not isinstance(key, tuple):
                answer = operation.run(request.call)
                span.jobs(jobs_moved(answer))
                return answer
            entry = self.in_flight.enter(key, lambda: None)
            try:
                with entry.outcome.lock:
                    if entry.outcome.ended:
                        return m.ClaimReply([])
                    answer = operation.run(request.call)
                    entry.received = _leased(answer)
                    entry.outcome.ended = not entry.received
                    span.jobs(jobs_moved(answer))
                    return answer
            finally:
                self.in_flight.leave(key, entry)

    def run_each(self, requests: Sequence[DecodedRequest]) -> list[Outcome]:
        """Carry out requests of several callers in order, each as `run` does. None of them may be one that waits.

        Adjacent single jobs for one queue become one transaction (`Backend.enqueue_each`). This thread waits for no
        sync: the caller of an outcome with a `sync` may be answered once that is complete.
        """
        outcomes: list[Outcome] = []
        for name, group in groupby(requests, _merged_by):
            together = list(group)
            if isinstance(name, QueueName) and len(together) > 1:
                outcomes += self._enqueue_each(name, together)
            else:
                outcomes += [self._deferred(partial(self.run, request)) for request in together]
        return outcomes

    def _deferred(self, verb: Callable[[], object]) -> Outcome:
        return Outcome(*self.backend.deferring(partial(_caught, verb)))

    def _enqueue_each(self, name: QueueName, requests: Sequence[DecodedRequest]) -> list[Outcome]:
        meter, began = Telemetry.meter("enqueue"), perf_counter()
        jobs = [RequestedJobs(request.outcome or b"", PlainRequests(request.call.request)) for request in requests]
        caught, sync = self.backend.deferring(partial(_caught, lambda: self.backend.enqueue_each(name, jobs)))
        answers = [caught] * len(requests) if isinstance(caught, Exception) else caught
        for answer in answers:
            if isinstance(answer, Exception):
                meter.record_failure(began, type(answer))
            else:
                meter.record(began, len(answer))
        return [Outcome(answer, sync) for answer in answers]

    def wait(self, request: DecodedRequest, notify: Callable[[], None]) -> Wait:
        """Begin to wait. `notify` is called, from any thread, whenever to `look` again; look once right away."""
        return Wait(self, request, notify)

    def release(self, request: DecodedRequest, answer: object) -> None:
        """Release the jobs that the answer leases: the caller of the claim has disconnected."""
        if isinstance(answer, m.ClaimReply) and _leased(answer):
            name = request.call.identity.queue(answer.queue, answer.tenant)
            self.backend.settle(name, [Settle("release", proof) for proof in answer.proofs()])

    def stop(self) -> None:
        """Answer all waiting requests with what there is."""
        self.stopping = True
        self.in_flight.notify_all()

    # ── replies ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def reply(request: DecodedRequest, answer: object) -> Reply:
        if isinstance(answer, m.Stream):
            return Reply(200, formats.ARROW, answer.body)
        form = request.head.reply_format
        return Reply(200, form.content_type, form.encode(answer))

    def for_callers(self, error: TenureError) -> TenureError:
        """Return the error that callers get.

        Errors of the store name paths and hosts: they go to the log, and callers get a generic one.
        """
        if self.local or not isinstance(error, Unavailable | OpenError) or getattr(error, "for_callers", False):
            return error
        now = _clock.steady_ms()
        if self._hidden_logged_ms is None or now - self._hidden_logged_ms >= _LOG_AGAIN_MS:
            self._hidden_logged_ms = now
            telemetry.warn("store_unavailable", code=error.code, detail=str(error))
        hidden = Unavailable("the store behind this server cannot answer now; the server's log says why")
        hidden.retry_after = 1
        return hidden

    @staticmethod
    def refusal(error: TenureError, headers: Mapping[str, str]) -> Reply:
        """Return an error as a reply, in the caller's format if the headers name one."""
        try:
            written = formats.of_body(headers.get("content-type"))
        except InvalidArgument:
            written = formats.JSON
        form = formats.of_reply(headers.get("accept"), written)
        if isinstance(error, StoreClosed):  # a closing server may come back: callers should retry
            error = Unavailable(f"the server is going down: {error}")
            error.retry_after = 1
        problem = problem_of(error)
        after = retry_after(error)
        extra: tuple[tuple[str, str], ...] = () if after is None else (("Retry-After", str(after)),)
        if problem.status == 401:
            extra += (("WWW-Authenticate", "Bearer"),)
        if isinstance(error, WrongMethod):
            problem = msgspec.structs.replace(problem, status=405)
            extra += (("Allow", ", ".join(error.allowed)),)
        return Reply(problem.status, form.problem_type, form.encode(problem), extra)


class Wait:
    """One waiting request on one connection."""

    def __init__(self, dispatcher: Dispatcher, request: DecodedRequest, notify: Callable[[], None]) -> None:
        waiting = request.waiting
        assert waiting is not None
        self._dispatcher = dispatcher
        self._request = request
        self._waiting = waiting
        self._meter, self._began = Telemetry.meter(request.operation.name), perf_counter()
        self._entry = dispatcher.in_flight.enter(request.key, notify)
        most_ms = dispatcher.limits.wait_ms
        #: The part of the wait beyond the server's limit: the reply states it, and the client repeats the request.
        self._beyond_ms = max(0, waiting.wait_ms - most_ms)
        try:
            self._watch = dispatcher.backend.watch(waiting.topics, min(waiting.wait_ms, most_ms), notify)
        except BaseException:
            dispatcher.in_flight.leave(request.key, self._entry)
            raise

    def look(self) -> object | None:
        """Return the answer, or None to wait on. The metrics count the whole wait as one run of the verb."""
        try:
            answer = self._look()
        except Exception as exc:
            self._meter.record_failure(self._began, type(exc))
            raise
        if answer is not None:
            self._meter.record(self._began, jobs_moved(answer))
        return answer

    def _look(self) -> object | None:
        waiting, entry, outcome = self._waiting, self._entry, self._entry.outcome
        with outcome.lock:
            if outcome.ended or entry.cancelled:
                entry.received = outcome.answer is not None
                outcome.ended = not entry.received
                return outcome.answer if outcome.answer is not None else waiting.end(0)
            answer = waiting.look()
            if answer is not None:
                entry.received = _leased(answer)
                outcome.answer = answer if entry.received else None
                return answer
            left = self._watch.left_ms()
            if left <= 0 or self._dispatcher.stopping:
                outcome.ended = self._request.operation.remembered
                return waiting.end(left + self._beyond_ms)
        self._watch.again()
        return None

    def release(self, answer: object) -> None:
        """Release the leased jobs of a disconnected caller, unless a repeat of its request has received them."""
        self._entry.received = False
        if self._dispatcher.in_flight.is_sole_receiver(self._entry):
            self._dispatcher.release(self._request, answer)

    def close(self) -> None:
        self._watch.close()
        self._dispatcher.in_flight.leave(self._request.key, self._entry)


def jobs_moved(answer: object) -> int:
    """Return how many jobs a request enqueued, leased or settled, for the metrics."""
    if isinstance(answer, m.ClaimReply):
        return len(answer.jobs) if answer.columns is None else len(answer.columns.tokens)
    if isinstance(answer, m.SettleReply):
        return answer.results.count(None)
    if isinstance(answer, Enqueued):
        return 1
    if isinstance(answer, list) and answer and isinstance(answer[0], Enqueued):
        return len(answer)
    return 0


def _leased(answer: object) -> bool:
    return isinstance(answer, m.ClaimReply) and answer.lease is not None


_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def _id_scope(key: RequestKey, identity: Identity) -> bytes:
    """Return the scope of a request's id, so that another caller, operation or queue cannot use a known id."""
    queues = None if identity.queues is None else sorted(identity.queues)
    return msgspec.msgpack.encode((key.tenant, key.subject, key.operation, key.words, queues))


def outcome_id(id_scope: bytes, request_id: str) -> bytes:
    """Return the id under which the store remembers an outcome. Raises InvalidArgument."""
    if not _REQUEST_ID.fullmatch(request_id):
        raise InvalidArgument(f"Tenure-Request is 1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-', not {request_id[:40]!r}")
    return hashlib.blake2b(id_scope + b"\0" + request_id.encode(), digest_size=16).digest()
