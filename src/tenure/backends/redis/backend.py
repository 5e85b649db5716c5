"""`contract.Backend` on Redis or Valkey: every method is one call into the verb modules of this package."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from tenure.backends.redis import admin, claim_any, consume, journal, produce, queries, restore, schedules, steps
from tenure.backends.redis import check as checking
from tenure.backends.redis.core import Core, RememberingCore
from tenure.backends.redis.groups import list_groups
from tenure.backends.redis.watch_source import RedisWatchSource
from tenure.backends.remembered_verbs import RememberedVerbs
from tenure.contract.backend import (
    Children,
    Events,
    JobIds,
    Parents,
    Progress,
    QuotaInfos,
    Schedules,
    SnapshotInfos,
    Steps,
    Topic,
    Watch,
)
from tenure.contract.network import NetworkServing
from tenure.errors import InvalidArgument, SnapshotExpired, TenureError
from tenure.model.event import EventPage
from tenure.model.group import GroupPage
from tenure.model.job import Counts, Enqueued, Job, Page, QueuePage, Replayed, Restored, Swept
from tenure.model.lease import AnyQueues, ClaimRequest, Extended, Leased, Proof, Settle
from tenure.model.names import QueueName
from tenure.model.quota import Quota
from tenure.model.report import Report
from tenure.model.request import JobImage, JobRequest, ReplayRequest, UpcomingRequest
from tenure.model.retry import Policy
from tenure.model.schedule import ScheduleChange
from tenure.model.snapshot import JournalSlice, SnapshotInfo
from tenure.model.write import NO_LOADS, LoadRequest, LoadTarget, Published, Refusal, WriteState
from tenure.queueing.watches import WatchThread
from tenure.storage.engine import Traits


class RedisBackend(NetworkServing):
    def __init__(self, core: Core, url: str, traits: Traits) -> None:
        self._core = core
        self.url = url
        self.traits = traits
        self._watches = WatchThread(RedisWatchSource(core))

    def once(self, request: bytes) -> RedisBackend:
        return RedisRequestView(self, request)

    @property
    def filter_bytes(self) -> int:
        """Bytes of this process's Bloom filters."""
        return self._core.filters.memory_bytes

    def on_retry(self, notify: Callable[[str], None]) -> None:
        self._core.commands.on_retry = notify

    def now_ms(self) -> int:
        return self._core.now_ms()

    def clock_drift_ms(self) -> int:
        return self._core.drift_ms()

    def enqueue(self, name: QueueName, jobs: Sequence[JobRequest]) -> list[Enqueued]:
        return produce.enqueue(self._core, name, jobs)

    def begin_write(self, write_id: str, manifest: bytes, keep_ms: int) -> WriteState:
        return produce.begin_write(self._core, write_id, manifest, keep_ms)

    def write_state(self, write_id: str) -> WriteState | None:
        return produce.write_state(self._core, write_id)

    def publish(
        self,
        write_id: str,
        chunk: int,
        name: QueueName,
        jobs: Sequence[JobRequest],
        refused: Sequence[Refusal] = (),
    ) -> Published:
        return produce.publish(self._core, write_id, chunk, name, jobs, refused)

    def finish_write(self, write_id: str, forget: str | None = None) -> WriteState:
        return produce.finish_write(self._core, write_id, forget)

    def put_piece(self, write_id: str, part: str, piece: int, data: bytes) -> None:
        raise InvalidArgument("nothing is staged in the server's memory: stage in a folder that every writer can reach")

    def piece(self, write_id: str, part: str, piece: int) -> bytes | None:
        return None

    def drop_pieces(self, write_id: str) -> None:
        pass

    def load_target(self, name: QueueName) -> LoadTarget:
        raise InvalidArgument(NO_LOADS)

    def load(self, request: LoadRequest) -> WriteState:
        raise InvalidArgument(NO_LOADS)

    def claim(
        self, names: Sequence[QueueName], request: ClaimRequest, cancel: threading.Event | None = None
    ) -> Leased | None:
        return consume.claim(self._core, names, request, cancel)

    def claim_any(
        self, request: ClaimRequest, among: AnyQueues, cancel: threading.Event | None = None
    ) -> Leased | None:
        if not self.traits.any_queue:
            raise InvalidArgument(claim_any.REFUSED)
        return claim_any.claim_any(self._core, request, among, cancel)

    def watch(self, topics: Sequence[Topic], wait_ms: int, notify: Callable[[], None]) -> Watch:
        return self._watches.watch(topics, wait_ms, notify)

    def settle(self, name: QueueName, items: Sequence[Settle]) -> list[TenureError | None]:
        return consume.settle(self._core, name, items)

    def extend(self, name: QueueName, lease: bytes, lease_ms: int) -> Extended:
        return consume.extend(self._core, name, lease, lease_ms)

    def progress(self, name: QueueName, proof: Proof, fraction: float, note: str | None) -> None:
        consume.progress(self._core, name, proof, fraction, note)

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
        return list_groups(self._core, name, limit, cursor)

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

    def _replay_request(self, request: ReplayRequest) -> ReplayRequest:
        since, before = (self._core.server_time_of(moment) for moment in (request.since_ms, request.before_ms))
        return request._replace(since_ms=since, before_ms=before)

    def restore(self, name: QueueName, jobs: Sequence[JobImage]) -> Restored:
        return restore.restore(self._core, name, jobs)

    def discard(self, name: QueueName, state: str, tokens: Mapping[bytes, int]) -> JobIds:
        return admin.discard(self._core, name, state, tokens)

    def cancel(self, name: QueueName, job: bytes) -> bool:
        return admin.cancel(self._core, name, job)

    def purge(self, name: QueueName, state: str, progress: Progress | None = None) -> int:
        return admin.purge(self._core, name, state, progress)

    def set_paused(self, name: QueueName, paused: bool) -> None:
        admin.set_paused(self._core, name, paused)

    def configure(self, policies: Mapping[QueueName, Policy]) -> None:
        admin.configure(self._core, policies)

    def delete_queue(self, name: QueueName, force: bool) -> bool:
        return admin.delete_queue(self._core, name, force)

    def replace_queues(self, tenant: str, policies: Mapping[str, Policy]) -> None:
        admin.replace_queues(self._core, tenant, policies)

    def policy(self, name: QueueName) -> Policy:
        return queries.policy(self._core, name)

    def schedules(self, tenant: str | None) -> Schedules:
        return schedules.schedules(self._core, tenant)

    def change_schedule(self, tenant: str, name: str, change: ScheduleChange) -> bool:
        return schedules.change_schedule(self._core, tenant, name, change)

    def set_quota(self, tenant: str, quota: Quota) -> None:
        # A tenant's queues are in different slots: no single step can count them all.
        raise InvalidArgument(
            "a Redis store holds no quotas: give each queue's policy a max_waiting, or use another store"
        )

    def quotas(self, tenant: str | None) -> QuotaInfos:
        return []

    def draw(self, tenant: str, requests: int) -> int:
        return requests

    def queues(self, tenant: str | None, limit: int, cursor: str | None) -> QueuePage:
        return queries.queues(self._core, tenant, limit, cursor)

    def find(self, job: bytes) -> Job | None:
        return queries.find(self._core, job)

    def list_all(
        self, state: str, limit: int, cursor: str | None, tenant: str | None, queues: Collection[str] | None
    ) -> Page:
        return queries.list_all(self._core, state, limit, cursor, tenant, queues)

    def upcoming(self, request: UpcomingRequest) -> Page:
        return queries.upcoming(self._core, request)

    def sweep(self) -> Swept:
        return admin.sweep(self._core)

    def cleanup(self, before_ms: int | None, limit: int, progress: Progress | None = None) -> int:
        return admin.cleanup(self._core, self._core.server_time_of(before_ms), limit, progress)

    def events(self, after: str | None, limit: int, wait_ms: int, consumer: str | None) -> EventPage:
        return journal.events(self._core, after, limit, wait_ms, consumer)

    def newest_events(self, limit: int) -> EventPage:
        return journal.newest(self._core, limit)

    def forget_consumer(self, consumer: str) -> bool:
        return journal.forget_consumer(self._core, consumer)

    def check(self, repair: bool, progress: Progress | None = None) -> Report:
        return checking.check(self._core, repair, progress)

    def snapshot(self, path: str) -> None:
        raise InvalidArgument(
            "the data of a Redis store is the server's: save it there (BGSAVE), or copy it with tenure migrate"
        )

    def take_snapshot(self, name: str, ttl_ms: int) -> SnapshotInfo:
        raise _no_snapshots()

    def renew_snapshot(self, id: str) -> SnapshotInfo:
        raise SnapshotExpired(id)

    def drop_snapshot(self, id: str) -> bool:
        return False

    def snapshots(self) -> SnapshotInfos:
        return []

    def journal_slice(self, begin: int | None, end: int | None, max_bytes: int) -> JournalSlice:
        raise InvalidArgument("here every queue has a journal of its own: read them together with events")

    def close(self) -> None:
        self._watches.stop()
        self._core.notifications.close()
        self._core.commands.close()


class RedisRequestView(RememberedVerbs, RedisBackend):
    """A view of the same store for one request (`Backend.once`)."""

    _plain = RedisBackend
    _remembering = RememberingCore


def _no_snapshots() -> InvalidArgument:
    return InvalidArgument("a Redis store has no snapshots: copy it with tenure migrate, and read the copy")
