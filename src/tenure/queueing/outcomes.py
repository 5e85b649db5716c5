"""Requests that take effect once: a verb's outcome is stored under the request's id, in the same commit as its effect.

A caller that lost the reply repeats the request with the same id, and gets the first outcome: a result, or an error of
`failure.ANSWERS`. A verb that works in chunks stores one outcome a chunk, and each chunk follows from the outcome of
the one before it: repeated, the verb goes on where it was cut off.

An error is stored by a transaction of its own, since the one that raised it wrote nothing. The outcome that is stored
first is the answer to all repeats.
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
#: How long a request's outcome is kept. A caller that asks again later than this may act twice.
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
    """How a verb's result is kept: as MessagePack, read again as the type given."""

    def __init__(self, kind: Any) -> None:
        self._decode = msgspec.msgpack.Decoder(kind, dec_hook=_from_plain).decode

    def encode(self, result: T) -> bytes:
        return _encode(result)

    def decode(self, raw: bytes) -> T:
        result: T = self._decode(raw)
        return result


class _EnqueuedJobs(Answer[list[Enqueued]]):
    """Ids as bytes, each with whether it was there before: a batch of thousands is kept, so it is kept small."""

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


def asked(verb: str, *arguments: object) -> bytes:
    """Stands for a verb and its arguments."""
    return keyspace.digest(_encode((verb, arguments)))


def asked_to_enqueue(name: QueueName, jobs: Sequence[JobRequest]) -> bytes:
    """As `asked`, of jobs that are mostly nothing but their payloads: those are told by them alone."""
    return asked("enqueue", name, payloads_of(jobs) if all_plain(jobs) else jobs)


def asked_to_settle(name: QueueName, items: Sequence[Settle]) -> bytes:
    """As `asked`, of a batch that is mostly of one verb and one lease, with nothing said: by its jobs alone."""
    same = alike(items)
    if same is None:
        return asked("settle", name, items)
    return asked("settle", name, same.verb, same.lease, b"".join(same.jobs), same.tokens)


# ── the core that remembers ──────────────────────────────────────────────────────────────────────────────────────────


class RememberingCore(Core):
    """A core whose transactions are those of one request: each is done once, and remembered."""

    def __init__(self, core: Core, request: bytes, arguments: bytes) -> None:
        # Everything is the other core's: nothing is made here, and its `tail` is never ours to move.
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
    """Remember what a request came to. `arguments` is a digest of what it asked for."""
    until = unit.now + REQUEST_MEMORY_MS
    row, parts = records.encode_request(until, arguments, failed, answer)
    tx = unit.tx
    tx.put(keyspace.REQUESTS, keyspace.request(key, 0), row)
    if parts:
        tx.put_many(keyspace.REQUESTS, [(keyspace.request(key, part), v) for part, v in enumerate(parts, 1)])
    # Where others name their queue, a request says how many parts it has: the sweeper need not read it.
    tx.put(keyspace.DUE, keyspace.due(Due.REQUEST, until, len(parts), key), b"")


def read_outcome(reader: Reader, key: bytes) -> RequestRecord | None:
    """A request's outcome, its answer whole."""
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
