"""A job's state: fixed width, rewritten at every step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from operator import add, itemgetter, xor
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from tenure.errors import Corrupt
from tenure.storage.checksum import crc32
from tenure.storage.records.framing import V1, new_tuple, pack_crc, unpack_crc
from tenure.storage.records.journal import REF_BITS

_STATE = Struct(">BBBBBIIIQQQQQ16s")
STATE_BYTES = _STATE.size + 4

#: Flags of a state: what else there is of the job, so that removing it reads nothing.
HAS_PARTS, HAS_NOTES, HAS_KEY, HAS_RESULT_PARTS, HAS_GROUP = 1, 2, 4, 8, 16
#: Jobs wait, or waited, for it (rows in `children`); it waits, or waited, for jobs (rows in `parents`).
HAS_CHILDREN, HAS_PARENTS = 32, 64
#: It has rows in `steps`.
HAS_STEPS = 128


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
    return body + pack_crc(crc32(body))


def encode_state(record: StateRecord) -> bytes:
    return seal_state(*record)


def with_last_event(value: bytes, ref: int) -> bytes:
    """A stored state with another last event. One that is damaged stays as it is."""
    if len(value) != STATE_BYTES or crc32(value[:-4]) != unpack_crc(value, _STATE_BODY)[0]:
        return value
    body = value[:STATE_ALIKE] + ref.to_bytes(8, "big") + value[STATE_ALIKE + 8 : -4]
    return body + pack_crc(crc32(body))


StateFields = tuple[Any, ...]
"""What a `StateRecord` holds, in its order."""


def state_fields(value: bytes, job: bytes) -> StateFields:
    """The fields that `decode_state` returns, as a plain tuple, which is quicker to make."""
    if len(value) == STATE_BYTES and crc32(value[:-4]) == unpack_crc(value, _STATE_BODY)[0] and value[0] == V1:
        return _unpack_state(value)
    raise Corrupt(f"its state is damaged ({len(value)} bytes)", job.hex())


def decode_state(value: bytes, job: bytes) -> StateRecord:
    return new_tuple(StateRecord, state_fields(value, job))


#: Steps that a batch takes as a whole: no line of Python for each row.
_unpack_sealed = Struct(_STATE.format + "4x").unpack
_unpack_sum = Struct(f">{_STATE_BODY}xI").unpack
_body_of = itemgetter(slice(_STATE_BODY))
_version_of = itemgetter(0)


def seal_states(*columns: Any) -> list[bytes]:
    """As `seal_state`, of many given column by column; a `repeat` stands for a field they share."""
    bodies = list(map(_pack_state, *columns))
    return list(map(add, bodies, map(pack_crc, map(crc32, bodies))))


def state_rows(values: Sequence[Any]) -> list[StateFields] | None:
    """The fields of many states, as plain tuples, which cost a third of records; None if any is missing or damaged."""
    try:
        rows = list(map(_unpack_sealed, values))  # refuses what has another length, or is no bytes
    except (TypeError, StructError):
        return None
    if list(map(_unpack_sum, values)) != list(zip(map(crc32, map(_body_of, values)))):
        return None
    return rows if list(map(_version_of, rows)).count(V1) == len(rows) else None


def decode_states(
    values: Sequence[bytes | Corrupt | None], jobs: Sequence[bytes]
) -> list[StateRecord | Corrupt | None]:
    """As `decode_state`, of many: damage is an answer for the job it befell."""
    rows = state_rows(values) if len(values) > 1 else None
    if rows is None:
        return list(map(state_or_damage, values, jobs))
    return list(map(new_tuple, repeat(StateRecord), rows))


def state_or_damage(value: bytes | Corrupt | None, job: bytes) -> StateRecord | Corrupt | None:
    """As `decode_state`, of a row that may not be there, or that could not be read; damage is an answer."""
    if type(value) is bytes:
        if len(value) == STATE_BYTES and value[0] == V1 and unpack_crc(value, _STATE_BODY)[0] == crc32(value[:-4]):
            return new_tuple(StateRecord, _unpack_state(value))
        return Corrupt(f"its state is damaged ({len(value)} bytes)", job.hex())
    return Corrupt(value.detail, job.hex()) if isinstance(value, Corrupt) else None


# ── states that differ in their last event only ──────────────────────────────────────────────────────────────────────

#: They end with the event, the lease and the CRC.
_pack_rest = Struct(">Q16s").pack
_pack_alike = Struct(f">{STATE_ALIKE}sQ16sI").pack
_INDEX = (1 << REF_BITS) - 1


def alike_states(alike: bytes, lease: bytes, refs: range) -> list[bytes]:
    """Their bytes: `alike` is what all begin with, and their last events stand side by side."""
    return list(map(_pack_alike, repeat(alike), refs, repeat(lease), event_sums(alike, lease, refs)))


def event_sums(alike: bytes, lease: bytes, refs: range) -> Sequence[int]:
    """The checksums of such states.

    A CRC is linear: what a bit of the event's index changes in it is the same whatever else there is.
    """
    low = refs.start & _INDEX
    base = crc32(alike + _pack_rest(refs.start - low, lease))
    changes = _index_sums()[low : low + len(refs)]
    if len(changes) < len(refs):  # over more than one row of the journal
        return [crc32(alike + _pack_rest(ref, lease)) for ref in refs]
    return list(map(xor, changes, repeat(base)))


@lru_cache(1)
def _index_sums() -> Sequence[int]:
    nothing = crc32(_pack_rest(0, bytes(16)))
    return [crc32(_pack_rest(index, bytes(16))) ^ nothing for index in range(_INDEX + 1)]
