"""Records of variable size, encoded as MessagePack: notes, queues, settings."""

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
    """The last error, progress and result of a job. `result` is the first part of a large one."""

    error: str | None = None
    progress: float | None = None
    progress_note: str | None = None
    result: bytes | None = None
    result_bytes: int = 0


class StepsRecord(msgspec.Struct, frozen=True, array_like=True):
    """The number and size of a job's rows in `steps`, and the signal that it waits for."""

    count: int = 0
    size: int = 0
    #: The digest of the signal's name, and the token of the delivery that waits: a later delivery ends the wait.
    waits_for: bytes = b""
    token: int = 0
    #: The signal's name. Empty in rows written before 2026-11-16.
    signal: str = ""


class StepRecord(msgspec.Struct, frozen=True, array_like=True):
    """A step or a signal of a job. `place`: its position among them, from 0."""

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
    #: The number of its tenant's usage counters; 0: the tenant has no quota.
    meter: int = 0
    #: The queue is deleted; the row still maps its number to its name, for the journal.
    deleted: bool = False
    #: It has or had jobs with a group: claims serve its groups in turn.
    grouped: bool = False


class QuotaRecord(msgspec.Struct, frozen=True, array_like=True):
    number: int
    quota: Quota


class ScheduleRecord(msgspec.Struct, frozen=True, array_like=True):
    schedule: Schedule


class ClockRecord(msgspec.Struct, frozen=True, array_like=True):
    """Store time = steady time + offset, within the boot `boot`."""

    boot: str
    offset_ms: int


class ConsumerRecord(msgspec.Struct, frozen=True, array_like=True):
    """A registered reader of the journal: rows after `commit` are not trimmed."""

    commit: int
    seen_at_ms: int


class WriteRecord(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a staged write: `chunk` is the next to publish. Kept until `until_ms`, longer if unfinished."""

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
    """The store's identity: made when it is created, and shared by its copies."""

    id: str


class RefusalsRecord(msgspec.Struct, frozen=True, array_like=True):
    """The jobs left out of one chunk of a staged write: (index in the chunk, job that holds the key)."""

    refused: list[tuple[int, str]]


class LoadedPart(msgspec.Struct, frozen=True, array_like=True):
    """Files of one bulk load: rows of one queue, one sorted file for each of `spaces`."""

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
    #: The chunk of a staged write; None: the load is a whole write.
    chunk: int | None = None


class UpgradeRecord(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a format upgrade: the next key to convert."""

    key: bytes


class NumberRecord(msgspec.Struct, frozen=True, array_like=True):
    value: int


def encode_struct(value: msgspec.Struct) -> bytes:
    return seal(V1_BYTE + encode_msgpack(value))


#: Made when the module is imported, by one thread: msgspec (0.22) computes a struct's fields at its first use, and
#: crashes the process if two threads do so at once (such as a store's opener and its sweeper).
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
