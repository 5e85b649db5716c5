"""Messages to read, administer and repair jobs, queues and the store."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from tenure.errors import InvalidArgument
from tenure.model.event import Event
from tenure.model.ids import job_id_bytes
from tenure.model.job import ChildJob, Counts, ParentResult, QueueInfo
from tenure.model.quota import QuotaInfo
from tenure.model.request import ReplayRequest
from tenure.model.retry import MAX_ATTEMPTS, Policy
from tenure.model.schedule import Missed, Schedule
from tenure.protocol.messages.base import DurationMs, Limit, Request, State, TimeMs
from tenure.storage.engine import Traits


class ListQuery(Request):
    state: State = "ready"
    limit: Limit = 100
    cursor: str | None = None


class KeyQuery(Request):
    key: str


class KeyHolder(Struct, frozen=True):
    """The job that holds an idempotency key."""

    id: str


class ListAllQuery(ListQuery):
    #: Names separated by commas; default: all.
    queues: str | None = None


class QueuesQuery(Request):
    limit: Limit = 1000
    cursor: str | None = None


class GroupsQuery(Request):
    limit: Limit = 100
    cursor: str | None = None


class DeleteQuery(Request):
    #: Drop waiting and dead jobs.
    force: bool = False


class WaitQuery(Request):
    timeout_ms: DurationMs = 10_000


class EventsQuery(Request):
    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    wait_ms: DurationMs = 0
    consumer: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


class NewestQuery(Request):
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 100


class UpcomingQuery(Request):
    before_ms: Annotated[int, Meta(ge=0, le=2**62)] = 2**62
    after_ms: Annotated[int, Meta(ge=0, le=2**62)] = 0
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 100
    cursor: str | None = None
    queues: str | None = None


class EventList(Struct, frozen=True):
    events: list[Event]


class ParentsQuery(Request):
    """A slice of a job's parents: from this position, at most so many."""

    begin: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    limit: Limit = 100


class ParentList(Struct, frozen=True):
    parents: list[ParentResult]


class ChildrenQuery(Request):
    """How many of a job's children to return at most."""

    limit: Limit = 100


class ChildList(Struct, frozen=True):
    children: list[ChildJob]


class ScheduleBody(Request):
    """A schedule to store under the name in the path; `replace`: overwrite an existing one."""

    queue: str
    payload: bytes
    cron: str | None = None
    every_ms: Annotated[int, Meta(ge=1_000, le=2**40)] | None = None
    tz: str = "UTC"
    missed: Missed = "skip"
    paused: bool = False
    priority: Annotated[int, Meta(ge=0, le=9)] = 0
    max_attempts: Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)] | None = None
    #: The time from which an interval counts; 0: now.
    created_at_ms: Annotated[int, Meta(ge=0, le=2**62)] = 0
    replace: bool = False

    @classmethod
    def of(cls, schedule: Schedule, *, replace: bool) -> ScheduleBody:
        fields = {
            name: value for name, value in asdict(schedule).items() if name not in ("name", "tenant", "resumed_at_ms")
        }
        return cls(**fields, replace=replace)

    def checked(self, name: str, tenant: str) -> Schedule:
        """Raises InvalidArgument."""
        fields = {field: value for field, value in asdict(self).items() if field != "replace"}
        return Schedule(name=name, tenant=tenant, **fields).checked()


class ScheduleList(Struct, frozen=True):
    schedules: list[Schedule]


class QueueBody(Struct, frozen=True, kw_only=True):
    tenant: str
    queue: str
    number: int
    paused: bool
    policy: Policy
    counts: Counts
    #: When the oldest ready job became ready; null: there is none, or it is unknown.
    oldest_at_ms: int | None = None

    @classmethod
    def of(cls, info: QueueInfo) -> QueueBody:
        return cls(**asdict(info))

    def info(self) -> QueueInfo:
        return QueueInfo(**asdict(self))


class QueueList(Struct, frozen=True):
    queues: list[QueueBody]
    #: Pass it to the next call; null: this was the last page.
    cursor: str | None = None


class QuotaList(Struct, frozen=True):
    quotas: list[QuotaInfo]


class StoreInfo(Struct, frozen=True):
    """The store behind this address."""

    traits: Traits
    now_ms: int
    drift_ms: int
    #: The server's release.
    version: str
    #: The process that owns the store, if it has an owner.
    owner: str = ""


class ReplayBody(Request):
    ids: Annotated[list[str], Meta(max_length=100_000)] | None = None
    error: str | None = None
    reason: Literal["max_attempts", "failed"] | None = None
    since_ms: TimeMs | None = None
    before_ms: TimeMs | None = None
    limit: Annotated[int, Meta(ge=1, le=2**40)] | None = None
    spacing_ms: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0
    dry_run: bool = False
    #: For each id, the token that the job must still have.
    tokens: Annotated[list[Annotated[int, Meta(ge=0, le=2**63 - 1)]], Meta(max_length=100_000)] | None = None
    delay_ms: DurationMs = 0

    def checked(self) -> ReplayRequest:
        ids = None if self.ids is None else tuple(job_id_bytes(job) for job in self.ids)
        if self.tokens is not None and (ids is None or len(ids) != len(self.tokens)):
            raise InvalidArgument("tokens are given one for each of the ids")
        return ReplayRequest(
            ids,
            self.error,
            self.reason,
            self.since_ms,
            self.before_ms,
            self.limit,
            self.spacing_ms,
            self.dry_run,
            None if self.tokens is None else tuple(self.tokens),
            self.delay_ms,
        )

    @classmethod
    def of(cls, request: ReplayRequest) -> ReplayBody:
        ids = None if request.ids is None else [job.hex() for job in request.ids]
        tokens = None if request.tokens is None else list(request.tokens)
        return cls(**request._asdict() | {"ids": ids, "tokens": tokens})


class DrawBody(Request):
    requests: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class PurgeBody(Request):
    state: Literal["ready", "scheduled", "done", "dead", "blocked"] = "dead"


class CleanupBody(Request):
    before_ms: TimeMs | None = None
    limit: Annotated[int, Meta(ge=1, le=2**40)] = 1000


class CheckBody(Request):
    repair: bool = False


class SnapshotBody(Request):
    path: Annotated[str, Meta(min_length=1)]
