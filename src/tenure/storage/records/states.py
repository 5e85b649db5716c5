"""The record of a job's state: fixed width, rewritten at every transition."""

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

#: Flags of a state: which other rows the job has, so that removing it needs no reads.
HAS_PARTS, HAS_NOTES, HAS_KEY, HAS_RESULT_PARTS, HAS_GROUP = 1, 2, 4, 8, 16
#: It has or had children (rows in `children`); it has or had parents (rows in `parents`).
HAS_CHILDREN, HAS_PARENTS = 32, 64
#: It has rows in `steps`.
HAS_STEPS = 128


class StateRecord(NamedTuple):
    """The mutable fields of a job."""

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
    #: The time of the job's row in `due`: its ttl until the first claim, its retention once done. 0: no row.
    due_at_ms: int
    #: (commit << 10 | index) of its last event.
    last_event: int
    #: The lease of a leased job; else the lease that settled it last, or zeros if that one expired.
    lease: bytes


pack_state = _pack_state = _STATE.pack
_STATE_BODY = _STATE.size
#: The bytes before `last_event` and `lease`, which are equal for jobs that were enqueued in one batch.
STATE_ALIKE = _STATE_BODY - 24
_unpack_state = _STATE.unpack_from


#: What `pack_state` made, and its CRC: the stored state. For encoders that save a call.
seal_packed_state = Struct(f">{_STATE_BODY}sI").pack


def seal_state(*fields: object) -> bytes:
    """Encode a state from its fields, in the order of `StateRecord`."""
    body = _pack_state(*fields)
    return seal_packed_state(body, crc32(body))


def encode_state(record: StateRecord) -> bytes:
    return seal_state(*record)


def with_last_event(value: bytes, ref: int) -> bytes:
    """A stored state with another last event. A damaged one is returned unchanged."""
    if len(value) != STATE_BYTES or crc32(value[:-4]) != unpack_crc(value, _STATE_BODY)[0]:
        return value
    body = value[:STATE_ALIKE] + ref.to_bytes(8, "big") + value[STATE_ALIKE + 8 : -4]
    return body + pack_crc(crc32(body))


StateFields = tuple[Any, ...]
"""The fields of a `StateRecord`, in their order."""


def state_fields(value: bytes, job: bytes) -> StateFields:
    """The fields of `decode_state` as a plain tuple, which is faster. Raises Corrupt."""
    if len(value) == STATE_BYTES and crc32(value[:-4]) == unpack_crc(value, _STATE_BODY)[0] and value[0] == V1:
        return _unpack_state(value)
    raise Corrupt(f"its state is damaged ({len(value)} bytes)", job.hex())


def decode_state(value: bytes, job: bytes) -> StateRecord:
    return new_tuple(StateRecord, state_fields(value, job))


#: Functions for batches, applied with `map`: no Python code runs for each row.
_unpack_sealed = Struct(_STATE.format + "4x").unpack
_unpack_sum = Struct(f">{_STATE_BODY}xI").unpack
_body_of = itemgetter(slice(_STATE_BODY))
_version_of = itemgetter(0)


def seal_states(*columns: Any) -> list[bytes]:
    """As `seal_state`, for many states given as columns; a field that they share may be a `repeat`."""
    bodies = list(map(_pack_state, *columns))
    return list(map(add, bodies, map(pack_crc, map(crc32, bodies))))


def state_rows(values: Sequence[Any]) -> list[StateFields] | None:
    """The fields of many states as plain tuples, in a third of the time; None if any is missing or damaged."""
    try:
        rows = list(map(_unpack_sealed, values))  # raises for a value of another length or type
    except (TypeError, StructError):
        return None
    if list(map(_unpack_sum, values)) != list(zip(map(crc32, map(_body_of, values)))):
        return None
    return rows if list(map(_version_of, rows)).count(V1) == len(rows) else None


def decode_states(
    values: Sequence[bytes | Corrupt | None], jobs: Sequence[bytes]
) -> list[StateRecord | Corrupt | None]:
    """As `decode_state`, for many jobs; a damaged row gives an error in its place, a missing one None."""
    rows = state_rows(values) if len(values) > 1 else None
    if rows is None:
        return list(map(state_or_damage, values, jobs))
    return list(map(new_tuple, repeat(StateRecord), rows))


def state_or_damage(value: bytes | Corrupt | None, job: bytes) -> StateRecord | Corrupt | None:
    """As `decode_state`; None for a missing row, an error for one that is damaged or could not be read."""
    if type(value) is bytes:
        if len(value) == STATE_BYTES and value[0] == V1 and unpack_crc(value, _STATE_BODY)[0] == crc32(value[:-4]):
            return new_tuple(StateRecord, _unpack_state(value))
        return Corrupt(f"its state is damaged ({len(value)} bytes)", job.hex())
    return Corrupt(value.detail, job.hex()) if isinstance(value, Corrupt) else None


# ── states that differ in their last event only ──────────────────────────────────────────────────────────────────────

#: Their last bytes: the event, the lease and the CRC.
_pack_rest = Struct(">Q16s").pack
_pack_alike = Struct(f">{STATE_ALIKE}sQ16sI").pack
_INDEX = (1 << REF_BITS) - 1


def alike_states(alike: bytes, lease: bytes, refs: range) -> list[bytes]:
    """Encode states that begin with the bytes `alike`, and whose last events are consecutive."""
    return list(map(_pack_alike, repeat(alike), refs, repeat(lease), event_sums(alike, lease, refs)))


def event_sums(alike: bytes, lease: bytes, refs: range) -> Sequence[int]:
    """The CRCs of such states.

    A CRC is linear: a change of the event's index changes the CRC by a constant that does not depend on other bytes.
    """
    low = refs.start & _INDEX
    base = crc32(alike + _pack_rest(refs.start - low, lease))
    changes = _index_sums()[low : low + len(refs)]
    if len(changes) < len(refs):  # the events are in more than one row of the journal
        return [crc32(alike + _pack_rest(ref, lease)) for ref in refs]
    return list(map(xor, changes, repeat(base)))


@lru_cache(1)
def _index_sums() -> Sequence[int]:
    nothing = crc32(_pack_rest(0, bytes(16)))
    return [crc32(_pack_rest(index, bytes(16))) ^ nothing for index in range(_INDEX + 1)]
