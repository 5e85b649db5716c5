"""The schema's interfaces: each call is carried out as an operation.

    Door.login ──▶ Session.queue ──▶ Queue.add · poll · remove · extend · nack · settle · parents · …
                                          │ a request in MessagePack, as HTTP has it
                                          ▼
                                     protocol.answer.carried_out ──▶ results, or a problem in them

A session keeps its token, not the identity: every call is authenticated again, and the session ends with the token. No
exception may reach the RPC layer, which would send the caller a traceback.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import capnp
import msgspec

from tenure import telemetry
from tenure.errors import InvalidArgument, NotFound, TenureError
from tenure.model.job import Enqueued, Job
from tenure.model.lease import Extended
from tenure.protocol import messages as m
from tenure.protocol.answer import Exchange, carried_out
from tenure.protocol.calls import Operation
from tenure.protocol.dispatcher import DecodedRequest, Dispatcher
from tenure.protocol.identity import Identity
from tenure.protocol.operations import OPERATIONS
from tenure.protocol.problems import error_of, fault_of, retry_after
from tenure.server.capnp.guard import GuardedStream
from tenure.server.request_log import LogEntry, log
from tenure.server.verb_runner import VerbRunner

SCHEMA_FILE = Path(__file__).with_name("tenure.capnp")

capnp.remove_import_hook()
SCHEMA: Any = capnp.load(str(SCHEMA_FILE))

Identify = Callable[[Mapping[str, str]], Awaitable[Identity]]

_MSGPACK = {"content-type": "application/msgpack", "accept": "application/msgpack"}
_VERBS = ("ack", "nack", "fail", "release")
_ON_PARENT_DEAD = ("cancel", "run", "wait")


def reporting_problems(method: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Wrap a call so that its errors are stored in its results, as `problem`."""

    @functools.wraps(method)
    async def answer(self: Any, _context: Any, **_: Any) -> None:
        guard: GuardedStream = self._guard
        guard.calls += 1
        try:
            await method(self, _context.params, _context.results)
        except TenureError as exc:
            _set_problem(_context.results.init("problem"), self._calls.dispatcher.for_callers(exc))
        except Exception as exc:  # noqa: BLE001 - the caller gets an error without details, the log gets all of them
            telemetry.warn("capnp_call_failed", exc, call=method.__name__)
            _set_problem(_context.results.init("problem"), TenureError(f"the server failed: {type(exc).__name__}"))
        finally:
            guard.calls -= 1

    return answer


def _set_problem(problem: Any, error: TenureError) -> None:
    problem.code, problem.message = error.code, str(error)
    problem.retryAfterSecs = retry_after(error) or 0


class Calls:
    """Authenticates calls and carries them out as operations; shared by all connections."""

    def __init__(self, dispatcher: Dispatcher, identify: Identify, runner: VerbRunner) -> None:
        self.dispatcher = dispatcher
        self.identify = identify
        self.runner = runner

    async def call(
        self,
        name: str,
        headers: Mapping[str, str],
        path: dict[str, str],
        request: object = None,
        query: dict[str, str] | None = None,
    ) -> Any:
        """Carry out an operation and return its answer. `request` is its body, or `query` its query.

        Logged and counted like an HTTP request. The type is the one that the operation declares: hence Any.
        """
        body = b"" if request is None else msgspec.msgpack.encode(request)
        exchange = _CallExchange(self, name, headers, path, body, query or {})
        entry, began = LogEntry(os.urandom(16).hex()), perf_counter()
        entry.status, entry.bytes_in = 200, len(body)
        try:
            return await carried_out(self.dispatcher, exchange)
        except TenureError as exc:
            exchange.error, entry.status = exc.code, fault_of(exc).status
            raise
        except BaseException:
            entry.status = 499
            raise
        finally:
            entry.record(exchange)
            log("RPC", entry, perf_counter() - began)

    def check_many(self, what: str, count: int) -> None:
        """Check a list's length before reading it: a message of a few bytes can declare millions.

        Raises InvalidArgument.
        """
        limit = self.dispatcher.limits.batch
        if count > limit:
            raise InvalidArgument(f"{what} has {count} entries, and this server takes at most {limit}")


class _CallExchange(Exchange):
    """An RPC call as a request for the operation of that name."""

    def __init__(
        self,
        calls: Calls,
        name: str,
        headers: Mapping[str, str],
        words: dict[str, str],
        body: bytes,
        query: dict[str, str],
    ) -> None:
        super().__init__("", "", query, headers)
        self._calls = calls
        self._name = name
        self._words = words
        self.content = body

    def find(self) -> tuple[Operation, dict[str, str]]:
        return OPERATIONS[self._name], self._words

    async def identify(self) -> Identity:
        return await self._calls.identify(self.headers)

    async def carry_out(self, request: DecodedRequest) -> object:
        return await self._calls.runner.carry_out(request)


class DoorServer(SCHEMA.Door.Server):  # type: ignore[misc]
    """The interface that a connection starts with."""

    def __init__(self, calls: Calls, guard: GuardedStream) -> None:
        self._calls = calls
        self._guard = guard

    @reporting_problems
    async def login(self, params: Any, results: Any) -> None:
        headers = dict(_MSGPACK, host="localhost")
        if params.token:
            headers["authorization"] = f"Bearer {params.token}"
        if params.tenant:
            headers["tenure-tenant"] = params.tenant
        identity = await self._calls.identify(headers)
        identity.acting(headers.get("tenure-tenant"))
        self._guard.logged_in = True
        results.session = SessionServer(self._calls, headers, self._guard)


class SessionServer(SCHEMA.Session.Server):  # type: ignore[misc]
    def __init__(self, calls: Calls, headers: Mapping[str, str], guard: GuardedStream) -> None:
        self._calls = calls
        self._guard = guard
        self._headers = headers

    @reporting_problems
    async def queue(self, params: Any, results: Any) -> None:
        name = str(params.queueName)
        # Refuse an invalid name here, not at the first verb.
        await self._calls.call("policy", self._headers, {"queue": name})
        results.queue = QueueServer(self._calls, self._headers, name, self._guard)


class QueueServer(SCHEMA.Queue.Server):  # type: ignore[misc]
    def __init__(self, calls: Calls, headers: Mapping[str, str], queue: str, guard: GuardedStream) -> None:
        self._calls = calls
        self._guard = guard
        self._headers = headers
        self._queue = queue

    async def _call(self, operation: str, request: object = None, **path: str) -> Any:
        return await self._calls.call(operation, self._headers, {"queue": self._queue, **path}, request)

    # ── methods of Queueber's schema ─────────────────────────────────────────────────────────────────────────────────

    @reporting_problems
    async def add(self, params: Any, results: Any) -> None:
        self._calls.check_many("items", len(params.items))
        added: Sequence[Enqueued] = await self._call("enqueue", self._jobs(params.items))
        ids = results.init("ids", len(added))
        for index, one in enumerate(added):
            ids[index] = bytes.fromhex(one.id)

    @reporting_problems
    async def poll(self, params: Any, results: Any) -> None:
        request: dict[str, object] = {
            "limit": params.numItems or 1,
            "wait_ms": _millis(params.timeoutMillis, params.timeoutSecs),
            "worker": params.worker,
        }
        lease_ms = _millis(params.leaseValidityMillis, params.leaseValiditySecs)
        if lease_ms:
            request["lease_ms"] = lease_ms
        claim: m.ClaimReply = await self._call("claim", request)
        if claim.lease is None:
            return
        results.lease = bytes.fromhex(claim.lease)
        results.untilMillis = claim.until_ms
        items = results.init("items", len(claim.jobs))
        for item, job in zip(items, claim.jobs, strict=True):
            _show(item, job)

    @reporting_problems
    async def remove(self, params: Any, results: Any) -> None:
        await self._settle_one("ack", params)
        results.removed = True

    @reporting_problems
    async def extend(self, params: Any, results: Any) -> None:
        lease_ms = _millis(params.leaseValidityMillis, params.leaseValiditySecs)
        extended: Extended = await self._call("extend", {"lease_ms": lease_ms}, lease=_hex(params.lease))
        results.extended = True
        results.untilMillis = extended.until_ms
        lost = results.init("lost", len(extended.lost))
        for index, job in enumerate(extended.lost):
            lost[index] = bytes.fromhex(job)

    # ── methods of Tenure's own ──────────────────────────────────────────────────────────────────────────────────────

    @reporting_problems
    async def nack(self, params: Any, results: Any) -> None:
        await self._settle_one("nack", params, **_error_and_delay(params))
        results.returned = True

    @reporting_problems
    async def settle(self, params: Any, results: Any) -> None:
        self._calls.check_many("settlements", len(params.settlements))
        items = []
        for one in params.settlements:
            verb = _VERBS[one.verb.raw]
            item: dict[str, object] = {"verb": verb, "receipt": await self._receipt(one.id, one.lease, one.token)}
            if one.result:
                item["result"] = bytes(one.result)
            if one.then:
                self._calls.check_many("then", len(one.then))
                item["then"] = self._jobs(one.then)
            if verb == "release" and one.delayMillis >= 0:
                item["delay_ms"] = one.delayMillis
            if one.untilSignal:
                item["until_signal"] = one.untilSignal
            items.append(
                item | (_error_and_delay(one) if verb == "nack" else {"error": one.error} if one.error else {})
            )
        reply: m.SettleReply = await self._call("settle", {"items": items})
        outcomes = results.init("outcomes", len(reply.results))
        for outcome, problem in zip(outcomes, reply.results, strict=True):
            if problem is not None:
                outcome.code, outcome.message = problem.code, problem.detail

    @reporting_problems
    async def parents(self, params: Any, results: Any) -> None:
        query = {"begin": str(params.begin), "limit": str(params.limit or 100)}
        path = {"queue": self._queue, "job": _hex(params.id)}
        listed: m.ParentList = await self._calls.call("parents", self._headers, path, query=query)
        shown = results.init("parents", len(listed.parents))
        for one, parent in zip(shown, listed.parents, strict=True):
            one.id, one.queue, one.state = bytes.fromhex(parent.id), parent.queue, parent.state
            one.hasResult, one.result, one.error = parent.result is not None, parent.result or b"", parent.error or ""

    @reporting_problems
    async def recordStep(self, params: Any, results: Any) -> None:
        receipt = await self._receipt(params.id, params.lease, params.token)
        request = {"receipt": receipt, "name": params.stepName, "value": bytes(params.value)}
        stored: m.StepValue = await self._call("record_step", request)
        results.stored = stored.value

    @reporting_problems
    async def steps(self, params: Any, results: Any) -> None:
        listed: m.StepList = await self._call("steps", job=_hex(params.id))
        shown = results.init("steps", len(listed.steps))
        for one, step in zip(shown, listed.steps, strict=True):
            one.name, one.kind, one.value, one.storedMillis = step.name, step.kind, step.value, step.stored_at_ms

    @reporting_problems
    async def signal(self, params: Any, results: Any) -> None:
        request = {"name": params.signalName, "payload": bytes(params.payload)}
        given: m.Given = await self._call("signal", request, job=_hex(params.id))
        results.given = given.given

    def _jobs(self, items: Sequence[Any]) -> list[dict[str, object]]:
        for item in items:
            self._calls.check_many("after", len(item.after))
        return [_job(item) for item in items]

    async def _settle_one(self, verb: str, params: Any, **more: object) -> None:
        receipt = await self._receipt(params.id, params.lease, 0)
        reply: m.SettleReply = await self._call("settle", {"items": [{"verb": verb, "receipt": receipt, **more}]})
        (problem,) = reply.results
        if problem is not None:
            raise error_of(problem)

    async def _receipt(self, job: bytes, lease: bytes, token: int) -> str:
        """Return the delivery's receipt.

        Without a token from the caller, uses the job's own: the lease must still be the one that holds the job.
        """
        if not token:
            try:
                found: Job = await self._call("get", job=_hex(job))
                token = found.token
            except NotFound:
                token = 0
        return f"{_hex(job)}.{_hex(lease)}.{token:x}"


def _millis(millis: int, seconds: int) -> int:
    return millis or seconds * 1000


def _hex(raw: bytes) -> str:
    if len(raw) != 16:
        raise InvalidArgument(f"an id or a lease has 16 bytes, not {len(raw)}")
    return bytes(raw).hex()


def _error_and_delay(params: Any) -> dict[str, object]:
    given: dict[str, object] = {}
    if params.error:
        given["error"] = params.error
    if params.delayMillis >= 0:
        given["delay_ms"] = params.delayMillis
    return given


def _job(item: Any) -> dict[str, object]:
    job: dict[str, object] = {"payload": bytes(item.contents)}
    if delay := _millis(item.visibilityTimeoutMillis, item.visibilityTimeoutSecs):
        job["delay_ms"] = delay
    more = {
        "priority": item.priority,
        "key": item.key,
        "max_attempts": item.maxAttempts,
        "ttl_ms": item.ttlMillis,
        "headers": {header.name: header.value for header in item.headers},
        "group": item.group,
        "queue": item.queue,
        "name": item.name,
        "after": list(item.after),
    }
    if item.onParentDead.raw:
        job["on_parent_dead"] = _on_parent_dead(item.onParentDead.raw)
    return job | {name: value for name, value in more.items() if value}


def _on_parent_dead(number: int) -> str:
    if number >= len(_ON_PARENT_DEAD):  # a client with a newer schema
        raise InvalidArgument(f"onParentDead {number}: one of {', '.join(_ON_PARENT_DEAD)}")
    return _ON_PARENT_DEAD[number]


def _show(item: Any, job: m.DeliveryBody) -> None:
    item.contents, item.id = job.payload, bytes.fromhex(job.id)
    item.attempt, item.maxAttempts, item.token = job.attempt, job.max_attempts, job.token
    item.priority, item.createdMillis = job.priority, job.created_at_ms
    if job.key:
        item.key = job.key
    if job.group:
        item.group = job.group
    headers = item.init("headers", len(job.headers or {}))
    for header, (name, value) in zip(headers, (job.headers or {}).items(), strict=True):
        header.name, header.value = name, value
