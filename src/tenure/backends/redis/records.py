"""The records that Lua and its clients write; `lua/10_records.lua` describes Lua's own.

A body carries a CRC-32 by the client that wrote it, a state a weighted sum over its fields, a lease and a journal row
the first digits of a SHA-1, the only digest in Lua there. Decoders raise `Corrupt` on any mismatch.
"""

from __future__ import annotations

import hashlib
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

import msgspec

from tenure.errors import Corrupt
from tenure.model.durations import duration_ms
from tenure.model.group import GroupPolicy
from tenure.model.rate import Rate
from tenure.model.retry import Policy
from tenure.model.schedule import Schedule
from tenure.model.step import Step, StepKind
from tenure.storage.checksum import crc32
from tenure.storage.records import decode_headers

#: Flags of a state: which further records a job has. Stored: do not renumber.
FLAGS = {
    "HAS_KEY": 1, "HAS_ERROR": 2, "HAS_PROGRESS": 4, "HAS_RESULT": 8, "HAS_GROUP": 16, "HAS_CHILDREN": 32, "HAS_PARENTS": 64,
    "HAS_STEPS": 128,
}  # fmt: skip
HAS_KEY, HAS_GROUP = FLAGS["HAS_KEY"], FLAGS["HAS_GROUP"]
HAS_PARENTS, HAS_STEPS = FLAGS["HAS_PARENTS"], FLAGS["HAS_STEPS"]

WISH = Struct(">BBIQQ")  # priority, flags, max_attempts (0: the policy's), delay, ttl (0: none)
KEYED = Struct(">I16s16sB")  # index, digest of the key, digest of the payload, 1 if another payload is no conflict
SETTLE = Struct(">B16s16sQ")  # verb, job, lease, token
DELIVERY = Struct(">16sQIIBQ")  # job, token, attempt, max_attempts, priority, created
WOKEN = Struct(">IQ")  # waiters to wake, when something is due
TIME = Struct(">Q")
PLACE = Struct(">Q16s")  # when a job becomes ready, and its id: the position in a list of upcoming jobs
CONFLICT = Struct(">I16sI")  # a job's index, the job that holds its key, or (no id) an index of this call
THERE = Struct(">I16s")  # index of a job in its call, the existing job
DISCARD = Struct(">16sQ")  # job, the token it must still have
LINKS = Struct(">IBI")  # index of a job in its call, on_parent_dead, how many parents; 16 bytes for each follow
PARENT_HERE = Struct(">12sI")  # a parent in the same call: zeros, its index
STEPS = Struct(
    ">IQQ"
)  # how many steps, their bytes, token of the delivery that began to wait; the awaited signal follows
STEP = Struct(">IQ")  # position among the steps of its job, when it was stored; its value follows
RESTORED_STEP = Struct(">1sIIQ")  # its kind, lengths of its name and value, when it was stored; name and value follow
RESTORED_PARENT = Struct(">16sB")  # a parent, and whether it had ended
SCHEDULE = Struct(">BQQ")  # whether it is paused, when it was created, when its last pause ended; the schedule follows
WAITS = Struct(">IB")  # parents that have not ended, on_parent_dead
#: How many bytes of a SHA-1 seal a record.
SEAL_BYTES = 8


def _sealed(prefix: bytes, row: bytes) -> bytes:
    return hashlib.sha1(prefix + row, usedforsecurity=False).hexdigest()[:SEAL_BYTES].encode()


# ── bodies ───────────────────────────────────────────────────────────────────────────────────────────────────────────

BODY = Struct(">BHI")  # version, bytes of key, bytes of headers
#: The version of a body with a group: the group's name follows the key and a zero byte, and counts as part of the key.
GROUP_BODY = 2
_PLAIN = BODY.pack(1, 0, 0)


class Body(NamedTuple):
    key: str | None
    headers: dict[str, str]
    payload: bytes
    group: str | None = None


def encode_body(payload: bytes, key: bytes, headers: bytes, group: bytes = b"") -> bytes:
    if group:
        names = key + b"\0" + group
        head = BODY.pack(GROUP_BODY, len(names), len(headers)) + names + headers
    else:
        head = BODY.pack(1, len(key), len(headers)) + key + headers if key or headers else _PLAIN
    body = head + payload
    return body + crc32(body).to_bytes(4, "big")


def plain_body(payload: bytes) -> bytes:
    """Encode a body without key and headers, the most common kind."""
    body = _PLAIN + payload
    return body + crc32(body).to_bytes(4, "big")


def decode_body(value: bytes, job: bytes) -> Body:
    body = value[:-4]
    if len(value) < BODY.size + 4 or crc32(body) != int.from_bytes(value[-4:], "big") or value[0] > GROUP_BODY:
        detail = f"its stored payload is damaged ({len(value)} bytes)" if value else "its payload is missing"
        raise Corrupt(detail, job.hex())
    if body.startswith(_PLAIN):
        return Body(None, {}, body[BODY.size :])
    version, names, headers = BODY.unpack_from(body)
    at_headers = BODY.size + names
    at_payload = at_headers + headers
    key, group = body[BODY.size : at_headers], b""
    if version == GROUP_BODY:
        key, _, group = key.rpartition(b"\0")
    return Body(
        key.decode("utf-8", "replace") if key else None,
        decode_headers(body[at_headers:at_payload], job),
        body[at_payload:],
        group.decode("utf-8", "replace") if group else None,
    )


# ── states ───────────────────────────────────────────────────────────────────────────────────────────────────────────

STATE = Struct(">BBBBBIIIQQQQQQ16s")  # the fields of `State`; a checksum of 4 bytes follows
STATE_HEAD = Struct(">BBBBBIIIQQQQQ")  # the fields that are equal for jobs enqueued alike


class State(NamedTuple):
    version: int
    state: int
    priority: int
    reason: int
    flags: int
    attempt: int
    max_attempts: int
    replays: int
    token: int
    created_at_ms: int
    visible_at_ms: int
    ended_at_ms: int
    due_at_ms: int
    last_event: int
    lease: bytes


def decode_state(value: bytes, job: bytes) -> State:
    if len(value) == STATE.size + 4 and value[0] == 1:
        state = State(*STATE.unpack_from(value))
        if _sum(state, job) == int.from_bytes(value[-4:], "big"):
            return state
    raise Corrupt(f"its state is damaged ({len(value)} bytes)", job.hex())


def encode_state(state: State, job: bytes) -> bytes:
    return STATE.pack(*state) + _sum(state, job).to_bytes(4, "big")


# A state's checksum weighs each field by an odd number, and the halves of an 8-byte field separately, so that a change
# of any one is detected. `constants` generates the Lua from these weights. Stored: never change them.
ID_WEIGHTS = (40503, 30011, 20011, 10007)
LEASE_WEIGHT = 3
SMALL_WEIGHTS = {
    "state": 521, "priority": 1031, "reason": 2053, "flags": 4099, "attempt": 8209, "max_attempts": 16411,
    "replays": 32771,
}  # fmt: skip
#: For each 8-byte field, in the order of `State`: the weights of its low and its high half.
WIDE_WEIGHTS = {
    "token": (5, 7), "created": (11, 13), "visible": (17, 19), "ended": (23, 29), "due": (31, 37), "last": (41, 43),
}  # fmt: skip
_ID = Struct(">IIII")
_LOW = 2**32 - 1


def _sum(s: State, job: bytes) -> int:
    total = _id_sum(job) + _id_sum(s.lease) * LEASE_WEIGHT
    small = (s.state, s.priority, s.reason, s.flags, s.attempt, s.max_attempts, s.replays)
    wide = (s.token, s.created_at_ms, s.visible_at_ms, s.ended_at_ms, s.due_at_ms, s.last_event)
    for field, weight in zip(small, SMALL_WEIGHTS.values(), strict=True):
        total += field * weight
    for field, (low, high) in zip(wide, WIDE_WEIGHTS.values(), strict=True):
        total += (field & _LOW) * low + (field >> 32) * high
    return total & _LOW


def _id_sum(raw: bytes) -> int:
    total: int = sum(word * weight for word, weight in zip(_ID.unpack(raw), ID_WEIGHTS, strict=True))
    return total & _LOW


# ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────────

LEASE = Struct(">QQIII16s")  # expires, granted, given, open, lost, claim; the worker's name follows


class Lease(NamedTuple):
    expires_at_ms: int
    worker: str | None


def decode_lease(value: bytes, lease: bytes) -> Lease:
    row, seal = value[:-SEAL_BYTES], value[-SEAL_BYTES:]
    if len(row) < LEASE.size or _sealed(lease, row) != seal:
        raise Corrupt(f"lease {lease.hex()} is damaged")
    return Lease(LEASE.unpack_from(row)[0], row[LEASE.size :].decode("utf-8", "replace") or None)


# ── notes ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_PROGRESS = Struct(">d")


def encode_progress(fraction: float, note: str | None) -> bytes:
    return _PROGRESS.pack(fraction) + (b"\0" if note is None else b"\1" + note.encode())


def decode_progress(value: bytes | None) -> tuple[float | None, str | None]:
    if value is None:
        return None, None
    return _PROGRESS.unpack_from(value)[0], value[9:].decode("utf-8", "replace") if value[8:9] == b"\1" else None


def encode_result(result: bytes) -> bytes:
    return result + crc32(result).to_bytes(4, "big")


def decode_result(value: bytes | None, job: bytes) -> bytes | None:
    if value is None:
        return None
    if crc32(value[:-4]) != int.from_bytes(value[-4:], "big"):
        raise Corrupt("its result is damaged", job.hex())
    return value[:-4]


_STEP_KINDS: dict[bytes, StepKind] = {b"s": "step", b"g": "signal"}


def decode_step(job: bytes, field: bytes, value: bytes) -> tuple[int, Step]:
    """Return a step or a signal, and its position among those of its job. Raises Corrupt."""
    row, kind = value[:-SEAL_BYTES], _STEP_KINDS.get(field[:1])
    if kind is None or len(row) < STEP.size or _sealed(job + field, row) != value[-SEAL_BYTES:]:
        raise Corrupt("a step of it is damaged", job.hex())
    place, stored_at_ms = STEP.unpack_from(row)
    return place, Step(name=field[1:].decode(), kind=kind, value=row[STEP.size :], stored_at_ms=stored_at_ms)


# ── schedules ────────────────────────────────────────────────────────────────────────────────────────────────────────

_schedule = msgspec.msgpack.Decoder(Schedule)


def encode_schedule(schedule: Schedule) -> bytes:
    """Encode the part after `SCHEDULE`, whose fields take precedence over those in it."""
    return msgspec.msgpack.encode(schedule)


def decode_schedule(name: bytes, value: bytes) -> Schedule:
    """Raises Corrupt."""
    row = value[:-SEAL_BYTES]
    if len(row) < SCHEDULE.size or _sealed(name, row) != value[-SEAL_BYTES:]:
        raise Corrupt(f"the schedule {name.decode('utf-8', 'replace')} is damaged")
    paused, created_at_ms, resumed_at_ms = SCHEDULE.unpack_from(row)
    stored = _schedule.decode(row[SCHEDULE.size :])
    return msgspec.structs.replace(
        stored, paused=bool(paused), created_at_ms=created_at_ms, resumed_at_ms=resumed_at_ms
    )


# ── rules ────────────────────────────────────────────────────────────────────────────────────────────────────────────

RULES = Struct(">BIQQQQQBBBdddQQd")
KINDS = ("fixed", "linear", "exponential")
JITTERS = ("none", "equal", "full")
_policy = msgspec.msgpack.Decoder(Policy)
encode_msgpack = msgspec.msgpack.Encoder().encode


def encode_rules(policy: Policy, partitions: int = 1) -> bytes:
    """Encode a policy as numbers for Lua. Each partition gets its share of the limits."""
    backoff = policy.backoff
    rate = policy.rate if isinstance(policy.rate, Rate) else None
    return RULES.pack(
        0,
        policy.max_attempts,
        *(duration_ms(name, getattr(policy, name)) for name in ("lease", "retention", "result_retention")),
        duration_ms("dedup_window", policy.dedup_window),
        _share(policy.max_waiting, partitions),
        policy.backoff_on_expiry,
        KINDS.index(backoff.kind),
        JITTERS.index(backoff.jitter),
        backoff.base,
        backoff.factor,
        backoff.cap,
        _share(policy.max_leased, partitions),
        0 if rate is None else _share(rate.capacity, partitions),
        0.0 if rate is None else float(rate.interval_ns * partitions),
    )


GROUP_RULES = Struct(">QQdd")  # max_leased (0: any), burst (0: any), interval, weight


def encode_group_rules(policy: Policy) -> list[bytes]:
    """Encode a policy's rules for groups as pairs of name and rules; the empty name is for all other groups.

    A group is in one partition, so its limits are not shared out.
    """
    named = {"": policy.group, **policy.groups}
    return [part for name, group in named.items() if group is not None for part in (name.encode(), _rules_of(group))]


def _rules_of(group: GroupPolicy) -> bytes:
    rate = group.rate if isinstance(group.rate, Rate) else None
    return GROUP_RULES.pack(
        group.max_leased or 0,
        0 if rate is None else rate.capacity,
        0.0 if rate is None else float(rate.interval_ns),
        group.weight,
    )


def _share(limit: int | None, partitions: int) -> int:
    return 0 if limit is None else max(1, limit // partitions)


def decode_policy(raw: bytes) -> Policy:
    if not raw:
        return Policy()
    try:
        return _policy.decode(raw)
    except msgspec.DecodeError as exc:
        raise Corrupt(f"a queue's policy cannot be read: {exc}") from exc


# ── the journal ──────────────────────────────────────────────────────────────────────────────────────────────────────

ROW = Struct(">BQQH")  # version, time, number of the first event, how many
GROUP = Struct(">BBBBIQ16sHIB")  # change state priority reason max_attempts at lease count text's bytes, more follows
REST = Struct(">QIQ")  # token, attempt, position of the job's previous event


class StoredEvent(NamedTuple):
    change: int
    state: int
    priority: int
    reason: int
    max_attempts: int
    at_ms: int
    lease: bytes
    text: bytes
    job: bytes
    token: int
    attempt: int
    previous: int


class Row(NamedTuple):
    commit: int
    time_ms: int
    first_number: int
    events: list[StoredEvent]


def row_time(value: bytes) -> int:
    return int(ROW.unpack_from(value, SEAL_BYTES)[1])


def decode_row(commit: int, value: bytes) -> Row:
    seal, row = value[:SEAL_BYTES], value[SEAL_BYTES:]
    if len(row) < ROW.size or _sealed(b"", row) != seal or row[0] != 1:
        raise Corrupt(f"journal row {commit} is damaged")
    _, time_ms, first, count = ROW.unpack_from(row)
    events: list[StoredEvent] = []
    at = ROW.size
    try:
        while at < len(row):
            *head, jobs, text_bytes, more = GROUP.unpack_from(row, at)
            at += GROUP.size
            text = row[at : at + text_bytes]
            at += text_bytes
            rest_at = at + 16 * jobs
            for index in range(jobs):
                job = row[at + 16 * index : at + 16 * index + 16]
                rest = REST.unpack_from(row, rest_at + REST.size * index) if more else (0, 0, 0)
                events.append(StoredEvent._make((*head, text, job, *rest)))
            at = rest_at + (REST.size * jobs if more else 0)
    except StructError as exc:
        raise Corrupt(f"journal row {commit} cannot be read") from exc
    if len(events) != count:
        raise Corrupt(f"journal row {commit} has {len(events)} events instead of {count}")
    return Row(commit, time_ms, first, events)
