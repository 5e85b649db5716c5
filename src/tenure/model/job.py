"""Jobs as users give them (`NewJob`), as they are told of them (`Enqueued`), and as they look at them (`Job`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from tenure.model.durations import Duration, Moment, as_datetime

#: Payload and result limits; what is larger belongs elsewhere, with a reference in the job.
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
    #: The queue it goes to, of the same tenant. None: the queue that is called.
    queue: str | None = None
    #: What other jobs of the same call name it by, in `after`: "#fetch" is the job with the name "fetch".
    name: str | None = None
    #: Its parents: it is `blocked` until all of them are done. What an enqueue returned, a job's id, or "#name".
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
    """A job to look at. It proves nothing: only a `Delivery` settles."""

    id: str
    tenant: str
    queue: str
    #: blocked, scheduled, ready, leased, done or dead ("removed" only from `wait_for`, of a job that was cancelled or purged)
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
    #: Of a dead job: max_attempts or failed.
    reason: str | None
    error: str | None
    result: bytes | None
    progress: float | None
    progress_note: str | None
    #: Of a leased job.
    lease_id: str | None
    lease_until_ms: int | None
    worker: str | None
    #: When it goes by itself: its ttl while nobody has claimed it, its retention once done.
    due_at_ms: int | None = None
    group: str | None = None
    #: Whether it was enqueued to run after others (`queue.parents`), and whether it has steps or signals (`queue.steps`).
    has_parents: bool = False
    has_steps: bool = False
    #: Of a blocked job, what a dead parent means: cancel, run or wait.
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
    """A job that is gone, from what was last seen of it: `done` and not kept, or `removed`."""
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
    """A parent of a job, and what it left behind. `state` is "gone" once it is no longer kept."""

    id: str
    queue: str
    state: str
    result: bytes | None = None
    error: str | None = None


class ChildJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that waits or waited for another one. `state` is "gone" once it is no longer kept."""

    id: str
    queue: str
    state: str


class Page(msgspec.Struct, frozen=True):
    """Some jobs, and where to go on: pass `cursor` to the next call; None means this was the last page."""

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
    #: Since when the oldest ready job has been ready; None: there is none, or it is not known.
    oldest_at_ms: int | None = None


class QueueDepth(msgspec.Struct, frozen=True, kw_only=True):
    """How full a queue is, by its counters."""

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
    """Which dead jobs: those whose last error contains `error`, that died since / before a moment, for a reason."""

    error: str | None = None
    since: Moment | None = None
    before: Moment | None = None
    reason: str | None = None


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay did, or with `dry_run` would do. `skipped`: ids asked for that are not dead."""

    count: int
    ids: list[str]
    skipped: list[str]
    dry_run: bool
    #: When the last of them is visible (replays may be spaced by `rate`).
    last_visible_at_ms: int | None = None


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore did, by job id. `there`: was there already, as it is to be; `refused`: why it could not be put in."""

    added: list[str]
    there: list[str]
    refused: dict[str, str]


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """What one sweep did. `more`: it stopped at its bound with work left."""

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
