"""Checked requests in stored units. Backends get requests only in this form."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Literal, NamedTuple, overload

import msgspec
from msgspec.structs import astuple

from tenure.errors import InvalidArgument, TooLarge
from tenure.model.durations import Duration, duration_ms, moment_ms
from tenure.model.ids import NO_ID, job_id_bytes
from tenure.model.job import MAX_ERROR_CHARS, MAX_HEADERS_BYTES, MAX_PAYLOAD, Enqueued, Job, NewJob, OnParentDead, Where
from tenure.model.lifecycle import Reason
from tenure.model.names import MAX_KEY_BYTES, checked, short_text
from tenure.model.retry import MAX_ATTEMPTS, whole_number


class FlowPart(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The checked fields of a `NewJob` that concern flows; most jobs have none.

    The garbage collector does not track it: one call may make 100,000 of them, and they cannot be part of a cycle.
    """

    #: The job's queue; None: the queue whose `enqueue` was called.
    queue: str | None = None
    name: str | None = None
    #: The parents without repetition: ids, and names of jobs of the same call.
    after: tuple[bytes | str, ...] = ()
    on_parent_dead: OnParentDead = "cancel"


class JobRequest(NamedTuple):
    """A checked `NewJob`. `at_ms` is calendar time; the store converts it to its own time."""

    payload: bytes
    delay_ms: int = 0
    at_ms: int | None = None
    priority: int = 0
    key: str | None = None
    max_attempts: int | None = None
    ttl_ms: int | None = None
    headers: dict[str, str] | None = None
    #: When a job with another payload holds the key: raise KeyConflict, or answer with that job as a duplicate.
    on_conflict: Literal["error", "keep"] = "error"
    flow: FlowPart | None = None
    group: str | None = None


_PLAIN = tuple(JobRequest(b""))[1:]
#: The same without the priority and the group.
_PLAIN_BUT_PRIORITY = (*_PLAIN[:2], *_PLAIN[3:-1])
#: Of the fields of a `NewJob` in their order: `delay` and `at`; and those between `priority` and `group`.
_AT_ONCE = (None, None)
_NO_OPTIONS = astuple(NewJob(b""))[4:13]
_new = tuple.__new__
_KIND = repeat(JobRequest)
_PLAIN_EACH = [repeat(value) for value in _PLAIN]
_BYTES, _NEW_JOBS, _INTS = {bytes}, {NewJob}, {int}
_NAMES = {str, type(None)}


def job_request(job: object) -> JobRequest:
    """Check a job given as bytes or as a `NewJob`. Raises InvalidArgument, TooLarge."""
    if type(job) is bytes and len(job) <= MAX_PAYLOAD:
        return _new(JobRequest, (job, *_PLAIN))  # the most frequent case, without a Python call
    if not isinstance(job, NewJob):
        if isinstance(job, (bytes, bytearray, memoryview)):
            return JobRequest(checked_bytes("payload", job))
        raise InvalidArgument(f"a job is bytes or a NewJob, not {type(job).__name__}: {_how_to_encode(job)}")
    fields = astuple(job)
    payload, priority, group = fields[0], fields[3], fields[13]
    plain = fields[4:13] == _NO_OPTIONS and fields[1:3] == _AT_ONCE and type(payload) is bytes
    if plain and len(payload) <= MAX_PAYLOAD and type(priority) is int and 0 <= priority <= 9:
        of = None if group is None else checked("group", group)
        return _new(JobRequest, (payload, 0, None, priority, None, None, None, None, "error", None, of))
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
        checked_on_conflict(job.on_conflict),
        flow_part(job.queue, job.name, job.after, job.on_parent_dead),
        None if job.group is None else checked("group", job.group),
    )


def flow_part(queue: str | None, name: str | None, after: object, on_parent_dead: str) -> FlowPart | None:
    """Check the fields of a `NewJob` that concern flows; None: all have their defaults. Raises InvalidArgument."""
    if after in ((), []) and on_parent_dead == "cancel":
        if name is None and queue is None:
            return None
        place = None if queue is None else checked("queue", queue)
        return FlowPart(place, None if name is None else short_text("name", name, MAX_KEY_BYTES))
    if isinstance(after, (str, bytes, Enqueued)) or not isinstance(after, Iterable):
        raise InvalidArgument("after is a list of jobs: what enqueue returned, ids, or names of jobs of the same call")
    if on_parent_dead not in ("cancel", "run", "wait"):
        raise InvalidArgument(f"on_parent_dead={on_parent_dead!r}: cancel, run or wait")
    return FlowPart(
        None if queue is None else checked("queue", queue),
        None if name is None else short_text("name", name, MAX_KEY_BYTES),
        tuple(dict.fromkeys(map(_parent, after))),
        on_parent_dead,  # type: ignore[arg-type]  # checked above
    )


def unknown_parent(job: bytes) -> InvalidArgument:
    """One error for a parent that never existed, is gone or belongs to another tenant: it must not tell them apart."""
    return InvalidArgument(f"parent {job.hex()} is not there: it was never enqueued by this tenant, or is gone")


def dead_parent(job: bytes) -> InvalidArgument:
    return InvalidArgument(f"parent {job.hex()} is dead: replay it, or say on_parent_dead='run' or 'wait'")


def _parent(given: object) -> bytes | str:
    if isinstance(given, str):
        return given[1:] if given.startswith("#") else job_id_bytes(given)
    if isinstance(given, Enqueued):
        return bytes.fromhex(given.id)
    raise InvalidArgument(f"a parent is what enqueue returned, an id or a #name, not {type(given).__name__}")


#: The most jobs that one `ack(then=…)` may enqueue.
MAX_THEN = 1_000


def follow_ups(jobs: Iterable[object] | None) -> tuple[JobRequest, ...] | None:
    """Check the jobs of `ack(then=…)`; None: there are none. Raises InvalidArgument, TooLarge."""
    if jobs is None:
        return None
    if isinstance(jobs, (bytes, NewJob, str)):
        raise InvalidArgument("then is a list of jobs")
    found = tuple(map(job_request, jobs))
    whole_number("the number of jobs in then", len(found), 0, MAX_THEN)
    return found or None


def checked_on_conflict(given: object) -> Literal["error", "keep"]:
    if given == "error":
        return "error"
    if given == "keep":
        return "keep"
    raise InvalidArgument(f"on_conflict={given!r}: error or keep")


class RequestedJobs(NamedTuple):
    """The jobs of one request, and the request id under which the store keeps its outcome."""

    id: bytes
    jobs: Sequence[JobRequest]


class PlainRequests(Sequence[JobRequest]):
    """Checked jobs that have only a payload. A `JobRequest` is made only when one is read."""

    __slots__ = ("payloads",)

    def __init__(self, payloads: list[bytes]) -> None:
        self.payloads = payloads

    def __len__(self) -> int:
        return len(self.payloads)

    @overload
    def __getitem__(self, index: int) -> JobRequest: ...
    @overload
    def __getitem__(self, index: slice) -> PlainRequests: ...
    def __getitem__(self, index: int | slice) -> JobRequest | PlainRequests:
        if isinstance(index, slice):
            return PlainRequests(self.payloads[index])
        return _new(JobRequest, (self.payloads[index], *_PLAIN))

    def __iter__(self) -> Iterator[JobRequest]:
        return map(_new, _KIND, zip(self.payloads, *_PLAIN_EACH, strict=False))


class ColumnRequests(Sequence[JobRequest]):
    """As `PlainRequests`, of jobs that have a priority and perhaps a group as well."""

    __slots__ = ("groups", "payloads", "priorities")

    def __init__(self, payloads: Sequence[bytes], priorities: Sequence[int], groups: Sequence[str | None]) -> None:
        self.payloads, self.priorities, self.groups = list(payloads), priorities, groups

    def __len__(self) -> int:
        return len(self.payloads)

    @overload
    def __getitem__(self, index: int) -> JobRequest: ...
    @overload
    def __getitem__(self, index: slice) -> ColumnRequests: ...
    def __getitem__(self, index: int | slice) -> JobRequest | ColumnRequests:
        if isinstance(index, slice):
            return ColumnRequests(self.payloads[index], self.priorities[index], self.groups[index])
        fields = (self.payloads[index], *_PLAIN[:2], self.priorities[index], *_PLAIN[3:-1], self.groups[index])
        return _new(JobRequest, fields)

    def __iter__(self) -> Iterator[JobRequest]:
        before, between = _PLAIN_EACH[:2], _PLAIN_EACH[3:-1]
        columns = zip(self.payloads, *before, self.priorities, *between, self.groups, strict=False)
        return map(_new, _KIND, columns)


def job_requests(jobs: Iterable[object]) -> Sequence[JobRequest]:
    """Check jobs given as bytes or `NewJob`. Raises as `job_request`.

    A batch of bytes is checked without Python code for each, and so are jobs with no more than a priority and a group.
    """
    given: list[Any] = list(jobs)
    kinds = set(map(type, given))
    if kinds == _BYTES and max(map(len, given)) <= MAX_PAYLOAD:
        return PlainRequests(given)
    columns = _columns(given) if kinds == _NEW_JOBS else None
    return [job_request(job) for job in given] if columns is None else columns


def _columns(given: Sequence[NewJob]) -> PlainRequests | ColumnRequests | None:
    """The jobs as columns; None: some have other options, or are not valid. Raises InvalidArgument for a group."""
    payloads, delays, moments, priorities, *options, groups = zip(*map(astuple, given), strict=True)
    count = len(given)
    for column, default in zip((delays, moments, *options), (*_AT_ONCE, *_NO_OPTIONS), strict=True):
        if column.count(default) < count:
            return None
    valid = set(map(type, payloads)) == _BYTES and max(map(len, payloads)) <= MAX_PAYLOAD
    if not valid or set(map(type, priorities)) != _INTS or min(priorities) < 0 or max(priorities) > 9:
        return None
    if not set(map(type, groups)) <= _NAMES:
        return None
    for group in dict.fromkeys(groups):
        if group is not None:
            checked("group", group)
    if any(priorities) or groups.count(None) < count:
        return ColumnRequests(payloads, priorities, groups)
    return PlainRequests(list(payloads))


def payloads_of(requests: Sequence[JobRequest]) -> list[bytes]:
    if isinstance(requests, (PlainRequests, ColumnRequests)):
        return requests.payloads
    return [request[0] for request in requests]


def all_plain(requests: Sequence[JobRequest]) -> bool:
    """Whether all jobs have only a payload."""
    return type(requests) is PlainRequests or all(request[1:] == _PLAIN for request in requests)


class AlikeJobs(NamedTuple):
    """Jobs of one call that have only a payload, a priority and perhaps a group, the last two the same for all."""

    priority: int
    group: str | None
    #: Their indexes in the call.
    places: Sequence[int]


def alike_parts(requests: Sequence[JobRequest], most: int) -> list[AlikeJobs] | None:
    """The jobs of a call by their priority and group, in the order of the first of each.

    None: some have more than that, or there would be more than `most` parts.
    """
    if type(requests) is PlainRequests:
        return [AlikeJobs(0, None, range(len(requests)))]
    if type(requests) is ColumnRequests:
        return _alike_columns(requests, most)
    parts: dict[tuple[object, ...], list[int]] = {}
    for place, request in enumerate(requests):
        if request[7] is not None:
            return None  # headers cannot be looked up in a dictionary
        rest = request[1:]
        places = parts.get(rest)
        if places is None:
            if len(parts) >= most or (*rest[:2], *rest[3:-1]) != _PLAIN_BUT_PRIORITY:
                return None
            parts[rest] = [place]
        else:
            places.append(place)
    if len(parts) == 1:
        return [AlikeJobs(requests[0].priority, requests[0].group, range(len(requests)))]
    return [AlikeJobs(requests[places[0]].priority, requests[places[0]].group, places) for places in parts.values()]


def _alike_columns(requests: ColumnRequests, most: int) -> list[AlikeJobs] | None:
    kinds = list(zip(requests.priorities, requests.groups, strict=True))
    parts: dict[tuple[int, str | None], list[int]] = {kind: [] for kind in dict.fromkeys(kinds)}
    if len(parts) > most:
        return None
    if len(parts) == 1:
        return [AlikeJobs(*kinds[0], range(len(kinds)))]
    # No Python code runs for each job.
    deque(map(list.append, map(parts.__getitem__, kinds), range(len(kinds))), maxlen=0)
    return [_new(AlikeJobs, (*kind, places)) for kind, places in parts.items()]


def _how_to_encode(data: object) -> str:
    if isinstance(data, str):
        return "write text.encode()"
    return "write json.dumps(value).encode()" if isinstance(data, (Mapping, list, tuple)) else "encode it first"


def checked_bytes(what: str, data: object) -> bytes:
    if type(data) is not bytes:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise InvalidArgument(f"{what} must be bytes, not {type(data).__name__}: {_how_to_encode(data)}")
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
    """The value as a float; NaN, for which every comparison is false, if it is no number."""
    return float(value) if isinstance(value, (int, float)) else float("nan")


class UpcomingRequest(NamedTuple):
    """A checked query of scheduled jobs that become ready between two points in calendar time."""

    before_ms: int
    after_ms: int
    limit: int
    cursor: str | None
    #: None: all tenants (all queues).
    tenant: str | None
    queues: Collection[str] | None


class StepImage(NamedTuple):
    """A step or a signal of a job to restore."""

    name: str
    kind: Literal["step", "signal"]
    value: bytes
    stored_at_ms: int


class ParentImage(NamedTuple):
    """A parent of a job to restore. `ended`: it was done or gone, so the job no longer waited for it."""

    queue: str
    job: bytes
    ended: bool


class JobImage(NamedTuple):
    """A job to restore into a store: all its fields except its lease and its events."""

    id: bytes
    #: blocked, waiting, done or dead. A leased job becomes waiting.
    state: str
    payload: bytes
    headers: dict[str, str]
    key: str | None
    priority: int
    attempt: int
    max_attempts: int
    token: int
    replays: int
    created_at_ms: int
    visible_at_ms: int
    ended_at_ms: int
    reason: str | None
    error: str | None
    result: bytes | None
    progress: float | None
    progress_note: str | None
    #: The end of its ttl (waiting) or retention (done); 0: none, or by the queue's policy.
    due_at_ms: int
    group: str | None = None
    #: In the order in which the steps were stored.
    steps: tuple[StepImage, ...] = ()
    #: In the order in which the job named them.
    parents: tuple[ParentImage, ...] = ()
    #: For a blocked job.
    on_parent_dead: OnParentDead = "cancel"
    #: The signal that a waiting job waits for.
    waits_for: str | None = None


def job_image(job: object) -> JobImage:
    """Check a `Job`, as `get` and `list` return it. Raises InvalidArgument, TooLarge."""
    if not isinstance(job, Job):
        raise InvalidArgument(f"what is restored is a Job, as get and list give it, not {type(job).__name__}")
    state = "waiting" if job.state in ("ready", "scheduled", "leased", "waiting") else job.state
    if state not in ("blocked", "waiting", "done", "dead"):
        raise InvalidArgument(
            f"job {job.id} is {job.state}: only jobs that are blocked, wait, are leased, done or dead are restored"
        )
    if state == "dead" and job.reason not in ("max_attempts", "failed"):
        raise InvalidArgument(f"job {job.id} is dead for {job.reason!r}: max_attempts or failed")
    if job.result is not None:
        checked_bytes("result", job.result)
    identity = job_id_bytes(job.id)
    if identity == NO_ID:
        raise InvalidArgument(f"{job.id} is not the id of a job: an id of zeros stands for none")
    return JobImage(
        identity,
        state,
        checked_bytes("payload", job.payload),
        checked_headers(job.headers) if job.headers else {},
        None if job.key is None else short_text("key", job.key, MAX_KEY_BYTES),
        whole_number("priority", job.priority, 0, 9),
        whole_number("attempt", job.attempt, 0, MAX_ATTEMPTS),
        whole_number("max_attempts", job.max_attempts, 1, MAX_ATTEMPTS),
        whole_number("token", job.token, 0, 2**62),
        whole_number("replays", job.replays, 0, 2**32 - 1),
        whole_number("created_at_ms", job.created_at_ms, 0, 2**62),
        whole_number("visible_at_ms", job.visible_at_ms, 0, 2**62),
        whole_number("ended_at_ms", job.ended_at_ms or 0, 0, 2**62),
        job.reason if state == "dead" else None,
        None if job.error is None else job.error[:MAX_ERROR_CHARS],
        job.result,
        job.progress,
        job.progress_note,
        # A ttl ends with the first claim.
        0 if state == "waiting" and (job.token or job.state == "leased") else job.due_at_ms or 0,
        None if job.group is None else checked("group", job.group),
    )


class ReplayRequest(NamedTuple):
    ids: tuple[bytes, ...] | None = None
    error: str | None = None
    reason: str | None = None
    since_ms: int | None = None
    before_ms: int | None = None
    limit: int | None = None
    #: Milliseconds between the visibility times of two replayed jobs; 0: all at once.
    spacing_ms: float = 0.0
    dry_run: bool = False
    #: For each of `ids`, the token that the job must still have.
    tokens: tuple[int, ...] | None = None
    #: Milliseconds until the first replayed job is visible.
    delay_ms: int = 0

    def covers(self, reason: int, ended_at_ms: int) -> bool:
        """Whether the request's reason and times match a dead job. Ids, tokens and the error are not compared."""
        return (
            (self.reason is None or Reason(reason).name.lower() == self.reason)
            and (self.since_ms is None or ended_at_ms >= self.since_ms)
            and (self.before_ms is None or ended_at_ms < self.before_ms)
        )


def replay_request(
    ids: object, where: object, limit: int | None, rate: float | None, dry_run: bool, delay: Duration = 0
) -> ReplayRequest:
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
        tuple(whole_number("token", token, 0, 2**63 - 1) for token in ids.values())
        if isinstance(ids, Mapping)
        else None,
        duration_ms("delay", delay),
    )
