"""The embedded backend: the queue's logic on an engine in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

from tenure.backends.named_snapshots import named_snapshots_of
from tenure.backends.remembered_verbs import RememberedVerbs
from tenure.clock import Clock
from tenure.contract.backend import (
    Children,
    EnqueueOutcomes,
    Events,
    JobIds,
    Parents,
    PendingSync,
    Progress,
    QuotaInfos,
    Schedules,
    SnapshotInfos,
    Steps,
    Topic,
    WaitsOn,
    Watch,
    enqueue_separately,
)
from tenure.errors import OpenError, TenureError
from tenure.model.event import EventPage
from tenure.model.group import GroupPage
from tenure.model.job import Counts, Enqueued, Job, Page, QueueDepth, QueuePage, Replayed, Restored, Swept
from tenure.model.lease import AnyQueues, ClaimRequest, Extended, Leased, Proof, Settle
from tenure.model.names import QueueName
from tenure.model.quota import Quota
from tenure.model.report import Report
from tenure.model.request import JobImage, JobRequest, ReplayRequest, RequestedJobs, UpcomingRequest
from tenure.model.retry import Policy
from tenure.model.schedule import ScheduleChange
from tenure.model.snapshot import JournalSlice, SnapshotInfo
from tenure.model.write import LoadRequest, LoadTarget, Published, Refusal, WriteState, owner_of
from tenure.queueing import (
    admin,
    bulk_loads,
    checking,
    claim,
    claim_any,
    enqueue,
    group_queries,
    journal,
    policies,
    queries,
    queue_deletion,
    quotas,
    restore,
    schedules,
    settle,
    staged_writes,
    steps,
    store_queries,
    sweep,
)
from tenure.queueing.core import INSPECT_LIMIT, Core
from tenure.queueing.merged_enqueue import enqueue_merged
from tenure.queueing.outcomes import RememberingCore
from tenure.queueing.watches import EngineWatchSource, WatchThread
from tenure.storage.engine import Engine, Snapshot, Traits
from tenure.storage.folder import expand
from tenure.storage.group_commit import GroupCommit
from tenure.storage.keyspace import NAMES
from tenure.storage.segments import SegmentedEngine
from tenure.storage.staged_parts import Pieces

T = TypeVar("T")
#: Seconds.
JOURNAL_RETENTION = journal.KEPT_MS / 1000


class EmbeddedBackend:
    """`contract.Backend` on a `storage.engine.Engine`. Every method is one call into `queueing`."""

    def __init__(
        self,
        engine: Engine,
        url: str,
        clock: Clock,
        journal_retention: float = JOURNAL_RETENTION,
        inspect_limit: int = INSPECT_LIMIT,
    ) -> None:
        if engine.traits.scope == "process":
            # Only where this process is the sole writer: elsewhere it cannot know that there are no segments, and each
            # missing row would cost a lookup.
            engine = SegmentedEngine(engine)
        self._engine = engine
        self._core = Core(engine, clock)
        self._core.journal_kept_ms = round(1000 * journal_retention)
        self._core.inspect_limit = inspect_limit
        bulk_loads.roll_forward(self._core)
        quotas.count_stored(self._core)
        journal.name_store(self._core)
        self._watches = WatchThread(EngineWatchSource(self._core))
        engine.share()
        self.url = url
        self._clock = clock
        self._named_snapshots = named_snapshots_of(engine)
        self._pieces = Pieces(engine.home)
        self._named_snapshots.expire(clock.wall_ms())

    def on_retry(self, notify: Callable[[str], None]) -> None:
        self._engine.retried = notify

    @property
    def traits(self) -> Traits:
        return self._engine.traits

    @property
    def waits_on(self) -> WaitsOn:
        if self.traits.durability != "disk":
            return "nothing"
        return "io" if self._group_commit is None else "sync"

    def deferring(self, verb: Callable[[], T]) -> tuple[T, PendingSync | None]:
        group_commit = self._group_commit
        if group_commit is None:
            return verb(), None
        result, commit = group_commit.deferring(verb)
        return result, _PendingCommit(group_commit, commit) if commit else None

    @property
    def _group_commit(self) -> GroupCommit | None:
        """The engine's group commit; None if its commits are not synced together."""
        found = self._engine.group_commit
        return found if found is not None and found.grouped else None

    def once(self, request: bytes) -> EmbeddedBackend:
        return EmbeddedRequestView(self, request)

    def enqueue_each(self, name: QueueName, requests: Sequence[RequestedJobs]) -> EnqueueOutcomes:
        merged = enqueue_merged(self._core, name, requests) if len(requests) > 1 else None
        return enqueue_separately(self, name, requests) if merged is None else [*merged]

    def now_ms(self) -> int:
        return self._core.time.now_ms()

    def clock_drift_ms(self) -> int:
        return self._core.time.drift_ms()

    def enqueue(self, name: QueueName, jobs: Sequence[JobRequest]) -> list[Enqueued]:
        return enqueue.enqueue(self._core, name, jobs)

    def begin_write(self, write_id: str, manifest: bytes, keep_ms: int) -> WriteState:
        return staged_writes.begin(self._core, write_id, manifest, keep_ms)

    def write_state(self, write_id: str) -> WriteState | None:
        return staged_writes.state(self._core, write_id)

    def publish(
        self,
        write_id: str,
        chunk: int,
        name: QueueName,
        jobs: Sequence[JobRequest],
        refused: Sequence[Refusal] = (),
    ) -> Published:
        return staged_writes.publish(self._core, write_id, chunk, name, jobs, refused)

    def finish_write(self, write_id: str, forget: str | None = None) -> WriteState:
        return staged_writes.finish(self._core, write_id, forget)

    def put_piece(self, write_id: str, part: str, piece: int, data: bytes) -> None:
        owner = owner_of(write_id)
        if owner:
            quotas.admit_pieces(self._core, write_id, self._pieces.held_by(owner) + len(data))
        self._pieces.put(write_id, part, piece, data)

    def piece(self, write_id: str, part: str, piece: int) -> bytes | None:
        return self._pieces.get(write_id, part, piece)

    def drop_pieces(self, write_id: str) -> None:
        self._pieces.drop(write_id)

    def load_target(self, name: QueueName) -> LoadTarget:
        return bulk_loads.target(self._core, name)

    def load(self, request: LoadRequest) -> WriteState:
        return bulk_loads.load(self._core, request)

    def claim(
        self, names: Sequence[QueueName], request: ClaimRequest, cancel: threading.Event | None = None
    ) -> Leased | None:
        return claim.claim(self._core, names, request, cancel)

    def claim_any(
        self, request: ClaimRequest, among: AnyQueues, cancel: threading.Event | None = None
    ) -> Leased | None:
        return claim_any.claim_any(self._core, request, among, cancel)

    def watch(self, topics: Sequence[Topic], wait_ms: int, notify: Callable[[], None]) -> Watch:
        return self._watches.watch(topics, wait_ms, notify)

    def settle(self, name: QueueName, items: Sequence[Settle]) -> list[TenureError | None]:
        return settle.settle(self._core, name, items)

    def extend(self, name: QueueName, lease: bytes, lease_ms: int) -> Extended:
        return settle.extend(self._core, name, lease, lease_ms)

    def progress(self, name: QueueName, proof: Proof, fraction: float, note: str | None) -> None:
        settle.progress(self._core, name, proof, fraction, note)

    def record_step(self, name: QueueName, proof: Proof, step: str, value: bytes) -> bytes:
        return steps.record_step(self._core, name, proof, step, value)

    def signal(self, name: QueueName, job: bytes, signal: str, payload: bytes) -> bool:
        return steps.signal(self._core, name, job, signal, payload)

    def steps(self, name: QueueName, job: bytes) -> Steps:
        return steps.steps(self._core, name, job)

    def get(self, name: QueueName, job: bytes) -> Job | None:
        return queries.get(self._core, name, job)

    def wait_for(self, name: QueueName, job: bytes, timeout_ms: int) -> Job | None:
        return queries.wait_for(self._core, name, job, timeout_ms)

    def list(self, name: QueueName, state: str, limit: int, cursor: str | None) -> Page:
        return queries.list_jobs(self._core, name, state, limit, cursor)

    def counts(self, name: QueueName) -> Counts:
        return queries.counts(self._core, name)

    def groups(self, name: QueueName, limit: int, cursor: str | None) -> GroupPage:
        return group_queries.list_groups(self._core, name, limit, cursor)

    def holder(self, name: QueueName, key: str) -> bytes | None:
        return queries.holder(self._core, name, key)

    def timeline(self, name: QueueName, job: bytes) -> Events:
        return journal.timeline(self._core, name, job)

    def parents(self, name: QueueName, job: bytes, begin: int, limit: int) -> Parents:
        return queries.parents(self._core, name, job, begin, limit)

    def children(self, name: QueueName, job: bytes, limit: int) -> Children:
        return queries.children(self._core, name, job, limit)

    def replay(self, name: QueueName, request: ReplayRequest, progress: Progress | None = None) -> Replayed:
        return admin.replay(self._core, name, self._replay_request(request), progress)

    def restore(self, name: QueueName, jobs: Sequence[JobImage]) -> Restored:
        return restore.restore(self._core, name, jobs)

    def discard(self, name: QueueName, state: str, tokens: Mapping[bytes, int]) -> JobIds:
        return admin.discard(self._core, name, state, tokens)

    def cancel(self, name: QueueName, job: bytes) -> bool:
        return admin.cancel(self._core, name, job)

    def purge(self, name: QueueName, state: str, progress: Progress | None = None) -> int:
        return admin.purge(self._core, name, state, progress)

    def set_paused(self, name: QueueName, paused: bool) -> None:
        policies.set_paused(self._core, name, paused)

    def configure(self, policies_by_name: Mapping[QueueName, Policy]) -> None:
        policies.configure(self._core, policies_by_name)

    def delete_queue(self, name: QueueName, force: bool) -> bool:
        return queue_deletion.delete_queue(self._core, name, force)

    def replace_queues(self, tenant: str, policies: Mapping[str, Policy]) -> None:
        queue_deletion.replace_queues(self._core, tenant, policies)

    def policy(self, name: QueueName) -> Policy:
        return policies.policy(self._core, name)

    def set_quota(self, tenant: str, quota: Quota) -> None:
        quotas.set_quota(self._core, tenant, quota)

    def quotas(self, tenant: str | None) -> QuotaInfos:
        return quotas.quotas(self._core, tenant)

    def schedules(self, tenant: str | None) -> Schedules:
        return schedules.schedules(self._core, tenant)

    def change_schedule(self, tenant: str, name: str, change: ScheduleChange) -> bool:
        return schedules.change_schedule(self._core, tenant, name, change)

    def draw(self, tenant: str, requests: int) -> int:
        return quotas.draw(self._core, tenant, requests)

    def queues(self, tenant: str | None, limit: int, cursor: str | None) -> QueuePage:
        return queries.queues(self._core, tenant, limit, cursor)

    def depths(self, limit: int) -> tuple[Sequence[QueueDepth], int]:
        """Return the busiest queues, and how many others there are, for a server's metrics."""
        return queries.depths(self._core, limit)

    def find(self, job: bytes) -> Job | None:
        return store_queries.find(self._core, job)

    def list_all(
        self, state: str, limit: int, cursor: str | None, tenant: str | None, queues: Collection[str] | None
    ) -> Page:
        return store_queries.list_all(self._core, state, limit, cursor, tenant, queues)

    def upcoming(self, request: UpcomingRequest) -> Page:
        return store_queries.upcoming(self._core, request)

    def sweep(self) -> Swept:
        self._engine.tend()
        self._pieces.tend()
        self._named_snapshots.expire(self._clock.wall_ms())
        return sweep.sweep(self._core)

    def cleanup(self, before_ms: int | None, limit: int, progress: Progress | None = None) -> int:
        return admin.cleanup(self._core, self._store_time(before_ms), limit, progress)

    def events(self, after: str | None, limit: int, wait_ms: int, consumer: str | None) -> EventPage:
        return journal.events(self._core, after, limit, wait_ms, consumer)

    def newest_events(self, limit: int) -> EventPage:
        return journal.newest(self._core, limit)

    def forget_consumer(self, consumer: str) -> bool:
        return journal.forget_consumer(self._core, consumer)

    def check(self, repair: bool, progress: Progress | None = None) -> Report:
        return checking.check(self._core, repair, progress)

    def snapshot(self, path: str) -> None:
        target = expand(path)
        if target.exists():
            raise OpenError(f"{target} exists: give a new folder for the snapshot")
        self._engine.export(str(target))

    def take_snapshot(self, name: str, ttl_ms: int) -> SnapshotInfo:
        return self._named_snapshots.take(name, ttl_ms, self._clock.wall_ms(), self.now_ms())

    def renew_snapshot(self, id: str) -> SnapshotInfo:
        return self._named_snapshots.renew(id, self._clock.wall_ms())

    def drop_snapshot(self, id: str) -> bool:
        return self._named_snapshots.drop(id)

    def snapshots(self) -> SnapshotInfos:
        return self._named_snapshots.all(self._clock.wall_ms())

    def open_snapshot(self, id: str) -> Snapshot:
        """Open a named snapshot for reading.

        Not part of the contract: other readers open its folder, or ask a server for its tables.
        """
        return self._named_snapshots.open(id, self._clock.wall_ms())

    def moment(self) -> Snapshot:
        """Take a short-lived snapshot of the store as it is now, for reads of a few seconds.

        Not part of the contract.
        """
        return self._engine.snapshot(tuple(range(len(NAMES))))

    def journal_slice(self, begin: int | None, end: int | None, max_bytes: int) -> JournalSlice:
        return journal.slice_of(self._core, begin, end, max_bytes)

    def _replay_request(self, request: ReplayRequest) -> ReplayRequest:
        since, before = self._store_time(request.since_ms), self._store_time(request.before_ms)
        return request._replace(since_ms=since, before_ms=before)

    def _store_time(self, moment_ms: int | None) -> int | None:
        return None if moment_ms is None else self._core.time.of_calendar(moment_ms)

    def close(self) -> None:
        self._core.waiters.wake_all()
        self._engine.close()
        self._watches.stop()


class _PendingCommit(NamedTuple):
    """`contract.backend.PendingSync` of the commit with this number."""

    group_commit: GroupCommit
    commit: int

    def then(self, notify: Callable[[], None]) -> None:
        self.group_commit.call_when_durable(self.commit, notify)

    def wait(self) -> None:
        self.group_commit.wait(self.commit, gather=False)


class EmbeddedRequestView(RememberedVerbs, EmbeddedBackend):
    """A view of the same store for one request (`Backend.once`)."""

    _plain = EmbeddedBackend
    _remembering = RememberingCore
