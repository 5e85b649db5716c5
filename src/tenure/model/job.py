"""Jobs at the surface: the request (`NewJob`), its answer (`Enqueued`), the view of a stored job (`Job`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from tenure.model.durations import Duration, Moment, as_datetime

#: Payload and result limits. Store larger data elsewhere, and put a reference to it in the job.
MAX_PAYLOAD = 8 * 1024 * 1024
MAX_HEADERS_BYTES = 16 * 1024
MAX_ERROR_CHARS = 8_000
PRIORITIES = 10


OnParentDead = Literal["cancel", "run", "wait"]


class NewJob(msgspec.Struct, frozen=True):
    """A job to enqueue. Only the payload is needed."""

    payload: bytes
    delay: Duration | None = None
    at: Moment | None = None
    priority: int = 0
    key: str | None = None
    max_attempts: int | None = None
    ttl: Duration | None = None
    headers: Mapping[str, str] | None = None
    #: When `key` is held by a job with another payload: "error" raises KeyConflict, "keep" answers with that job.
    on_conflict: Literal["error", "keep"] = "error"
    #: Its queue, of the same tenant. None: the queue whose `enqueue` was called.
    queue: str | None = None
    #: Its name for `after` of other jobs in the same call: "#fetch" is the job named "fetch".
    name: str | None = None
    #: Its parents: it is `blocked` until all of them are done. Each is an `Enqueued`, a job's id or "#name".
    after: Sequence[Enqueued | str] = ()
    #: When a parent is dead: "cancel" removes the job, "run" counts that parent as done, "wait" waits for its replay.
    on_parent_dead: OnParentDead = "cancel"
    #: Jobs of one queue take turns by their group (`GroupPolicy`).
    group: str | None = None


class Enqueued(msgspec.Struct, frozen=True, gc=False):
    """The answer to an enqueue. `duplicate`: the key was seen before, and `id` is the first job's."""

    id: str
    duplicate: bool = False


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A view of a stored job. It is no proof of a lease: only a `Delivery` or its receipt settles."""

    id: str
    tenant: str
    queue: str
    #: blocked, scheduled, ready, leased, done or dead; `wait_for` also returns removed (cancelled or purged).
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
    ended_at_ms: int | None
    #: Why a dead job died: max_attempts or failed.
    reason: str | None
    error: str | None
    result: bytes | None
    progress: float | None
    progress_note: str | None
    #: The lease of a leased job.
    lease_id: str | None
    lease_until_ms: int | None
    worker: str | None
    #: When the store removes it: the end of its ttl until its first claim, the end of its retention once done.
    due_at_ms: int | None = None
    group: str | None = None
    #: Whether it was enqueued with parents (`queue.parents`), and whether it has steps or signals (`queue.steps`).
    has_parents: bool = False
    has_steps: bool = False
    #: What a dead parent does to a blocked job: cancel, run or wait.
    on_parent_dead: OnParentDead | None = None
    #: The signal that it waits for.
    waits_for: str | None = None

    @property
    def created_at(self) -> datetime:
        return as_datetime(self.created_at_ms)

    @property
    def visible_at(self) -> datetime:
        return as_datetime(self.visible_at_ms)

    @property
    def ended_at(self) -> datetime | None:
        return None if self.ended_at_ms is None else as_datetime(self.ended_at_ms)


def ended_as(last: Job, state: str, ended_at_ms: int) -> Job:
    """A job that is no longer stored, made of its last view: `done` without retention, or `removed`."""
    return msgspec.structs.replace(last, state=state, ended_at_ms=ended_at_ms, lease_id=None, lease_until_ms=None)


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """A queue in numbers. `waiting` is exact; with `at_least`, `ready` is a lower bound and `scheduled` the rest."""

    ready: int
    scheduled: int
    leased: int
    done: int
    dead: int
    enqueued: int
    removed: int
    at_least: bool = False
    #: Jobs that wait for other jobs.
    blocked: int = 0

    @property
    def waiting(self) -> int:
        return self.ready + self.scheduled


class ParentResult(msgspec.Struct, frozen=True, kw_only=True):
    """A parent of a job, with its result or error. `state` is "gone" once the store has removed it."""

    id: str
    queue: str
    state: str
    result: bytes | None = None
    error: str | None = None


class ChildJob(msgspec.Struct, frozen=True, kw_only=True):
    """A child of a job, blocked by it now or before. `state` is "gone" once the store has removed it."""

    id: str
    queue: str
    state: str


class Page(msgspec.Struct, frozen=True):
    """A page of jobs. Pass `cursor` to the next call; None means this was the last page."""

    jobs: list[Job]
    cursor: str | None

    def __iter__(self):  # type: ignore[no-untyped-def]  # an iterator of Job; msgspec refuses the generic here
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `store.queues()`."""

    tenant: str
    queue: str
    number: int
    paused: bool
    policy: object
    counts: Counts
    #: When the oldest ready job became ready; None: there is none, or it is not known.
    oldest_at_ms: int | None = None


class QueuePage(msgspec.Struct, frozen=True):
    """A page of queues. Pass `cursor` to the next call; None means this was the last page."""

    queues: list[QueueInfo]
    cursor: str | None


class QueueDepth(msgspec.Struct, frozen=True, kw_only=True):
    """The number of a queue's jobs by state, from its counters."""

    tenant: str
    queue: str
    blocked: int
    waiting: int
    leased: int
    done: int
    dead: int
    #: How long the oldest ready job has been ready; None: there is none, or it is not known.
    oldest_age_ms: int | None


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of dead jobs: `error` is part of the last error, died at or after `since`, before `before`."""

    error: str | None = None
    since: Moment | None = None
    before: Moment | None = None
    reason: str | None = None


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replay, or with `dry_run` of a trial. `skipped`: requested ids that are not dead."""

    count: int
    ids: list[str]
    skipped: list[str]
    dry_run: bool
    #: When the last replayed job becomes visible (`rate` spaces them out).
    last_visible_at_ms: int | None = None


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a restore, by job id. `there`: the store has that job already; `refused`: the reason by id."""

    added: list[str]
    there: list[str]
    refused: dict[str, str]


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one sweep. `more`: it reached its bound, and work is left."""

    leases: int = 0
    jobs_back: int = 0
    jobs_dead: int = 0
    retired: int = 0
    ttl_passed: int = 0
    keys_forgotten: int = 0
    claims_forgotten: int = 0
    writes_forgotten: int = 0
    requests_forgotten: int = 0
    events_trimmed: int = 0
    more: bool = False

    @property
    def total(self) -> int:
        return (
            self.leases
            + self.retired
            + self.ttl_passed
            + self.keys_forgotten
            + self.claims_forgotten
            + self.writes_forgotten
            + self.requests_forgotten
            + self.events_trimmed
        )
