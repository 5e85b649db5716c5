"""A job's state: fixed width, rewritten at every step."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from leasehold.errors import Corrupt
from leasehold.storage.checksum import crc32
from leasehold.storage.records.sealing import V1, new_tuple, unpack_crc

_STATE = Struct(">BBBBBIIIQQQQQ16s")
STATE_BYTES = _STATE.size + 4

#: Flags of a state: what else there is of the job, so that removing it reads nothing.
HAS_PARTS, HAS_NOTES, HAS_KEY, HAS_RESULT_PARTS = 1, 2, 4, 8


class StateRecord(NamedTuple):
    """What changes about a job."""

    version: int
    state: int
    priority: int
    reason: int
    flags: int
    attempt: int
    max_attempts: int
    replays: int
    token: int
    visible_at_ms: int
    ended_at_ms: int
    #: When this job has a due row: its ttl while it has never been claimed, its retention once done. 0: none.
    due_at_ms: int
    #: (commit << 10 | index) of its last event.
    last_event: int
    #: Of a leased job, its lease; else the lease that settled it last, or zeros when one expired.
    lease: bytes


pack_state = _pack_state = _STATE.pack
_STATE_BODY = _STATE.size
#: A state ends with `last_event` and `lease`: what is before them is the same for jobs enqueued alike.
STATE_ALIKE = _STATE_BODY - 24
_unpack_state = _STATE.unpack_from


def seal_state(*fields: object) -> bytes:
    """The bytes of a state given field by field, in the order of `StateRecord`."""
    body = _pack_state(*fields)
    return body + crc32(body).to_bytes(4, "big")


def encode_state(record: StateRecord) -> bytes:
    return seal_state(*record)


def decode_state(value: bytes, job: bytes) -> StateRecord:
    if len(value) == STATE_BYTES and crc32(value[:-4]) == unpack_crc(value, _STATE.size)[0] and value[0] == V1:
        return new_tuple(StateRecord, _unpack_state(value))
    raise Corrupt(f"its state is damaged ({len(value)} bytes)", job.hex())


def decode_states(
    values: Sequence[bytes | Corrupt | None], jobs: Sequence[bytes]
) -> list[StateRecord | Corrupt | None]:
    """As `decode_state`, of many: damage is an answer for the job it befell."""
    found: list[StateRecord | Corrupt | None] = []
    add = found.append
    for value, job in zip(values, jobs, strict=True):
        if type(value) is bytes:
            if len(value) == STATE_BYTES and crc32(value[:-4]) == unpack_crc(value, _STATE_BODY)[0] and value[0] == V1:
                add(new_tuple(StateRecord, _unpack_state(value)))
            else:
                add(Corrupt(f"its state is damaged ({len(value)} bytes)", job.hex()))
        else:
            add(None if value is None else Corrupt(value.detail, job.hex()))  # type: ignore[union-attr]
    return found
