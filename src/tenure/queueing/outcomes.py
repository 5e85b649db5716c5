"""Idempotent requests: a verb's outcome is stored under the request's id, in the same commit as its effect.

A caller that lost the reply repeats the request with the same id, and gets the first outcome: a result, or an error of
`failure.ANSWERS`. A verb that works in chunks stores an outcome for each chunk, and each chunk depends on the outcome
of the one before it: a repeated verb continues where it was interrupted.

An error is stored by a transaction of its own, since the one that raised it wrote nothing. All repeats get the outcome
that was stored first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from tenure.errors import Corrupt, InvalidArgument, TenureError
from tenure.model.failure import ANSWERS, Failure, packed, unpacked
from tenure.model.job import Enqueued
from tenure.model.lease import Settle, alike
from tenure.model.names import QueueName
from tenure.model.request import JobRequest, all_plain, payloads_of
from tenure.queueing.core import Core
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader
from tenure.storage.keyspace import Due
from tenure.storage.records import RequestRecord

T = TypeVar("T")
#: How long a request's outcome is kept. A repeat after this time may take effect again.
REQUEST_MEMORY_MS = 600_000


# ── answers as bytes ─────────────────────────────────────────────────────────────────────────────────────────────────


def _to_plain(value: object) -> object:
    if isinstance(value, TenureError):
        return packed(value)
    raise NotImplementedError(f"{type(value).__name__} is no part of an answer")


def _from_plain(kind: type, value: Any) -> object:
    if kind is TenureError:
        return unpacked(value)
    raise NotImplementedError(f"{kind.__name__} is no part of an answer")


_encode = msgspec.msgpack.Encoder(enc_hook=_to_plain).encode
_decode_failure = msgspec.msgpack.Decoder(Failure).decode


class Answer(Generic[T]):
    """The codec of a verb's result: MessagePack, decoded as the given type."""

    def __init__(self, kind: Any) -> None:
        self._decode = msgspec.msgpack.Decoder(kind, dec_hook=_from_plain).decode

    def encode(self, result: T) -> bytes:
        return _encode(result)

    def decode(self, raw: bytes) -> T:
        result: T = self._decode(raw)
        return result


class _EnqueuedJobs(Answer[list[Enqueued]]):
    """Compact codec for batches of thousands: each job's id and a byte for `duplicate`."""

    def __init__(self) -> None:
        super().__init__(bytes)

    def encode(self, result: list[Enqueued]) -> bytes:
        return bytes.fromhex("".join([job.id + ("01" if job.duplicate else "00") for job in result]))

    def decode(self, raw: bytes) -> list[Enqueued]:
        return [Enqueued(raw[at : at + 16].hex(), bool(raw[at + 16])) for at in range(0, len(raw), 17)]


ENQUEUED = _EnqueuedJobs()
OUTCOMES = Answer[list[TenureError | None]](list[TenureError | None])
NUMBER = Answer[int](int)
YES_OR_NO = Answer[bool](bool)
NOTHING = Answer[None](None)


def request_digest(verb: str, *arguments: object) -> bytes:
    """A digest of a verb and its arguments."""
    return keyspace.digest(_encode((verb, arguments)))


def enqueue_digest(name: QueueName, jobs: Sequence[JobRequest]) -> bytes:
    """As `request_digest`; plain jobs are represented by their payloads, which is faster."""
    return request_digest("enqueue", name, payloads_of(jobs) if all_plain(jobs) else list(jobs))


def settle_digest(name: QueueName, items: Sequence[Settle]) -> bytes:
    """As `request_digest`; items of one verb and one lease without other arguments are represented by their jobs."""
    same = alike(items)
    if same is None:
        return request_digest("settle", name, items)
    return request_digest("settle", name, same.verb, same.lease, b"".join(same.jobs), same.tokens)


# ── the core that stores outcomes ────────────────────────────────────────────────────────────────────────────────────


class RememberingCore(Core):
    """A core for one request: each of its transactions takes effect once, and its outcome is stored."""

    def __init__(self, core: Core, request: bytes, arguments: bytes) -> None:
        # All parts are the other core's. It alone runs transactions, and so it alone updates `journal_end`.
        self.engine, self.clock, self.time, self.ids = core.engine, core.clock, core.time, core.ids
        self.registry, self.waiters, self.priorities, self.only_writer = (
            core.registry, core.waiters, core.priorities, core.only_writer,
        )  # fmt: skip
        self.turns, self.traits = core.turns, core.traits
        self._core, self._request, self._arguments = core, request, arguments

    @property
    def plain(self) -> Core:
        return self._core

    def write(
        self,
        fn: Callable[[UnitOfWork], T],
        now_ms: int | None = None,
        answer: Answer[T] | None = None,
        step: bytes = b"",
    ) -> T:
        if answer is None:
            raise NotImplementedError("a verb that cannot be remembered cannot be asked for once")
        key = keyspace.digest(self._request + step)

        def run(unit: UnitOfWork) -> T:
            seen = read_outcome(unit.tx, key)
            if seen is not None:
                return self._again(seen, answer)
            result = fn(unit)
            keep_outcome(unit, key, self._arguments, False, answer.encode(result))
            return result

        try:
            return self._core.write(run, now_ms)
        except ANSWERS as exc:
            error = exc

        def fail(unit: UnitOfWork) -> tuple[T] | None:
            seen = read_outcome(unit.tx, key)
            if seen is not None:
                return (self._again(seen, answer),)
            keep_outcome(unit, key, self._arguments, True, _encode(packed(error)))
            return None

        other = self._core.write(fail)
        if other is None:
            raise error
        return other[0]

    def _again(self, seen: RequestRecord, answer: Answer[T]) -> T:
        if seen.asked != self._arguments:
            raise InvalidArgument("a request with this id asked for something else: use another id")
        try:
            if not seen.failed:
                return answer.decode(seen.answer)
            failure = _decode_failure(seen.answer)
        except msgspec.DecodeError as exc:
            raise Corrupt(f"a request's outcome cannot be read: {exc}") from exc
        raise unpacked(failure)


def keep_outcome(unit: UnitOfWork, key: bytes, arguments: bytes, failed: bool, answer: bytes) -> None:
    """Store the outcome of a request. `arguments`: the digest of its verb and arguments."""
    until = unit.now + REQUEST_MEMORY_MS
    row, parts = records.encode_request(until, arguments, failed, answer)
    tx = unit.tx
    tx.put(keyspace.REQUESTS, keyspace.request(key, 0), row)
    if parts:
        tx.put_many(keyspace.REQUESTS, [(keyspace.request(key, part), v) for part, v in enumerate(parts, 1)])
    # The due row has the number of parts in the place of a queue: the sweeper need not read the outcome.
    tx.put(keyspace.DUE, keyspace.due(Due.REQUEST, until, len(parts), key), b"")


def read_outcome(reader: Reader, key: bytes) -> RequestRecord | None:
    """A request's outcome with all parts of its answer; None: it has none. Raises Corrupt."""
    raw = reader.get(keyspace.REQUESTS, keyspace.request(key, 0))
    if raw is None:
        return None
    record = records.decode_request(raw)
    if not record.parts:
        return record
    rows = reader.get_many(keyspace.REQUESTS, [keyspace.request(key, part) for part in range(1, record.parts + 1)])
    pieces = [record.answer]
    for row in rows:
        if row is None:
            raise Corrupt("a part of a request's outcome is missing")
        pieces.append(records.unseal("a part of a request's outcome", row)[1:])
    return record._replace(answer=b"".join(pieces))
