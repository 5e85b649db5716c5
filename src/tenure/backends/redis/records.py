"""Bytes as the Lua and its clients write them; the Lua's own are described in `lua/10_records.lua`.

A body is sealed by the client that wrote it (CRC-32), a state by a sum over its fields, a lease and a row of the journal by
the first digits of a SHA-1, the only digest Lua has there. Decoders raise `Corrupt`; they never guess.
"""

from __future__ import annotations

import hashlib
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

import msgspec

from tenure.errors import Corrupt
from tenure.model.durations import duration_ms
from tenure.model.ids import NO_ID
from tenure.model.rate import Rate
from tenure.model.retry import Policy
from tenure.storage.checksum import crc32
from tenure.storage.records import decode_headers

HAS_KEY, HAS_ERROR, HAS_PROGRESS, HAS_RESULT = 1, 2, 4, 8

WISH = Struct(">BBIQQ")  # priority, flags, max_attempts (0: the policy's), delay, ttl (0: none)
KEYED = Struct(">I16s16sB")  # index, digest of the key, digest of the payload, 1 if another payload is no conflict
SETTLE = Struct(">B16s16sQ")  # verb, job, lease, token
DELIVERY = Struct(">16sQIIBQ")  # job, token, attempt, max_attempts, priority, created
WOKEN = Struct(">IQ")  # waiters to wake, when something is due
TIME = Struct(">Q")
_SEAL = 8


def _sealed(prefix: bytes, row: bytes) -> bytes:
    return hashlib.sha1(prefix + row, usedforsecurity=False).hexdigest()[:_SEAL].encode()


# ── bodies ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_BODY = Struct(">BHI")  # version, bytes of key, bytes of headers
_PLAIN = _BODY.pack(1, 0, 0)


class Body(NamedTuple):
    key: str | None
    headers: dict[str, str]
    payload: bytes


def encode_body(payload: bytes, key: bytes, headers: bytes) -> bytes:
    body = (_BODY.pack(1, len(key), len(headers)) + key + headers if key or headers else _PLAIN) + payload
    return body + crc32(body).to_bytes(4, "big")


def plain_body(payload: bytes) -> bytes:
    """The commonest one: no key, no headers."""
    body = _PLAIN + payload
    return body + crc32(body).to_bytes(4, "big")


def decode_body(value: bytes, job: bytes) -> Body:
    body = value[:-4]
    if len(value) < _BODY.size + 4 or crc32(body) != int.from_bytes(value[-4:], "big") or value[0] != 1:
        detail = f"its stored payload is damaged ({len(value)} bytes)" if value else "its payload is missing"
        raise Corrupt(detail, job.hex())
    if body.startswith(_PLAIN):
        return Body(None, {}, body[_BODY.size :])
    _, key, headers = _BODY.unpack_from(body)
    at_headers = _BODY.size + key
    at_payload = at_headers + headers
    text = body[_BODY.size : at_headers].decode("utf-8", "replace") if key else None
    return Body(text, decode_headers(body[at_headers:at_payload], job), body[at_payload:])


# ── states ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_STATE = Struct(">BBBBBIIIQQQQQQ16s")


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
    if len(value) == _STATE.size + 4 and value[0] == 1:
        state = State(*_STATE.unpack_from(value))
        if _sum(state, job) == int.from_bytes(value[-4:], "big"):
            return state
    raise Corrupt(f"its state is damaged ({len(value)} bytes)", job.hex())


def encode_state(state: State, job: bytes) -> bytes:
    return _STATE.pack(*state) + _sum(state, job).to_bytes(4, "big")


_ID = Struct(">IIII")
_LOW = 2**32 - 1


def _sum(s: State, job: bytes) -> int:
    """As `L.sum` has it."""
    total = _id_sum(job) + _id_sum(s.lease) * 3
    total += s.state * 521 + s.priority * 1031 + s.reason * 2053 + s.flags * 4099 + s.attempt * 8209
    total += s.max_attempts * 16411 + s.replays * 32771
    for field, low, high in (
        (s.token, 5, 7), (s.created_at_ms, 11, 13), (s.visible_at_ms, 17, 19), (s.ended_at_ms, 23, 29),
        (s.due_at_ms, 31, 37), (s.last_event, 41, 43),
    ):  # fmt: skip
        total += (field & _LOW) * low + (field >> 32) * high
    return total & _LOW


def _id_sum(raw: bytes) -> int:
    a, b, c, d = _ID.unpack(raw)
    return int(a * 40503 + b * 30011 + c * 20011 + d * 10007) & _LOW


# ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_LEASE = Struct(">QQIII16s")


class Lease(NamedTuple):
    expires_at_ms: int
    worker: str | None


def decode_lease(value: bytes, lease: bytes) -> Lease:
    row, seal = value[:-_SEAL], value[-_SEAL:]
    if len(row) < _LEASE.size or _sealed(lease, row) != seal:
        raise Corrupt(f"lease {lease.hex()} is damaged")
    return Lease(_LEASE.unpack_from(row)[0], row[_LEASE.size :].decode("utf-8", "replace") or None)


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


# ── rules ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_RULES = Struct(">BIQQQQQBBBdddQQd")
_KINDS = ("fixed", "linear", "exponential")
_JITTERS = ("none", "equal", "full")
_policy = msgspec.msgpack.Decoder(Policy)
encode_msgpack = msgspec.msgpack.Encoder().encode


def encode_rules(policy: Policy, partitions: int = 1) -> bytes:
    """A policy as the Lua reads it: numbers only. Of its limits, a partition has its share."""
    backoff = policy.backoff
    rate = policy.rate if isinstance(policy.rate, Rate) else None
    return _RULES.pack(
        0,
        policy.max_attempts,
        *(duration_ms(name, getattr(policy, name)) for name in ("lease", "retention", "result_retention")),
        duration_ms("dedup_window", policy.dedup_window),
        _share(policy.max_waiting, partitions),
        policy.backoff_on_expiry,
        _KINDS.index(backoff.kind),
        _JITTERS.index(backoff.jitter),
        backoff.base,
        backoff.factor,
        backoff.cap,
        _share(policy.max_leased, partitions),
        0 if rate is None else _share(rate.capacity, partitions),
        0.0 if rate is None else float(rate.interval_ns * partitions),
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

_ROW = Struct(">BQQH")  # version, time, number of the first event, how many
_GROUP = Struct(">BBBBIQ16sHIB")  # change state priority reason max_attempts at lease count text's bytes, more follows
_REST = Struct(">QIQ")  # token, attempt, place of the job's event before this


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
    return int(_ROW.unpack_from(value, _SEAL)[1])


def decode_row(commit: int, value: bytes) -> Row:
    seal, row = value[:_SEAL], value[_SEAL:]
    if len(row) < _ROW.size or _sealed(b"", row) != seal or row[0] != 1:
        raise Corrupt(f"journal row {commit} is damaged")
    _, time_ms, first, count = _ROW.unpack_from(row)
    events: list[StoredEvent] = []
    at = _ROW.size
    try:
        while at < len(row):
            *head, jobs, text_bytes, more = _GROUP.unpack_from(row, at)
            at += _GROUP.size
            text = row[at : at + text_bytes]
            at += text_bytes
            rest_at = at + 16 * jobs
            for index in range(jobs):
                job = row[at + 16 * index : at + 16 * index + 16]
                rest = _REST.unpack_from(row, rest_at + _REST.size * index) if more else (0, 0, 0)
                events.append(StoredEvent._make((*head, text, job, *rest)))
            at = rest_at + (_REST.size * jobs if more else 0)
    except StructError as exc:
        raise Corrupt(f"journal row {commit} cannot be read") from exc
    if len(events) != count:
        raise Corrupt(f"journal row {commit} has {len(events)} events instead of {count}")
    return Row(commit, time_ms, first, events)


NO_LEASE = NO_ID
