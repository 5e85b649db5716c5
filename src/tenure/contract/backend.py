"""What a backend does for the API and the servers: one atomic step a verb.

    api (Store, Queue) ─┐                      ┌─ backends.embedded   queueing on an engine in this process
                        ├──▶ Backend (here) ◀──┼─ backends.redis      Lua functions on a Redis or Valkey server
    protocol, server  ──┘                      ├─ backends.remote     requests to a server, or to the store's owner
                                               └─ backends.joined     remote while another process owns the store

Callers check arguments; a backend sees only checked values. `verbs.VERBS` lists each verb with its traits (does it
write, may it wait, is its outcome remembered by request id); tests keep that table and these protocols in step.

Every method may raise StoreClosed, Unavailable or Corrupt besides what it names. A verb that raises has written
nothing, except where it says that it works in chunks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, Protocol, TypeVar

from tenure.errors import TenureError
from tenure.model.event import Event, EventPage
from tenure.model.group import GroupPage
from tenure.model.job import ChildJob, Counts, Enqueued, Job, Page, ParentResult, QueueInfo, Replayed, Restored, Swept
from tenure.model.lease import AnyQueues, ClaimRequest, Extended, Leased, Proof, Settle
from tenure.model.names import JobName, QueueName
from tenure.model.quota import Quota, QuotaInfo
from tenure.model.report import Report
from tenure.model.request import JobImage, JobRequest, ReplayRequest, RequestedJobs, UpcomingRequest
from tenure.model.retry import Policy
from tenure.model.schedule import Schedule, ScheduleChange
from tenure.model.snapshot import JournalSlice, SnapshotInfo
from tenure.model.step import Step
from tenure.model.write import LoadRequest, LoadTarget, Published, Refusal, WriteState
from tenure.storage.engine import Traits

T = TypeVar("T")
Children = list[ChildJob]
Events = list[Event]  # by names of their own, since `list` is a verb below
JobIds = list[bytes]
Parents = list[ParentResult]
Steps = list[Step]
Schedules = list[Schedule]
QueueInfos = list[QueueInfo]
QuotaInfos = list[QuotaInfo]
SnapshotInfos = list[SnapshotInfo]
Topic = QueueName | JobName | None
"""What a watch is kept for: a queue that may have a job to claim, a job that may have ended, or the journal (None)."""
Progress = Callable[[int, int | None], None]
"""Called with (done so far, of how many if known) by verbs that work in chunks."""
WaitsOn = Literal["nothing", "sync", "io"]
"""What the thread of a small verb may wait for: nothing, a sync of the disk, or any input and output."""


EnqueueOutcomes = list[list[Enqueued] | TenureError]
"""Of several requests: the jobs that each has enqueued, or why it has not."""


class Watch(Protocol):
    """A place in line, kept without a thread (see `Serving.watch`)."""

    def left_ms(self) -> int:
        """What is left of the wait, by the store's time."""

    def again(self) -> None:
        """The look was in vain: notify at the next chance."""

    def close(self) -> None:
        """Leave the line. Closing twice is fine."""


class PendingSync(Protocol):
    """A commit that is written and not yet durable (see `Serving.deferring`)."""

    def then(self, notify: Callable[[], None]) -> None:
        """Call `notify`, from another thread, once the commit is durable or cannot become so."""

    def wait(self) -> None:
        """Return once the commit is durable: at once after `notify`. Raises Unavailable if it cannot become so."""


class Lifecycle(Protocol):
    """An open store: where it is, what it promises, what time it has."""

    @property
    def url(self) -> str: ...

    @property
    def traits(self) -> Traits: ...

    def now_ms(self) -> int:
        """The store's time: never less than any it stored."""

    def clock_drift_ms(self) -> int:
        """How far the calendar is ahead of the store's time: a sudden change is a step of the clock."""

    def on_retry(self, notify: Callable[[str], None]) -> None:
        """Have `notify` called, with the reason, whenever a transaction has to run again."""

    def close(self) -> None: ...


class Serving(Protocol):
    """What a server needs to answer many callers: repeats, waiting without a thread, syncs without a thread."""

    def once(self, request: bytes) -> Backend:
        """A view of this store for one request, whose id is `request`: repeats of its verb take effect once.

        The outcome of a verb that `verbs.VERBS` marks as remembered (a result, or an error of `failure.ANSWERS`) is
        kept for ten minutes, in the same commit as its effect. A repeat with the same id returns or raises that
        outcome; the same id with another verb or other arguments raises InvalidArgument. Verbs that work in chunks go
        on where they were cut off. `claim` uses the id as its own where its request has none. All other verbs do what
        they do without an id, and `close` does nothing. One view serves one verb.

        Ids are the caller's to scope: a server of several tenants puts the tenant into the id.
        """

    def watch(self, topics: Sequence[Topic], wait_ms: int, notify: Callable[[], None]) -> Watch:
        """Have `notify` called whenever it is worth looking again; for servers, which wait for many callers at once.

        That is when a verb wakes these topics, when a job of these queues becomes due or a lease runs out, when
        `wait_ms` have passed, and when the store is closed. Look once after this returns: something may have happened
        before. `notify` is called from any thread, must be quick and must not call the store; it may be called in vain.
        """

    @property
    def waits_on(self) -> WaitsOn:
        """What a small verb may wait for.

        An event loop runs it in its own thread at "nothing", and at "sync" by `deferring`.
        """

    def deferring(self, verb: Callable[[], T]) -> tuple[T, PendingSync | None]:
        """Call `verb`, which calls this backend, and do not wait in this thread until what it commits is durable.

        Returns what it returned, and the sync to wait for before anybody is answered; None: there is none to wait for.
        Where `waits_on` is "io", the wait is inside `verb`.
        """

    def enqueue_each(self, name: QueueName, requests: Sequence[RequestedJobs]) -> EnqueueOutcomes:
        """Each as `once(request.id).enqueue(name, request.jobs)`, its result or error in its place.

        Where that takes less, several are one transaction; none is refused because of another.
        """


def each_alone(backend: Serving, name: QueueName, requests: Sequence[RequestedJobs]) -> EnqueueOutcomes:
    """`Serving.enqueue_each`, a transaction each."""
    outcomes: EnqueueOutcomes = []
    for request in requests:
        try:
            outcomes.append(backend.once(request.id).enqueue(name, request.jobs))
        except TenureError as exc:
            outcomes.append(exc)
    return outcomes


class Production(Protocol):
    """Jobs in."""

    def enqueue(self, name: QueueName, jobs: Sequence[JobRequest]) -> list[Enqueued]:
        """All of them, in one transaction, answers in order; the queue is made if it is not there.

        Raises KeyConflict, QueueFull, QuotaExceeded, RateLimited, TooLarge.
        """


class Consumption(Protocol):
    """Jobs out under a lease, and settled by the proof of it."""

    def claim(
        self, names: Sequence[QueueName], request: ClaimRequest, cancel: threading.Event | None = None
    ) -> Leased | None:
        """A lease over the first jobs of the first of these queues that has any; None if none has, after waiting.

        Expired leases are taken over first. `cancel`, once set, ends the waiting; nothing is then left leased.
        With `request.id` seen before: the same lease's open jobs. Raises LeaseLost (that claim expired),
        InvalidArgument (its other arguments differ).
        """

    def claim_any(
        self, request: ClaimRequest, among: AnyQueues, cancel: threading.Event | None = None
    ) -> Leased | None:
        """A lease over jobs of one queue, chosen fairly: tenants take turns, then the queues of each. Otherwise as `claim`.

        Raises InvalidArgument without `traits.any_queue`.
        """

    def settle(self, name: QueueName, items: Sequence[Settle]) -> list[TenureError | None]:
        """Each job settled whole or not at all; in the order of the items, None or why not (LeaseLost, Corrupt)."""

    def extend(self, name: QueueName, lease: bytes, lease_ms: int) -> Extended:
        """expiry = max(expiry, now + lease_ms), one write however many jobs. Raises LeaseLost."""

    def progress(self, name: QueueName, proof: Proof, fraction: float, note: str | None) -> None:
        """Raises LeaseLost."""

    def record_step(self, name: QueueName, proof: Proof, step: str, value: bytes) -> bytes:
        """Store a step's value under the job, unless there is one of that name: the value that is stored.

        Raises LeaseLost, TooLarge.
        """


class Queries(Protocol):
    """Looking at jobs and queues; nothing changes."""

    def get(self, name: QueueName, job: bytes) -> Job | None: ...

    def wait_for(self, name: QueueName, job: bytes, timeout_ms: int) -> Job | None:
        """The job once it is done, dead or removed; None if it was never there. Raises WaitTimeout."""

    def list(self, name: QueueName, state: str, limit: int, cursor: str | None) -> Page: ...

    def counts(self, name: QueueName) -> Counts: ...

    def groups(self, name: QueueName, limit: int, cursor: str | None) -> GroupPage:
        """Groups that have jobs that wait or are leased, a page at a time."""

    def holder(self, name: QueueName, key: str) -> bytes | None:
        """The job that holds an idempotency key, also one that has ended or is gone; None while nobody does."""

    def timeline(self, name: QueueName, job: bytes) -> Events:
        """Its events, oldest first, as far back as the journal is kept."""

    def parents(self, name: QueueName, job: bytes, begin: int, limit: int) -> Parents:
        """The jobs that it waits or waited for, in the order in which it named them, from place `begin` on.

        Fewer than `limit` where their results are large; none: there are no more.
        """

    def children(self, name: QueueName, job: bytes, limit: int) -> Children:
        """The first of the jobs that wait or waited for it; for a job that is gone, and of children long ended, none."""

    def steps(self, name: QueueName, job: bytes) -> Steps:
        """The steps and signals of a job, in the order in which they were stored; none of a job that has none."""

    def queues(self, tenant: str | None) -> QueueInfos: ...

    def find(self, job: bytes) -> Job | None:
        """The job of that id, in whatever queue of whatever tenant it is."""

    def list_all(
        self, state: str, limit: int, cursor: str | None, tenant: str | None, queues: Collection[str] | None
    ) -> Page:
        """Jobs in a state, queue by queue: of one tenant (None: of all), and of queues of these names only (None: of all).

        Fewer than `limit` where their payloads are large: a page without a cursor is the last.
        """

    def upcoming(self, request: UpcomingRequest) -> Page:
        """Scheduled jobs that become ready after one moment of the calendar and before another, earliest first.

        Of which tenant and queues, and how many: as `list_all`.
        """


class Maintenance(Protocol):
    """Jobs brought back, brought in, or removed; the store swept and checked."""

    def replay(self, name: QueueName, request: ReplayRequest, progress: Progress | None = None) -> Replayed:
        """Works in chunks, each one transaction."""

    def restore(self, name: QueueName, jobs: Sequence[JobImage]) -> Restored:
        """Put jobs in as they stood elsewhere, in one transaction; the queue is made if it is not there.

        Idempotent by id: one that is there as given is left, one that is there otherwise is refused, and so is one
        whose idempotency key another job holds. Neither `max_waiting` nor a quota holds it back. Raises TooLarge.
        """

    def discard(self, name: QueueName, state: str, tokens: Mapping[bytes, int]) -> JobIds:
        """Remove those of these jobs that are still in this state (done or dead) with this token; one transaction."""

    def cancel(self, name: QueueName, job: bytes) -> bool: ...

    def signal(self, name: QueueName, job: bytes, signal: str, payload: bytes) -> bool:
        """Give a job a signal; False if it has one of that name. A job that waits for it is ready now.

        Raises NotFound (there is no such job, or it is done), TooLarge.
        """

    def purge(self, name: QueueName, state: str, progress: Progress | None = None) -> int:
        """Works in chunks, each one transaction."""

    def sweep(self) -> Swept:
        """One bounded pass over what is due."""

    def cleanup(self, before_ms: int | None, limit: int, progress: Progress | None = None) -> int:
        """Remove done jobs past their retention or, with `before_ms`, all done and dead jobs that ended before then."""

    def check(self, repair: bool, progress: Progress | None = None) -> Report: ...


class Administration(Protocol):
    """Policies, pauses and quotas."""

    def set_paused(self, name: QueueName, paused: bool) -> None: ...

    def configure(self, policies: Mapping[QueueName, Policy]) -> None:
        """All of them in one transaction."""

    def delete_queue(self, name: QueueName, force: bool) -> bool:
        """Delete a queue with its policy and its jobs; False if there is none. Works in chunks.

        Raises QueueNotEmpty while jobs are held or, without `force`, while any wait or are dead.
        """

    def replace_queues(self, tenant: str, policies: Mapping[str, Policy]) -> None:
        """The tenant's queues are these from now on, and no others: one transaction.

        Raises QueueNotEmpty if one of the others has jobs that are held, wait or are dead.
        """

    def policy(self, name: QueueName) -> Policy:
        """The queue's policy, or the default if there is no such queue yet."""

    def set_quota(self, tenant: str, quota: Quota) -> None:
        """What a tenant may take from now on; an empty quota lifts it. InvalidArgument without `traits.quotas`."""

    def quotas(self, tenant: str | None) -> QuotaInfos:
        """The tenants that have one, and what each has waiting."""

    def schedules(self, tenant: str | None) -> Schedules:
        """The schedules of one tenant, or of all, in the order of tenants and names."""

    def change_schedule(self, tenant: str, name: str, change: ScheduleChange) -> bool:
        """Store, pause, resume or remove a schedule; False if there is none of that name to change.

        Raises InvalidArgument (there is one of that name), TooLarge.
        """

    def draw(self, tenant: str, requests: int) -> int:
        """How many of so many requests to a server the tenant may make now: at least one, and they count as made.

        All of them for a tenant without such a limit. Raises RateLimited.
        """


class Journal(Protocol):
    """What happened, in order."""

    def events(self, after: str | None, limit: int, wait_ms: int, consumer: str | None) -> EventPage:
        """Durable events in order. Raises JournalTrimmed.

        A `consumer` is remembered: nothing it has yet to read is trimmed.
        """

    def newest_events(self, limit: int) -> EventPage:
        """The last durable events, oldest first, and the cursor behind them: for `events` to go on from."""

    def forget_consumer(self, consumer: str) -> bool: ...

    def journal_slice(self, begin: int | None, end: int | None, max_bytes: int) -> JournalSlice:
        """Durable journal rows from commit `begin` (the oldest) to before `end` (all), about `max_bytes` of them.

        With `max_bytes` 0 there are no rows: a look at what there is. At least one row otherwise, if there is one.
        Raises JournalTrimmed, and Corrupt naming a row that is missing.
        """


class StagedWrites(Protocol):
    """Writes of many transactions that take effect once under their id, and files loaded in bulk."""

    def begin_write(self, write_id: str, manifest: bytes, keep_ms: int) -> WriteState:
        """Record the manifest of a staged write, the first time only; a repeat returns the first one's state.

        The write is remembered for `keep_ms` after it is finished (and after it was begun, while nothing is published).
        """

    def write_state(self, write_id: str) -> WriteState | None:
        """How far a write is; None if it was never begun, or has been forgotten."""

    def publish(
        self,
        write_id: str,
        chunk: int,
        name: QueueName,
        jobs: Sequence[JobRequest],
        refused: Sequence[Refusal] = (),
    ) -> Published:
        """Add a chunk's jobs (at most 1,000), in one transaction with the marker that counts it; nothing if it was before.

        Chunks come in order, from 0. Jobs that are `refused` are not added: the same transaction records them, and every
        later call for the chunk returns them. Raises what `enqueue` does (a KeyConflict names places in `jobs`), and
        InvalidArgument (never begun, or out of order).
        """

    def finish_write(self, write_id: str, forget: str | None = None) -> WriteState:
        """Nothing is left to publish. `forget`: an earlier, finished write that need not be remembered any longer."""

    def put_piece(self, write_id: str, part: str, piece: int, data: bytes) -> None:
        """Keep some bytes of a part that is being staged, for a day; for writers that share no folder with the store.

        Raises TooLarge (more than 4 MiB), InvalidArgument (also where the store keeps none).
        """

    def piece(self, write_id: str, part: str, piece: int) -> bytes | None: ...

    def drop_pieces(self, write_id: str) -> None:
        """Of a whole write."""

    def load_target(self, name: QueueName) -> LoadTarget:
        """What makers of a bulk load's files have to know of a queue, which is made if it is not there.

        Raises InvalidArgument where the store takes no files.
        """

    def load(self, request: LoadRequest) -> WriteState:
        """Take in the sorted files of a bulk load, all or nothing; nothing, if its id was loaded before.

        Raises QueueFull, TooLarge, InvalidArgument (also where the store takes no files).
        """


class Snapshots(Protocol):
    """One moment of the store, copied to a folder or kept under a name."""

    def snapshot(self, path: str) -> None: ...

    def take_snapshot(self, name: str, ttl_ms: int) -> SnapshotInfo:
        """Keep one moment of the store (of each queue, by `traits.snapshot`) until it was not used for `ttl_ms`."""

    def renew_snapshot(self, id: str) -> SnapshotInfo:
        """Say that it is in use. Raises SnapshotExpired, also before anyone has removed it: the clock decides."""

    def drop_snapshot(self, id: str) -> bool:
        """Remove it now; False if it was not there."""

    def snapshots(self) -> SnapshotInfos: ...


class Backend(
    Lifecycle,
    Serving,
    Production,
    Consumption,
    Queries,
    Maintenance,
    Administration,
    Journal,
    StagedWrites,
    Snapshots,
    Protocol,
):
    """All of them: what `Store` and the servers stand on."""
