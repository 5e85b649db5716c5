"""Notes, queues and the rest that varies: MessagePack, sealed."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from tenure.errors import Corrupt
from tenure.model.quota import Quota
from tenure.model.retry import Policy
from tenure.model.schedule import Schedule
from tenure.storage.records.framing import V1_BYTE, encode_msgpack, seal, unseal

R = TypeVar("R")


class Notes(msgspec.Struct, frozen=True, array_like=True):
    """What a job's deliveries said. A large result is kept in parts, of which `result` is the first."""

    error: str | None = None
    progress: float | None = None
    progress_note: str | None = None
    result: bytes | None = None
    result_bytes: int = 0


class StepsRecord(msgspec.Struct, frozen=True, array_like=True):
    """What a job has in `steps`, and the signal that it waits for."""

    count: int = 0
    size: int = 0
    #: Digest of the signal's name, and the token of the delivery that began to wait: a later delivery waits no longer.
    waits_for: bytes = b""
    token: int = 0
    #: The signal's name. Empty in rows of before 2026-11-16.
    signal: str = ""


class StepRecord(msgspec.Struct, frozen=True, array_like=True):
    """A step or a signal of a job. `place`: how many it had before."""

    name: str
    value: bytes
    stored_at_ms: int
    place: int


class QueueRecord(msgspec.Struct, frozen=True, array_like=True):
    number: int
    tenant: str
    queue: str
    policy: Policy
    paused: bool = False
    #: The number under which its tenant's usage is counted; 0: the tenant has no quota.
    meter: int = 0
    #: Its jobs, policy and place in lists are gone; the row keeps name and number together, for the journal.
    deleted: bool = False
    #: Jobs with a group were put into it: claims let its groups take turns.
    grouped: bool = False


class QuotaRecord(msgspec.Struct, frozen=True, array_like=True):
    number: int
    quota: Quota


class ScheduleRecord(msgspec.Struct, frozen=True, array_like=True):
    schedule: Schedule


class ClockRecord(msgspec.Struct, frozen=True, array_like=True):
    """Joins steady time to the store's: store time = steady + offset, for as long as `boot` lasts."""

    boot: str
    offset_ms: int


class ConsumerRecord(msgspec.Struct, frozen=True, array_like=True):
    """A registered reader of the journal: nothing after `commit` is trimmed."""

    commit: int
    seen_at_ms: int


class WriteRecord(msgspec.Struct, frozen=True, array_like=True):
    """How far a staged write is published: `chunk` is the next. It is kept until `until_ms`, and longer while unfinished."""

    id: str
    manifest_parts: int
    begun_at_ms: int
    until_ms: int
    keep_ms: int
    chunk: int = 0
    jobs: int = 0
    duplicates: int = 0
    finished: bool = False
    refused: int = 0


class StoreRecord(msgspec.Struct, frozen=True, array_like=True):
    """Which store this is: made when it is first opened, and kept by its copies."""

    id: str


class RefusalsRecord(msgspec.Struct, frozen=True, array_like=True):
    """The jobs left out of one chunk of a staged write: (place in the chunk, job that holds the key)."""

    refused: list[tuple[int, str]]


class LoadedPart(msgspec.Struct, frozen=True, array_like=True):
    """Files of one bulk load: rows of one queue, and the spaces there is a sorted file of."""

    name: str
    queue: int
    rows: int
    spaces: list[int]


class LoadRecord(msgspec.Struct, frozen=True, array_like=True):
    """The intent of a bulk load."""

    id: str
    manifest: bytes
    parts: list[LoadedPart]
    time_ms: int
    keep_ms: int
    #: Of a staged write that was begun; None: the load is a whole write.
    chunk: int | None = None


class UpgradeRecord(msgspec.Struct, frozen=True, array_like=True):
    """How far an upgrade of the format is: the key to go on from."""

    key: bytes


class NumberRecord(msgspec.Struct, frozen=True, array_like=True):
    value: int


def encode_struct(value: msgspec.Struct) -> bytes:
    return seal(V1_BYTE + encode_msgpack(value))


#: Made here, while the module is imported by one thread: msgspec (0.22) works out a struct's fields when it first decodes
#: one, and crashes the process if two threads first do so at once (a store's opener and its sweeper, say).
_DECODERS: dict[type, Any] = {
    kind: msgspec.msgpack.Decoder(kind)
    for kind in (
        Notes, QueueRecord, QuotaRecord, ClockRecord, ConsumerRecord, WriteRecord, LoadRecord, NumberRecord,
        RefusalsRecord, ScheduleRecord, StepRecord, StepsRecord, StoreRecord, UpgradeRecord,
    )
}  # fmt: skip


def decode_struct(kind: type[R], value: bytes, what: str, job: bytes | None = None) -> R:
    try:
        found: R = _DECODERS[kind].decode(unseal(what, value)[1:])
        return found
    except msgspec.DecodeError as exc:
        raise Corrupt(f"{what} cannot be read: {exc}", job.hex() if job else None) from exc
    except Corrupt as exc:
        raise Corrupt(exc.detail, job.hex() if job else None) from None
