"""What is kept under the keys: each value starts with a version byte and ends with a CRC-32 of what is before it.

What changes often is fixed-width (`state`, `leases`, the events of `journal`), so that a reader can decode a million
of them as one array; the offsets are in `docs/keyspace.md`. Decoders raise `Corrupt`; they never guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple, TypeVar

import msgspec

from leasehold.errors import Corrupt
from leasehold.model.quota import Quota
from leasehold.model.retry import Policy
from leasehold.storage.checksum import crc32

V1 = 1
_V1 = b"\x01"
_CRC = Struct(">I")
_COUNT = Struct(">Q")
R = TypeVar("R")

#: A value is at most this large (one engine takes 100,000 bytes), so larger payloads and results are split.
PART_BYTES = 64 * 1024


def seal(body: bytes) -> bytes:
    return body + crc32(body).to_bytes(4, "big")


def unseal(what: str, value: bytes) -> bytes:
    """The body of a sealed value of this version."""
    body = value[:-4]
    if crc32(body) != int.from_bytes(value[-4:], "big") or value[:1] != _V1:
        raise damaged(what, value)
    return body


def damaged(what: str, value: bytes) -> Corrupt:
    body = value[:-4]
    if len(value) > 4 and crc32(body) == int.from_bytes(value[-4:], "big"):
        return Corrupt(f"{what} has version {value[0]}, which this Leasehold does not read")
    return Corrupt(f"{what} is damaged: its checksum does not fit its {len(value)} bytes")


# ── state ────────────────────────────────────────────────────────────────────────────────────────────────────────────

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


#: For those who seal by hand, where a call more is felt.
pack_crc = Struct(">I").pack
unpack_crc = Struct(">I").unpack_from
pack_state = _pack_state = _STATE.pack
_STATE_BODY = _STATE.size
#: A state ends with `last_event` and `lease`: what is before them is the same for jobs enqueued alike.
STATE_ALIKE = _STATE_BODY - 24
_unpack_state = _STATE.unpack_from
_new = tuple.__new__  # what `_make` does, without a Python frame a record


def seal_state(*fields: object) -> bytes:
    """The bytes of a state given field by field, in the order of `StateRecord`."""
    body = _pack_state(*fields)
    return body + crc32(body).to_bytes(4, "big")


def encode_state(record: StateRecord) -> bytes:
    return seal_state(*record)


def decode_state(value: bytes, job: bytes) -> StateRecord:
    if len(value) == STATE_BYTES and crc32(value[:-4]) == unpack_crc(value, _STATE.size)[0] and value[0] == V1:
        return _new(StateRecord, _unpack_state(value))
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
                add(_new(StateRecord, _unpack_state(value)))
            else:
                add(Corrupt(f"its state is damaged ({len(value)} bytes)", job.hex()))
        else:
            add(None if value is None else Corrupt(value.detail, job.hex()))  # type: ignore[union-attr]
    return found


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

_JOB = Struct(">BQHHII")  # version, created, parts, key bytes, headers bytes, payload bytes in all
pack_job = _pack_job = _JOB.pack


class JobRecord(NamedTuple):
    """What never changes about a job. `payload` is its first part when `parts` is not 0."""

    created_at_ms: int
    parts: int
    key: bytes
    headers: bytes
    payload_bytes: int
    payload: bytes


def encode_plain_job(created_at_ms: int, payload: bytes) -> bytes:
    """As `encode_job`, of a job that has a payload of one part and nothing else."""
    body = _pack_job(V1, created_at_ms, 0, 0, 0, len(payload)) + payload
    return body + pack_crc(crc32(body))


def encode_plain_jobs(created_at_ms: int, payloads: Sequence[bytes]) -> list[bytes]:
    """As `encode_plain_job`, of many: those of one length begin alike, and so do their checksums."""
    shared = {}
    for size in set(map(len, payloads)):
        head = _pack_job(V1, created_at_ms, 0, 0, 0, size)
        shared[size] = (Struct(f">{len(head)}s{size}sI").pack, head, crc32(head))
    if len(shared) == 1:
        pack, head, crc = next(iter(shared.values()))
        return [pack(head, payload, crc32(payload, crc)) for payload in payloads]
    return [
        (of_size := shared[len(payload)])[0](of_size[1], payload, crc32(payload, of_size[2])) for payload in payloads
    ]


def encode_job(created_at_ms: int, payload: bytes, key: bytes, headers: bytes) -> tuple[bytes, list[bytes]]:
    """The job's row, and the sealed further parts of a large payload."""
    size = len(payload)
    parts: list[bytes] = []
    first = payload
    if size > PART_BYTES:
        first = payload[:PART_BYTES]
        parts = split_parts(payload, PART_BYTES)
    body = _JOB.pack(V1, created_at_ms, len(parts), len(key), len(headers), size) + key + headers + first
    return body + crc32(body).to_bytes(4, "big"), parts


_JOB_BYTES = _JOB.size
_unpack_job = _JOB.unpack_from


def decode_job(value: bytes, job: bytes) -> JobRecord:
    body = value[:-4]
    if len(body) < _JOB_BYTES or crc32(body) != unpack_crc(value, len(body))[0]:
        raise Corrupt(f"its stored payload is damaged ({len(value)} bytes)", job.hex())
    version, created_at_ms, parts, key_bytes, headers_bytes, payload_bytes = _unpack_job(body)
    if version != V1:
        raise Corrupt(f"its stored payload is damaged ({len(value)} bytes)", job.hex())
    if not key_bytes and not headers_bytes:
        return _new(JobRecord, (created_at_ms, parts, b"", b"", payload_bytes, body[_JOB_BYTES:]))
    at_headers = _JOB_BYTES + key_bytes
    at_payload = at_headers + headers_bytes
    return JobRecord(
        created_at_ms, parts, body[_JOB_BYTES:at_headers], body[at_headers:at_payload], payload_bytes, body[at_payload:]
    )


def decode_jobs(values: Sequence[bytes | Corrupt | None], jobs: Sequence[bytes]) -> list[JobRecord | Corrupt]:
    """As `decode_job`, of many that have to be there: damage is an answer for the job it befell."""
    found: list[JobRecord | Corrupt] = []
    add = found.append
    for value, job in zip(values, jobs, strict=True):
        if type(value) is bytes:
            body = value[:-4]
            if len(body) >= _JOB_BYTES and crc32(body) == unpack_crc(value, len(body))[0] and body[0] == V1:
                _, created, parts, key, headers, size = _unpack_job(body)
                if not key and not headers:
                    add(_new(JobRecord, (created, parts, b"", b"", size, body[_JOB_BYTES:])))
                    continue
            try:
                add(decode_job(value, job))
            except Corrupt as exc:
                add(exc)
        else:
            add(Corrupt(value.detail if isinstance(value, Corrupt) else "its payload is missing", job.hex()))
    return found


def split_parts(data: bytes, start: int) -> list[bytes]:
    return [seal(_V1 + data[at : at + PART_BYTES]) for at in range(start, len(data), PART_BYTES)]


def join_parts(first: bytes, parts: Sequence[bytes | None], total: int, job: bytes, what: str = "payload") -> bytes:
    """A large payload or result, whole, or `Corrupt`."""
    pieces = [first]
    for part in parts:
        if part is None:
            raise Corrupt(f"a part of its {what} is missing", job.hex())
        try:
            pieces.append(unseal(f"a part of its {what}", part)[1:])
        except Corrupt as exc:
            raise Corrupt(exc.detail, job.hex()) from None
    whole = b"".join(pieces)
    if len(whole) != total:
        raise Corrupt(f"its {what} has {len(whole)} bytes instead of {total}", job.hex())
    return whole


_encode_msgpack = msgspec.msgpack.Encoder().encode
_decode_headers = msgspec.msgpack.Decoder(dict[str, str]).decode


def encode_headers(headers: dict[str, str]) -> bytes:
    return _encode_msgpack(headers) if headers else b""


def decode_headers(raw: bytes, job: bytes) -> dict[str, str]:
    if not raw:
        return {}
    try:
        return _decode_headers(raw)
    except msgspec.DecodeError as exc:
        raise Corrupt("its headers cannot be read", job.hex()) from exc


# ── notes, queues, meta: variable, as MessagePack ────────────────────────────────────────────────────────────────────


class Notes(msgspec.Struct, frozen=True, array_like=True):
    """What a job's deliveries said. A large result is kept in parts, of which `result` is the first."""

    error: str | None = None
    progress: float | None = None
    progress_note: str | None = None
    result: bytes | None = None
    result_bytes: int = 0


class QueueRecord(msgspec.Struct, frozen=True, array_like=True):
    number: int
    tenant: str
    queue: str
    policy: Policy
    paused: bool = False
    #: The number under which its tenant's usage is counted; 0: the tenant has no quota.
    meter: int = 0


class QuotaRecord(msgspec.Struct, frozen=True, array_like=True):
    number: int
    quota: Quota


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


class NumberRecord(msgspec.Struct, frozen=True, array_like=True):
    value: int


def encode_struct(value: msgspec.Struct) -> bytes:
    return seal(_V1 + _encode_msgpack(value))


#: Made here, while the module is imported by one thread: msgspec (0.22) works out a struct's fields when it first decodes
#: one, and crashes the process if two threads first do so at once (a store's opener and its sweeper, say).
_DECODERS: dict[type, Any] = {
    kind: msgspec.msgpack.Decoder(kind)
    for kind in (
        Notes, QueueRecord, QuotaRecord, ClockRecord, ConsumerRecord, WriteRecord, LoadRecord, NumberRecord,
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


# ── bulk loads ───────────────────────────────────────────────────────────────────────────────────────────────────────

_LOAD_RUN = Struct(">IBBQIQ")  # how many, and a shape
LOAD_RUN_BYTES = _LOAD_RUN.size


class LoadShape(NamedTuple):
    """What the owner has to know of a staged job, besides its id, to write its state and its event."""

    priority: int
    flags: int
    visible_at_ms: int
    max_attempts: int
    due_at_ms: int


def encode_load_runs(runs: Sequence[tuple[int, LoadShape]]) -> bytes:
    """How many jobs are of which shape, in their order."""
    return b"".join([_LOAD_RUN.pack(count, *shape) for count, shape in runs])


def decode_load_runs(raw: bytes) -> list[tuple[int, LoadShape]]:
    return [(count, LoadShape(*shape)) for count, *shape in _LOAD_RUN.iter_unpack(raw)]


# ── leases and claims ────────────────────────────────────────────────────────────────────────────────────────────────

_LEASE = Struct(">BQQIII16s64s")
_pack_lease = _LEASE.pack
_unpack_lease = _LEASE.unpack_from
_LEASE_BYTES = _LEASE.size + 4


class LeaseRecord(NamedTuple):
    version: int
    expires_at_ms: int
    granted_at_ms: int
    given: int
    open: int
    lost: int
    #: The digest of the claim's id, or zeros.
    claim: bytes
    #: UTF-8, padded with zeros.
    worker: bytes

    @property
    def worker_name(self) -> str:
        return self.worker.rstrip(b"\0").decode("utf-8", "replace")


def new_lease(expires_at_ms: int, now_ms: int, count: int, claim: bytes, worker: str) -> LeaseRecord:
    return LeaseRecord(V1, expires_at_ms, now_ms, count, count, 0, claim, worker.encode())


def encode_lease(record: LeaseRecord) -> bytes:
    return seal(_LEASE.pack(*record))


def encode_new_lease(expires_at_ms: int, now_ms: int, count: int, claim: bytes, worker: bytes) -> bytes:
    """As `new_lease`, at once in bytes."""
    body = _pack_lease(V1, expires_at_ms, now_ms, count, count, 0, claim, worker)
    return body + pack_crc(crc32(body))


def decode_lease(value: bytes, lease: bytes) -> LeaseRecord:
    if len(value) == _LEASE_BYTES and crc32(value[:-4]) == unpack_crc(value, _LEASE_BYTES - 4)[0] and value[0] == V1:
        return _new(LeaseRecord, _unpack_lease(value))
    raise damaged(f"lease {lease.hex()}", value)


_LEASE_JOB = Struct(">16sQ")


def encode_lease_jobs(jobs: Sequence[tuple[bytes, int]]) -> bytes:
    pack = _LEASE_JOB.pack
    return seal(_V1 + b"".join([pack(job, token) for job, token in jobs]))


def encode_lease_job(job: bytes, token: int) -> bytes:
    """As `encode_lease_jobs`, of one."""
    body = _V1 + _LEASE_JOB.pack(job, token)
    return body + pack_crc(crc32(body))


def decode_lease_jobs(value: bytes, lease: bytes) -> list[tuple[bytes, int]]:
    """(job, token) of everything a lease was given."""
    body = unseal(f"the jobs of lease {lease.hex()}", value)
    return list(_LEASE_JOB.iter_unpack(body[1:]))


_CLAIM = Struct(">B16s16sB")


class ClaimRecord(NamedTuple):
    """A claim made with an id: its lease, a digest of what was asked for, whether it ended by expiry."""

    version: int
    lease: bytes
    asked: bytes
    expired: int


def encode_claim(lease: bytes, asked: bytes, expired: bool = False) -> bytes:
    return seal(_CLAIM.pack(V1, lease, asked, expired))


def decode_claim(value: bytes) -> ClaimRecord:
    body = unseal("a remembered claim", value)
    if len(body) != _CLAIM.size:
        raise damaged("a remembered claim", value)
    return ClaimRecord._make(_CLAIM.unpack(body))


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_REQUEST = Struct(">BQ16sHB")


class RequestRecord(NamedTuple):
    """The outcome of a request made with an id. The answer's first part follows, if it has further ones."""

    version: int
    until_ms: int
    #: Stands for the verb and its arguments.
    asked: bytes
    parts: int
    failed: int
    answer: bytes


def encode_request(until_ms: int, asked: bytes, failed: bool, answer: bytes) -> tuple[bytes, list[bytes]]:
    """The outcome's row, and the sealed further parts of a large answer."""
    parts = split_parts(answer, PART_BYTES)
    return seal(_REQUEST.pack(V1, until_ms, asked, len(parts), failed) + answer[:PART_BYTES]), parts


def decode_request(value: bytes) -> RequestRecord:
    body = unseal("a request's outcome", value)
    if len(body) < _REQUEST.size:
        raise damaged("a request's outcome", value)
    return RequestRecord._make((*_REQUEST.unpack_from(body), body[_REQUEST.size :]))


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_BUCKET = Struct(">BQ")


def encode_bucket(full_at_ns: int) -> bytes:
    return seal(_BUCKET.pack(V1, full_at_ns))


def decode_bucket(value: bytes | None) -> int:
    """When it is full again, in nanoseconds of the store's time; one that was never taken from is full."""
    if value is None:
        return 0
    body = unseal("a rate's bucket", value)
    if len(body) != _BUCKET.size:
        raise damaged("a rate's bucket", value)
    full_at_ns: int = _BUCKET.unpack(body)[1]
    return full_at_ns


# ── dedup, counters ──────────────────────────────────────────────────────────────────────────────────────────────────

_DEDUP = Struct(">B16s16sQ")


class DedupRecord(NamedTuple):
    version: int
    job: bytes
    payload_digest: bytes
    until_ms: int


def encode_dedup(job: bytes, payload_digest: bytes, until_ms: int) -> bytes:
    return seal(_DEDUP.pack(V1, job, payload_digest, until_ms))


def decode_dedup(value: bytes) -> DedupRecord:
    body = unseal("an idempotency key's row", value)
    if len(body) != _DEDUP.size:
        raise damaged("an idempotency key's row", value)
    return DedupRecord._make(_DEDUP.unpack(body))


COUNT_MASK = 2**64 - 1
COUNT_BYTES = 12  # a u64 and its CRC: engines that add atomically keep the same shape


def encode_count(value: int) -> bytes:
    body = _COUNT.pack(value & COUNT_MASK)
    return body + crc32(body).to_bytes(4, "big")


def decode_count(value: bytes | None) -> int:
    if value is None:
        return 0
    if len(value) != COUNT_BYTES or crc32(value[:8]) != int.from_bytes(value[8:], "big"):
        raise Corrupt("a counter is damaged")
    count: int = _COUNT.unpack(value[:8])[0]
    # A counter that was taken below zero wraps; shown as negative, it is plainly wrong, and `check` says so.
    return count if count < 1 << 63 else count - (1 << 64)


# ── journal ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_JOURNAL = Struct(">BBHQQ")  # version, reserved, events, first event's number, time
_EVENT = Struct(">BBBBI16s16sQIIQQII")
EVENT_BYTES = _EVENT.size
EVENTS_A_ROW = 1000
REF_BITS = 10

#: The pieces of an event, for those who write many at once: head + job + lease + middle + text reference.
pack_event_head = Struct(">BBBBI").pack  # change, state, priority, reason, queue
pack_event_middle = Struct(">QIIQQ").pack  # token, attempt, max_attempts, at, previous
pack_event_text = Struct(">II").pack  # offset in the row's tail, bytes
NO_TEXT = bytes(8)


#: A journal row of one event: the row's header, the event's head, and its other fields; a tail of text and a CRC follow.
pack_lone_event = Struct(">BBHQQ8s16s16sQIIQQII").pack


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
    return encode_journal_row(len(events), first_number, time_ms, b"".join(events) + tail)


def encode_journal_row(events: int, first_number: int, time_ms: int, rest: bytes) -> bytes:
    """As `encode_journal`, of events that are one piece of bytes already."""
    body = _JOURNAL.pack(V1, 0, events, first_number, time_ms) + rest
    return body + crc32(body).to_bytes(4, "big")


def decode_journal_header(value: bytes) -> JournalHeader:
    """The header alone, its CRC unchecked: for the writer, who wrote the row."""
    if len(value) < _JOURNAL.size + 4 or value[0] != V1:
        raise damaged("a journal row", value)
    return JournalHeader(*_JOURNAL.unpack_from(value)[2:])


def decode_journal(value: bytes, commit: int) -> JournalRow:
    body = unseal(f"journal row {commit}", value)
    if len(body) < _JOURNAL.size:
        raise damaged(f"journal row {commit}", value)
    header = JournalHeader(*_JOURNAL.unpack_from(body)[2:])
    end = _JOURNAL.size + header.events * EVENT_BYTES
    try:
        events = [EventRecord._make(fields) for fields in _EVENT.iter_unpack(body[_JOURNAL.size : end])]
    except StructError:
        events = []
    if len(events) != header.events:
        raise Corrupt(f"journal row {commit} is cut short")
    return JournalRow(header, events, body[end:])


def event_ref(commit: int, index: int) -> int:
    return commit << REF_BITS | index


def split_ref(ref: int) -> tuple[int, int]:
    return ref >> REF_BITS, ref & (1 << REF_BITS) - 1
