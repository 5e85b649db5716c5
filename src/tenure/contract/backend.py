"""The contract of a backend with the API and the servers: each verb is one atomic step.

    api (Store, Queue) ─┐                      ┌─ backends.embedded   queueing on an engine in this process
                        ├──▶ Backend (here) ◀──┼─ backends.redis      Lua functions on a Redis or Valkey server
    protocol, server  ──┘                      ├─ backends.remote     requests to a server, or to the store's owner
                                               └─ backends.joined     remote while another process owns the store

Callers check arguments; a backend gets checked values only. `verbs.VERBS` lists each verb with its traits (does it
write, may it wait, is its outcome remembered by request id); tests compare that table with these protocols.

Every method may raise StoreClosed, Unavailable or Corrupt besides what its docstring names. A verb that raises has
written nothing, unless its docstring says that it works in chunks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, Protocol, TypeVar

from tenure.errors import TenureError
from tenure.model.event import Event, EventPage
from tenure.model.group import GroupPage
from tenure.model.job import ChildJob, Counts, Enqueued, Job, Page, ParentResult, QueuePage, Replayed, Restored, Swept
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
Events = list[Event]  # aliases, because `list` is a verb below
JobIds = list[bytes]
Parents = list[ParentResult]
Steps = list[Step]
Schedules = list[Schedule]
QuotaInfos = list[QuotaInfo]
SnapshotInfos = list[SnapshotInfo]
Topic = QueueName | JobName | None
"""What a watch waits for: a queue with a job to claim, the end of a job, or new events of the journal (None)."""
Progress = Callable[[int, int | None], None]
"""Called by verbs that work in chunks with (done so far, total or None)."""
WaitsOn = Literal["nothing", "sync", "io"]
"""What the thread of a small verb may wait for: nothing, a sync of the disk, or any I/O."""


EnqueueOutcomes = list[list[Enqueued] | TenureError]
"""For each of several requests: its enqueued jobs, or its error."""


class Watch(Protocol):
    """A registration in a queue of waiters that needs no thread (see `Serving.watch`)."""

    def left_ms(self) -> int:
        """Return the rest of the wait, by the store's time."""

    def again(self) -> None:
        """Wait again, because nothing was found: notify at the next change."""

    def close(self) -> None:
        """End the registration. Closing twice is fine."""


class PendingSync(Protocol):
    """A commit that is written but not yet durable (see `Serving.deferring`)."""

    def then(self, notify: Callable[[], None]) -> None:
        """Call `notify`, from another thread, once the commit is durable or its sync has failed."""

    def wait(self) -> None:
        """Return once the commit is durable: at once after `notify`. Raises Unavailable if the sync has failed."""


class Lifecycle(Protocol):
    """An open store: its URL, traits and time."""

    @property
    def url(self) -> str: ...

    @property
    def traits(self) -> Traits: ...

    def now_ms(self) -> int:
        """Return the store's time, never less than any time that it stored."""

    def clock_drift_ms(self) -> int:
        """Return how far the calendar is ahead of the store's time; a sudden change is a clock step."""

    def on_retry(self, notify: Callable[[str], None]) -> None:
        """Call `notify` with the reason whenever a transaction has to run again."""

    def close(self) -> None: ...


class Serving(Protocol):
    """For servers with many callers: idempotent requests, and waits and syncs that hold no thread."""

    def once(self, request: bytes) -> Backend:
        """Return a view of this store for the request with this id, under which a repeated verb takes effect once.

        If `verbs.VERBS` marks the verb as remembered, its outcome (a result, or an error of `failure.ANSWERS`) is
        stored for ten minutes, in the same commit as its effect. A repeat with the same id returns or raises that
        outcome; the same id with another verb or other arguments raises InvalidArgument. Verbs that work in chunks
        continue where they were interrupted. `claim` uses the id as its own if its request has none. All other verbs
        ignore the id, and `close` does nothing. A view serves one verb.

        The caller scopes ids: a server of several tenants includes the tenant in the id.
        """

    def watch(self, topics: Sequence[Topic], wait_ms: int, notify: Callable[[], None]) -> Watch:
        """Call `notify` whenever the caller should look again; for servers, which wait for many callers at once.

        That is when a verb wakes these topics, when a job of these queues becomes due or a lease expires, when
        `wait_ms` have passed, and when the store is closed. Look once after this returns: something may have happened
        before. `notify` is called from any thread, must be fast and must not call the store; it may be called without a
        change.
        """

    @property
    def waits_on(self) -> WaitsOn:
        """What a small verb may wait for.

        An event loop runs it in its own thread if this is "nothing", and through `deferring` if it is "sync".
        """

    def deferring(self, verb: Callable[[], T]) -> tuple[T, PendingSync | None]:
        """Call `verb`, which calls this backend, without waiting in this thread until its commit is durable.

        Returns its result, and the sync to wait for before the caller is answered; None if there is none. Where
        `waits_on` is "io", the wait happens inside `verb`.
        """

    def enqueue_each(self, name: QueueName, requests: Sequence[RequestedJobs]) -> EnqueueOutcomes:
        """Run `once(request.id).enqueue(name, request.jobs)` for each request; return each result or error, in order.

        A backend may combine several into one transaction if that costs less; no request fails because of another.
        """


def enqueue_separately(backend: Serving, name: QueueName, requests: Sequence[RequestedJobs]) -> EnqueueOutcomes:
    """Implement `Serving.enqueue_each` with one transaction for each request."""
    outcomes: EnqueueOutcomes = []
    for request in requests:
        try:
            outcomes.append(backend.once(request.id).enqueue(name, request.jobs))
        except TenureError as exc:
            outcomes.append(exc)
    return outcomes


class Production(Protocol):
    """Enqueueing."""

    def enqueue(self, name: QueueName, jobs: Sequence[JobRequest]) -> list[Enqueued]:
        """Add all jobs in one transaction; results come in order. The queue is created if it does not exist.

        Raises KeyConflict, QueueFull, QuotaExceeded, RateLimited, TooLarge.
        """


class Consumption(Protocol):
    """Claiming jobs under a lease, and settling them with its proof."""

    def claim(
        self, names: Sequence[QueueName], request: ClaimRequest, cancel: threading.Event | None = None
    ) -> Leased | None:
        """Lease the first jobs of the first of these queues that has any; None if none has after the wait.

        Expired leases are taken over first. Setting `cancel` ends the wait; then nothing stays leased. If `request.id`
        was used before, returns the same lease's open jobs. Raises LeaseLost (that claim expired), InvalidArgument (its
        other arguments differ).
        """

    def claim_any(
        self, request: ClaimRequest, among: AnyQueues, cancel: threading.Event | None = None
    ) -> Leased | None:
        """Lease jobs of one queue, chosen fairly: tenants take turns, then the queues of each. Otherwise as `claim`.

        Raises InvalidArgument without `traits.any_queue`.
        """

    def settle(self, name: QueueName, items: Sequence[Settle]) -> list[TenureError | None]:
        """Settle each job completely or not at all.

        Returns None or the error (LeaseLost, Corrupt) of each item, in order.
        """

    def extend(self, name: QueueName, lease: bytes, lease_ms: int) -> Extended:
        """Set expiry to max(expiry, now + lease_ms), in one write however many jobs. Raises LeaseLost."""

    def progress(self, name: QueueName, proof: Proof, fraction: float, note: str | None) -> None:
        """Store a job's progress. Raises LeaseLost."""

    def record_step(self, name: QueueName, proof: Proof, step: str, value: bytes) -> bytes:
        """Store the value of a job's step, unless the step has one. Returns the stored value.

        Raises LeaseLost, TooLarge.
        """


class Queries(Protocol):
    """Read-only verbs on jobs and queues."""

    def get(self, name: QueueName, job: bytes) -> Job | None: ...

    def wait_for(self, name: QueueName, job: bytes, timeout_ms: int) -> Job | None:
        """Wait until the job is done, dead or removed, and return it; None if it never existed. Raises WaitTimeout."""

    def list(self, name: QueueName, state: str, limit: int, cursor: str | None) -> Page: ...

    def counts(self, name: QueueName) -> Counts: ...

    def groups(self, name: QueueName, limit: int, cursor: str | None) -> GroupPage:
        """Return one page of the groups with waiting or leased jobs."""

    def holder(self, name: QueueName, key: str) -> bytes | None:
        """Return the job that holds an idempotency key, even if it has ended or is removed; None if there is none."""

    def timeline(self, name: QueueName, job: bytes) -> Events:
        """Return the job's events, oldest first, as far back as the journal goes."""

    def parents(self, name: QueueName, job: bytes, begin: int, limit: int) -> Parents:
        """Return the job's parents in the order in which it named them, from position `begin` on.

        Fewer than `limit` if their results are large; an empty list means that there are no more.
        """

    def children(self, name: QueueName, job: bytes, limit: int) -> Children:
        """Return the first jobs that wait or waited for it.

        Omits children that ended long ago; empty if the job is gone.
        """

    def steps(self, name: QueueName, job: bytes) -> Steps:
        """Return the steps and signals of a job, in the order in which they were stored."""

    def queues(self, tenant: str | None, limit: int, cursor: str | None) -> QueuePage:
        """Return one page of the queues of a tenant, or of all tenants (None): each page is ordered by name.

        `names.queue_cursor(name)` is the cursor of the page that begins with that queue, or with the next after it.
        """

    def find(self, job: bytes) -> Job | None:
        """Return the job with that id, in any queue of any tenant."""

    def list_all(
        self, state: str, limit: int, cursor: str | None, tenant: str | None, queues: Collection[str] | None
    ) -> Page:
        """Return one page of the jobs in a state, queue by queue; None selects all tenants, or all queue names.

        Fewer than `limit` if their payloads are large: only a page without a cursor is the last.
        """

    def upcoming(self, request: UpcomingRequest) -> Page:
        """Return one page of the scheduled jobs that become ready between two calendar times, earliest first.

        `tenant`, `queues` and `limit` of the request: as in `list_all`.
        """


class Maintenance(Protocol):
    """Verbs that replay, restore or remove jobs, and that sweep and check the store."""

    def replay(self, name: QueueName, request: ReplayRequest, progress: Progress | None = None) -> Replayed:
        """Make dead jobs waiting again. Works in chunks, each one transaction."""

    def restore(self, name: QueueName, jobs: Sequence[JobImage]) -> Restored:
        """Insert jobs as they were elsewhere, in one transaction. The queue is created if it does not exist.

        Idempotent by id: an equal job is left as it is. A job that exists with other contents is refused, and so is one
        whose idempotency key another job holds. Neither `max_waiting` nor a quota applies. Raises TooLarge.
        """

    def discard(self, name: QueueName, state: str, tokens: Mapping[bytes, int]) -> JobIds:
        """Remove those jobs that are still in this state (done or dead) with this token, in one transaction."""

    def cancel(self, name: QueueName, job: bytes) -> bool: ...

    def signal(self, name: QueueName, job: bytes, signal: str, payload: bytes) -> bool:
        """Send a signal to a job; False if it has one of that name. A job waiting for it becomes ready.

        Raises NotFound (there is no such job, or it is done), TooLarge.
        """

    def purge(self, name: QueueName, state: str, progress: Progress | None = None) -> int:
        """Remove every job in a state. Works in chunks, each one transaction."""

    def sweep(self) -> Swept:
        """Make one bounded pass over what is due."""

    def cleanup(self, before_ms: int | None, limit: int, progress: Progress | None = None) -> int:
        """Remove done jobs past their retention or, with `before_ms`, all done and dead jobs that ended before then."""

    def check(self, repair: bool, progress: Progress | None = None) -> Report: ...


class Administration(Protocol):
    """Policies, pauses and quotas."""

    def set_paused(self, name: QueueName, paused: bool) -> None: ...

    def configure(self, policies: Mapping[QueueName, Policy]) -> None:
        """Set all these policies in one transaction."""

    def delete_queue(self, name: QueueName, force: bool) -> bool:
        """Delete a queue with its policy and its jobs; False if there is none. Works in chunks.

        Raises QueueNotEmpty if it has leased jobs or, without `force`, waiting or dead ones.
        """

    def replace_queues(self, tenant: str, policies: Mapping[str, Policy]) -> None:
        """Replace the tenant's queues with these, in one transaction.

        Raises QueueNotEmpty if one of the other queues has leased, waiting or dead jobs.
        """

    def policy(self, name: QueueName) -> Policy:
        """Return the queue's policy, or the default if the queue does not exist."""

    def set_quota(self, tenant: str, quota: Quota) -> None:
        """Set a tenant's quota; an empty one removes it. Raises InvalidArgument without `traits.quotas`."""

    def quotas(self, tenant: str | None) -> QuotaInfos:
        """Return the tenants with a quota, and what each has waiting."""

    def schedules(self, tenant: str | None) -> Schedules:
        """Return the schedules of one tenant, or of all, ordered by tenant and name."""

    def change_schedule(self, tenant: str, name: str, change: ScheduleChange) -> bool:
        """Store, pause, resume or remove a schedule; False if there is none of that name to change.

        Raises InvalidArgument (the name is taken), TooLarge.
        """

    def draw(self, tenant: str, requests: int) -> int:
        """Take up to `requests` server requests from the tenant's rate limit: return how many are granted, at least
        one.

        Without such a limit all are granted. Raises RateLimited.
        """


class Journal(Protocol):
    """The events, in order."""

    def events(self, after: str | None, limit: int, wait_ms: int, consumer: str | None) -> EventPage:
        """Return durable events in order. Raises JournalTrimmed.

        The store remembers a `consumer`, and trims nothing that it has not read.
        """

    def newest_events(self, limit: int) -> EventPage:
        """Return the last durable events, oldest first, and the cursor after them, from which `events` continues."""

    def forget_consumer(self, consumer: str) -> bool: ...

    def journal_slice(self, begin: int | None, end: int | None, max_bytes: int) -> JournalSlice:
        """Return durable journal rows from commit `begin` (None: the oldest) to before `end` (None: all), about
        `max_bytes`.

        With `max_bytes` 0 it returns the bounds and no rows; otherwise at least one row, if there is one. Raises
        JournalTrimmed, and Corrupt naming a row that is missing.
        """


class StagedWrites(Protocol):
    """Writes of many transactions that take effect once under their id, and bulk loads of files."""

    def begin_write(self, write_id: str, manifest: bytes, keep_ms: int) -> WriteState:
        """Record the manifest of a staged write, the first time only; a repeat returns the first one's state.

        The write is remembered for `keep_ms` after it is finished (or after it was begun, while nothing is published).
        """

    def write_state(self, write_id: str) -> WriteState | None:
        """Return the state of a write; None if it was never begun, or has been forgotten."""

    def publish(
        self,
        write_id: str,
        chunk: int,
        name: QueueName,
        jobs: Sequence[JobRequest],
        refused: Sequence[Refusal] = (),
    ) -> Published:
        """Add a chunk's jobs (at most 1,000) in one transaction with the marker that counts the chunk.

        A chunk that was published before adds nothing. Chunks come in order, from 0. Jobs in `refused` are not added:
        the transaction records them, and every later call for the chunk returns them. Raises what `enqueue` does (a
        KeyConflict names positions in `jobs`), and InvalidArgument (never begun, or out of order).
        """

    def finish_write(self, write_id: str, forget: str | None = None) -> WriteState:
        """Mark the write complete. `forget`: an earlier, finished write that may be forgotten."""

    def put_piece(self, write_id: str, part: str, piece: int, data: bytes) -> None:
        """Store some bytes of a part being staged, for a day, for writers that share no folder with the store.

        Raises TooLarge (more than 4 MiB), InvalidArgument (also if the store keeps no pieces).
        """

    def piece(self, write_id: str, part: str, piece: int) -> bytes | None: ...

    def drop_pieces(self, write_id: str) -> None:
        """Drop all pieces of a write."""

    def load_target(self, name: QueueName) -> LoadTarget:
        """Return what writers of bulk load files need to know about a queue, which is created if it does not exist.

        Raises InvalidArgument if the store takes no files.
        """

    def load(self, request: LoadRequest) -> WriteState:
        """Load the sorted files of a bulk load, all or nothing; nothing if its id was loaded before.

        Raises QueueFull, TooLarge, InvalidArgument (also if the store takes no files).
        """


class Snapshots(Protocol):
    """Snapshots of the store, copied to a folder or kept under a name."""

    def snapshot(self, path: str) -> None: ...

    def take_snapshot(self, name: str, ttl_ms: int) -> SnapshotInfo:
        """Keep a snapshot of the store (of each queue, by `traits.snapshot`) until it has been unused for `ttl_ms`."""

    def renew_snapshot(self, id: str) -> SnapshotInfo:
        """Mark the snapshot as used. Raises SnapshotExpired, even before its removal: the clock decides."""

    def drop_snapshot(self, id: str) -> bool:
        """Remove the snapshot now; False if it does not exist."""

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
    """The whole contract, which `Store` and the servers use."""
