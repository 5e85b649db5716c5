"""Rows of the journal: the events of one commit, each of fixed width.

version 1   header, events, a tail with their texts
version 2   header, one event, the job's id of each event: for events that differ only in their job
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from tenure.errors import Corrupt
from tenure.storage.checksum import LONG, crc32, crc32_held
from tenure.storage.records.framing import V1, V2, damaged, new_tuple, pack_crc

_JOURNAL = Struct(">BBHQQ")  # version, reserved, events, first event's number, time
_EVENT = Struct(">BBBBI16s16sQIIQQII")
_pack_journal = _JOURNAL.pack
EVENT_BYTES = _EVENT.size
EVENTS_A_ROW = 1000
REF_BITS = 10
REF_BYTES = 8
_REF = Struct(">Q")
_PREVIOUS_AT = EVENT_BYTES - 16  # in an event: before the reference to its text
#: The offset of the job's id in an event.
_JOB_AT, _JOB_BYTES = 8, 16
_JOB_FIELD = 5

#: The pieces of an event, for encoders of many: head + job + lease + middle + text reference.
pack_event_head = Struct(">BBBBI").pack  # change, state, priority, reason, queue
pack_event_middle = Struct(">QIIQQ").pack  # token, attempt, max_attempts, at, previous
pack_event_text = Struct(">II").pack  # offset in the row's tail, bytes
NO_TEXT = bytes(8)
#: A whole event: head, job, lease, token, attempt, max_attempts, at, previous, text reference.
pack_event = Struct(">8s16s16sQIIQQ8s").pack

#: An event of one of many similar jobs: head, job, the bytes from lease to at, previous, text reference.
pack_alike_event = Struct(">8s16s40sQ8s").pack


class EventRecord(NamedTuple):
    change: int
    state: int
    priority: int
    reason: int
    queue: int
    job: bytes
    lease: bytes
    token: int
    attempt: int
    max_attempts: int
    at_ms: int
    previous: int
    text_at: int
    text_bytes: int


class JournalHeader(NamedTuple):
    events: int
    first_number: int
    time_ms: int


class JournalRow(NamedTuple):
    header: JournalHeader
    events: list[EventRecord]
    tail: bytes

    def text(self, event: EventRecord) -> bytes:
        return self.tail[event.text_at : event.text_at + event.text_bytes]


def encode_journal(first_number: int, time_ms: int, events: Sequence[bytes], tail: bytes) -> bytes:
    body = _pack_journal(V1, 0, len(events), first_number, time_ms) + b"".join(events) + tail
    return body + pack_crc(crc32(body) if len(body) <= LONG else crc32_held(body))


def encode_journal_row(events: int, first_number: int, time_ms: int, rest: bytes) -> bytes:
    """As `encode_journal`, for events and tail that are joined already."""
    body = _pack_journal(V1, 0, events, first_number, time_ms) + rest
    return body + pack_crc(crc32_held(body))


def encode_alike_row(first_number: int, time_ms: int, event: bytes, jobs: bytes) -> bytes:
    """A row of version 2, for events without text that differ only in their job: `event` has zeros for its job."""
    count = len(jobs) // _JOB_BYTES
    body = b"".join((_pack_journal(V2, 0, count, first_number, time_ms), event, jobs))
    return body + pack_crc(crc32_held(body))


def alike_events(event: bytes, jobs: bytes) -> bytes:
    """The events of a row of version 2, joined as in a row of version 1."""
    before, after = event[:_JOB_AT], event[_JOB_AT + _JOB_BYTES :]
    ids = [jobs[at : at + _JOB_BYTES] for at in range(0, len(jobs), _JOB_BYTES)]
    return before + (after + before).join(ids) + after


def rebase_journal(value: bytes, first_number: int, time_ms: int, previous: Callable[[int], int]) -> bytes:
    """The row with another first number and time; `previous` maps each event's reference to its preceding event."""
    body = bytearray(_unsealed(None, value))
    version, reserved, events, _, _ = _JOURNAL.unpack_from(body)
    _JOURNAL.pack_into(body, 0, version, reserved, events, first_number, time_ms)
    if version == V2:
        events = 1
    for at in range(_JOURNAL.size + _PREVIOUS_AT, _JOURNAL.size + events * EVENT_BYTES, EVENT_BYTES):
        (ref,) = _REF.unpack_from(body, at)
        if ref:
            _REF.pack_into(body, at, previous(ref))
    whole = bytes(body)
    return whole + pack_crc(crc32_held(whole))


def decode_journal_header(value: bytes) -> JournalHeader:
    """The header, without a check of the CRC: for the process that wrote the row."""
    if len(value) < _JOURNAL.size + 4 or value[0] not in (V1, V2):
        raise damaged("a journal row", value)
    return JournalHeader(*_JOURNAL.unpack_from(value)[2:])


def decode_journal(value: bytes, commit: int) -> JournalRow:
    body = _unsealed(commit, value)
    header = new_tuple(JournalHeader, _JOURNAL.unpack_from(body)[2:])
    if body[0] == V2:
        return _decode_alike(header, body, commit)
    end = _JOURNAL.size + header.events * EVENT_BYTES
    try:
        events = [new_tuple(EventRecord, fields) for fields in _EVENT.iter_unpack(body[_JOURNAL.size : end])]
    except StructError:
        events = []
    if len(events) != header.events:
        raise Corrupt(f"journal row {commit} is cut short")
    return JournalRow(header, events, body[end:])


def row_names_job(value: bytes, commit: int, job: bytes) -> bool:
    """Whether the row may have an event of the job. Raises Corrupt as `decode_journal`, which takes 100 times longer."""
    return job in _unsealed(commit, value)


def _decode_alike(header: JournalHeader, body: bytes, commit: int) -> JournalRow:
    first = _JOURNAL.size + EVENT_BYTES
    if len(body) != first + header.events * _JOB_BYTES:
        raise Corrupt(f"journal row {commit} is cut short")
    fields = _EVENT.unpack_from(body, _JOURNAL.size)
    before, after = fields[:_JOB_FIELD], fields[_JOB_FIELD + 1 :]
    jobs = [body[at : at + _JOB_BYTES] for at in range(first, len(body), _JOB_BYTES)]
    return JournalRow(header, [new_tuple(EventRecord, (*before, job, *after)) for job in jobs], b"")


def _unsealed(commit: int | None, value: bytes) -> bytes:
    """The row without its CRC. Raises Corrupt, which names the row's number if it is given, if it is damaged, or of
    another version.
    """
    body = value[:-4]
    if len(body) < _JOURNAL.size or crc32_held(body) != int.from_bytes(value[-4:], "big") or body[0] not in (V1, V2):
        raise damaged("a journal row" if commit is None else f"journal row {commit}", value)
    return body


def event_ref(commit: int, index: int) -> int:
    return commit << REF_BITS | index


def split_ref(ref: int) -> tuple[int, int]:
    return ref >> REF_BITS, ref & (1 << REF_BITS) - 1
