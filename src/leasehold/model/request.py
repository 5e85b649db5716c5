"""What users ask for, checked and in stored units: the only form in which a backend sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from leasehold.errors import InvalidArgument, TooLarge
from leasehold.model.durations import duration_ms, moment_ms
from leasehold.model.ids import job_id_bytes
from leasehold.model.job import MAX_HEADERS_BYTES, MAX_PAYLOAD, NewJob, Where
from leasehold.model.names import MAX_KEY_BYTES, short_text
from leasehold.model.retry import MAX_ATTEMPTS, whole_number


class JobRequest(NamedTuple):
    """A checked `NewJob`. `at_ms` is a moment of the calendar; the store turns it into its own time."""

    payload: bytes
    delay_ms: int = 0
    at_ms: int | None = None
    priority: int = 0
    key: str | None = None
    max_attempts: int | None = None
    ttl_ms: int | None = None
    headers: dict[str, str] | None = None


_PLAIN = tuple(JobRequest(b""))[1:]
_new = tuple.__new__


def job_request(job: object) -> JobRequest:
    """Check a job as users give it: bytes, or a `NewJob`."""
    if type(job) is bytes and len(job) <= MAX_PAYLOAD:
        return _new(JobRequest, (job, *_PLAIN))  # the commonest job, made the quickest way
    if not isinstance(job, NewJob):
        if isinstance(job, (bytes, bytearray, memoryview)):
            return JobRequest(checked_bytes("payload", job))
        raise InvalidArgument(f"a job is bytes or a NewJob, not {type(job).__name__}")
    delay, at, ttl, max_attempts, headers, key = job.delay, job.at, job.ttl, job.max_attempts, job.headers, job.key
    if delay is not None and at is not None:
        raise InvalidArgument("give delay or at, not both")
    return JobRequest(
        checked_bytes("payload", job.payload),
        0 if delay is None else duration_ms("delay", delay),
        None if at is None else moment_ms("at", at),
        job.priority
        if job.priority == 0 and type(job.priority) is int
        else whole_number("priority", job.priority, 0, 9),
        None if key is None else short_text("key", key, MAX_KEY_BYTES),
        None if max_attempts is None else whole_number("max_attempts", max_attempts, 1, MAX_ATTEMPTS),
        None if ttl is None else duration_ms("ttl", ttl, minimum_ms=1),
        checked_headers(headers) if headers else None,
    )


def checked_bytes(what: str, data: object) -> bytes:
    if type(data) is not bytes:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise InvalidArgument(f"{what} must be bytes, not {type(data).__name__}: encode it first")
        data = bytes(data)
    if len(data) > MAX_PAYLOAD:
        raise TooLarge(f"the {what}", len(data), MAX_PAYLOAD)
    return data


def checked_headers(headers: object) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise InvalidArgument(f"headers must be a mapping of strings, not {type(headers).__name__}")
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgument(f"headers map strings to strings: {name!r}: {value!r}")
        try:
            size += len(name.encode()) + len(value.encode())
        except UnicodeEncodeError:
            raise InvalidArgument(f"header {name!r} is not valid Unicode") from None
    if size > MAX_HEADERS_BYTES:
        raise TooLarge("the headers", size, MAX_HEADERS_BYTES)
    return dict(headers)


def number(value: object) -> float:
    """The number, or NaN, which no comparison accepts."""
    return float(value) if isinstance(value, (int, float)) else float("nan")


class ReplayRequest(NamedTuple):
    ids: tuple[bytes, ...] | None = None
    error: str | None = None
    reason: str | None = None
    since_ms: int | None = None
    before_ms: int | None = None
    limit: int | None = None
    #: Milliseconds between two replayed jobs' visible_at; 0: all at once.
    spacing_ms: float = 0.0
    dry_run: bool = False


def replay_request(ids: object, where: object, limit: int | None, rate: float | None, dry_run: bool) -> ReplayRequest:
    if ids is not None and (isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable)):
        raise InvalidArgument("ids is a list of job ids")
    if where is not None and not isinstance(where, Where):
        raise InvalidArgument(f"where is a Where, not {type(where).__name__}")
    where = where or Where()
    if where.reason not in (None, "max_attempts", "failed"):
        raise InvalidArgument(f"reason {where.reason!r}: max_attempts or failed")
    if rate is not None and (isinstance(rate, bool) or not 0.001 <= number(rate) <= 1_000_000):
        raise InvalidArgument(f"rate={rate!r} is jobs a second, from 0.001 to 1,000,000")
    return ReplayRequest(
        None if ids is None else tuple(job_id_bytes(job) for job in ids),
        where.error,
        where.reason,
        None if where.since is None else moment_ms("since", where.since),
        None if where.before is None else moment_ms("before", where.before),
        None if limit is None else whole_number("limit", limit, 1, 2**40),
        0.0 if rate is None else 1000 / rate,
        bool(dry_run),
    )
