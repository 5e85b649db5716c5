"""A store that another process owns, used through its socket, and taken over when that process ends.

    open ──▶ OWNER is free ──▶ this process owns it, and listens (`owner`)
      │
      └────▶ OWNER is held ──▶ requests to the owner's socket ── the owner ends ──▶ one process owns it, the others
                                                                                    send their requests to that one

A verb interrupted by the owner's end is repeated under its request id, by the new owner or in this process: a committed
outcome is returned again, otherwise the verb runs now. So each verb takes effect once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from tenure.backends.remote.address import Address
from tenure.backends.remote.backend import RemoteBackend
from tenure.backends.remote.transport import Unreachable
from tenure.contract.backend import (
    Backend,
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
from tenure.contract.verbs import REMEMBERED
from tenure.errors import OpenError, StoreClosed, StoreLocked, TenureError, Unavailable
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
from tenure.model.write import LoadRequest, LoadTarget, Published, Refusal, WriteState
from tenure.process import Layer, renewed_after_fork
from tenure.protocol.dispatcher import outcome_id
from tenure.storage.engine import Traits
from tenure.storage.folder import SOCKET, lets_in

T = TypeVar("T")

#: Seconds to wait for an owner that recovers a large log, or that ends with many requests under way.
PATIENCE = 60.0
_PAUSE = 0.02


class _Link:
    """The backend in use: the owner's socket, or the store in this process. Thread-safe."""

    def __init__(self, url: str, own: Callable[[], Backend], join: Callable[[], RemoteBackend], first: Backend) -> None:
        self.url = url
        self.current = first
        self._own = own
        self._join = join
        self._lock = threading.RLock()  # reentrant: a signal handler may run a verb at any point
        self._closed = False
        self._notify: Callable[[str], None] = lambda reason: None
        #: Called once this process owns the store.
        self.on_owner: Callable[[], None] = lambda: None
        renewed_after_fork(self, Layer.BACKEND)

    def renew_after_fork(self) -> None:
        self._lock = threading.RLock()  # reentrant: a signal handler may run a verb at any point

    @property
    def owns(self) -> bool:
        return not isinstance(self.current, RemoteBackend)

    def on_retry(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self.current.on_retry(notify)

    def close(self) -> None:
        self._closed = True
        self.current.close()

    def carried_out(self, verb: Callable[[Backend], T], request: bytes | None) -> T:
        """Call `verb` with the backend for this request, and again after each change of owner."""
        while True:
            current = self.current
            try:
                return verb(_for_request(current, request))
            except Unreachable as exc:
                self._recover(current, exc)

    def _recover(self, lost: Backend, reason: Unreachable) -> None:
        """Become the owner, or connect to the new one. Raises Unavailable, StoreClosed."""
        until = time.monotonic() + PATIENCE
        with self._lock:
            while self.current is lost:
                self._refuse_closed()
                found = self._next()
                if found is not None:
                    self.current = found
                    found.on_retry(self._notify)
                    self._notify("owner")
                    lost.close()
                    if self._closed:
                        found.close()
                    elif self.owns:
                        self.on_owner()
                    break
                if time.monotonic() > until:
                    raise Unavailable(f"{self.url}: its owner does not answer, and still holds it: {reason}")
                time.sleep(_PAUSE)
        self._refuse_closed()

    def _next(self) -> Backend | None:
        try:
            return self._own()
        except StoreLocked:
            pass
        try:
            return self._join()
        except OpenError:
            return None  # the owner is recovering its store, or about to end

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoreClosed("this store was closed")


def _for_request(current: Backend, request: bytes | None) -> Backend:
    """Return the view for this request: outcomes are stored under the same id, whichever process owns the store."""
    if request is None:
        return current
    if isinstance(current, RemoteBackend):
        return current.once(request)
    return current.once(outcome_id(b"", request.hex()))


class JoinedRequestView(NetworkServing):
    """`contract.Backend` on a joined store, for one request whose id is already chosen (`Backend.once`)."""

    def __init__(self, link: _Link, request: bytes | None) -> None:
        self._link = link
        self._request = request

    def _ask(self, name: str, verb: Callable[[Backend], T]) -> T:
        """Carry out one verb. A remembered verb needs an id, so that a change of owner does not repeat its effect."""
        request = self._request or os.urandom(16) if name in REMEMBERED else None
        return self._link.carried_out(verb, request)

    # ── lifecycle and serving ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def url(self) -> str:
        return self._link.url

    @property
    def traits(self) -> Traits:
        return self._link.current.traits

    def now_ms(self) -> int:
        return self._ask("now_ms", lambda to: to.now_ms())

    def clock_drift_ms(self) -> int:
        return self._ask("clock_drift_ms", lambda to: to.clock_drift_ms())

    def on_retry(self, notify: Callable[[str], None]) -> None:
        self._link.on_retry(notify)

    def close(self) -> None:
        """Do nothing: the view does not own the store."""

    def once(self, request: bytes) -> Backend:
        return JoinedRequestView(self._link, request)

    def watch(self, topics: Sequence[Topic], wait_ms: int, notify: Callable[[], None]) -> Watch:
        return self._ask("watch", lambda to: to.watch(topics, wait_ms, notify))

    # ── produce and consume ──────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, name: QueueName, jobs: Sequence[JobRequest]) -> list[Enqueued]:
        return self._ask("enqueue", lambda to: to.enqueue(name, jobs))

    def claim(
        self, names: Sequence[QueueName], request: ClaimRequest, cancel: threading.Event | None = None
    ) -> Leased | None:
        until = time.monotonic() + request.wait_ms / 1000

        def claim(to: Backend) -> Leased | None:
            left = max(0, round((until - time.monotonic()) * 1000))
            return to.claim(names, msgspec.structs.replace(request, wait_ms=min(request.wait_ms, left)), cancel)

        return self._ask("claim", claim)

    def claim_any(
        self, request: ClaimRequest, among: AnyQueues, cancel: threading.Event | None = None
    ) -> Leased | None:
        until = time.monotonic() + request.wait_ms / 1000

        def claim(to: Backend) -> Leased | None:
            left = max(0, round((until - time.monotonic()) * 1000))
            return to.claim_any(msgspec.structs.replace(request, wait_ms=min(request.wait_ms, left)), among, cancel)

        return self._ask("claim_any", claim)

    def settle(self, name: QueueName, items: Sequence[Settle]) -> list[TenureError | None]:
        return self._ask("settle", lambda to: to.settle(name, items))

    def extend(self, name: QueueName, lease: bytes, lease_ms: int) -> Extended:
        return self._ask("extend", lambda to: to.extend(name, lease, lease_ms))

    def progress(self, name: QueueName, proof: Proof, fraction: float, note: str | None) -> None:
        self._ask("progress", lambda to: to.progress(name, proof, fraction, note))

    def record_step(self, name: QueueName, proof: Proof, step: str, value: bytes) -> bytes:
        return self._ask("record_step", lambda to: to.record_step(name, proof, step, value))

    def signal(self, name: QueueName, job: bytes, signal: str, payload: bytes) -> bool:
        return self._ask("signal", lambda to: to.signal(name, job, signal, payload))

    def steps(self, name: QueueName, job: bytes) -> Steps:
        return self._ask("steps", lambda to: to.steps(name, job))

    # ── queries ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, name: QueueName, job: bytes) -> Job | None:
        return self._ask("get", lambda to: to.get(name, job))

    def wait_for(self, name: QueueName, job: bytes, timeout_ms: int) -> Job | None:
        return self._ask("wait_for", lambda to: to.wait_for(name, job, timeout_ms))

    def list(self, name: QueueName, state: str, limit: int, cursor: str | None) -> Page:
        return self._ask("list", lambda to: to.list(name, state, limit, cursor))

    def counts(self, name: QueueName) -> Counts:
        return self._ask("counts", lambda to: to.counts(name))

    def groups(self, name: QueueName, limit: int, cursor: str | None) -> GroupPage:
        return self._ask("groups", lambda to: to.groups(name, limit, cursor))

    def holder(self, name: QueueName, key: str) -> bytes | None:
        return self._ask("holder", lambda to: to.holder(name, key))

    def timeline(self, name: QueueName, job: bytes) -> Events:
        return self._ask("timeline", lambda to: to.timeline(name, job))

    def parents(self, name: QueueName, job: bytes, begin: int, limit: int) -> Parents:
        return self._ask("parents", lambda to: to.parents(name, job, begin, limit))

    def children(self, name: QueueName, job: bytes, limit: int) -> Children:
        return self._ask("children", lambda to: to.children(name, job, limit))

    def queues(self, tenant: str | None, limit: int, cursor: str | None) -> QueuePage:
        return self._ask("queues", lambda to: to.queues(tenant, limit, cursor))

    def find(self, job: bytes) -> Job | None:
        return self._ask("find", lambda to: to.find(job))

    def list_all(
        self, state: str, limit: int, cursor: str | None, tenant: str | None, queues: Collection[str] | None
    ) -> Page:
        return self._ask("list_all", lambda to: to.list_all(state, limit, cursor, tenant, queues))

    def upcoming(self, request: UpcomingRequest) -> Page:
        return self._ask("upcoming", lambda to: to.upcoming(request))

    # ── maintenance ──────────────────────────────────────────────────────────────────────────────────────────────────

    def replay(self, name: QueueName, request: ReplayRequest, progress: Progress | None = None) -> Replayed:
        return self._ask("replay", lambda to: to.replay(name, request, progress))

    def restore(self, name: QueueName, jobs: Sequence[JobImage]) -> Restored:
        return self._ask("restore", lambda to: to.restore(name, jobs))

    def discard(self, name: QueueName, state: str, tokens: Mapping[bytes, int]) -> JobIds:
        return self._ask("discard", lambda to: to.discard(name, state, tokens))

    def cancel(self, name: QueueName, job: bytes) -> bool:
        return self._ask("cancel", lambda to: to.cancel(name, job))

    def purge(self, name: QueueName, state: str, progress: Progress | None = None) -> int:
        return self._ask("purge", lambda to: to.purge(name, state, progress))

    def sweep(self) -> Swept:
        return self._ask("sweep", lambda to: to.sweep())

    def cleanup(self, before_ms: int | None, limit: int, progress: Progress | None = None) -> int:
        return self._ask("cleanup", lambda to: to.cleanup(before_ms, limit, progress))

    def check(self, repair: bool, progress: Progress | None = None) -> Report:
        return self._ask("check", lambda to: to.check(repair, progress))

    # ── administration ───────────────────────────────────────────────────────────────────────────────────────────────

    def set_paused(self, name: QueueName, paused: bool) -> None:
        self._ask("set_paused", lambda to: to.set_paused(name, paused))

    def configure(self, policies: Mapping[QueueName, Policy]) -> None:
        self._ask("configure", lambda to: to.configure(policies))

    def delete_queue(self, name: QueueName, force: bool) -> bool:
        return self._ask("delete_queue", lambda to: to.delete_queue(name, force))

    def replace_queues(self, tenant: str, policies: Mapping[str, Policy]) -> None:
        self._ask("replace_queues", lambda to: to.replace_queues(tenant, policies))

    def policy(self, name: QueueName) -> Policy:
        return self._ask("policy", lambda to: to.policy(name))

    def schedules(self, tenant: str | None) -> Schedules:
        return self._ask("schedules", lambda to: to.schedules(tenant))

    def change_schedule(self, tenant: str, name: str, change: ScheduleChange) -> bool:
        return self._ask("change_schedule", lambda to: to.change_schedule(tenant, name, change))

    def set_quota(self, tenant: str, quota: Quota) -> None:
        self._ask("set_quota", lambda to: to.set_quota(tenant, quota))

    def quotas(self, tenant: str | None) -> QuotaInfos:
        return self._ask("quotas", lambda to: to.quotas(tenant))

    def draw(self, tenant: str, requests: int) -> int:
        return self._ask("draw", lambda to: to.draw(tenant, requests))

    # ── journal ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def events(self, after: str | None, limit: int, wait_ms: int, consumer: str | None) -> EventPage:
        return self._ask("events", lambda to: to.events(after, limit, wait_ms, consumer))

    def newest_events(self, limit: int) -> EventPage:
        return self._ask("newest_events", lambda to: to.newest_events(limit))

    def forget_consumer(self, consumer: str) -> bool:
        return self._ask("forget_consumer", lambda to: to.forget_consumer(consumer))

    def journal_slice(self, begin: int | None, end: int | None, max_bytes: int) -> JournalSlice:
        return self._ask("journal_slice", lambda to: to.journal_slice(begin, end, max_bytes))

    # ── staged writes ────────────────────────────────────────────────────────────────────────────────────────────────

    def begin_write(self, write_id: str, manifest: bytes, keep_ms: int) -> WriteState:
        return self._ask("begin_write", lambda to: to.begin_write(write_id, manifest, keep_ms))

    def write_state(self, write_id: str) -> WriteState | None:
        return self._ask("write_state", lambda to: to.write_state(write_id))

    def publish(
        self, write_id: str, chunk: int, name: QueueName, jobs: Sequence[JobRequest], refused: Sequence[Refusal] = ()
    ) -> Published:
        return self._ask("publish", lambda to: to.publish(write_id, chunk, name, jobs, refused))

    def finish_write(self, write_id: str, forget: str | None = None) -> WriteState:
        return self._ask("finish_write", lambda to: to.finish_write(write_id, forget))

    def put_piece(self, write_id: str, part: str, piece: int, data: bytes) -> None:
        self._ask("put_piece", lambda to: to.put_piece(write_id, part, piece, data))

    def piece(self, write_id: str, part: str, piece: int) -> bytes | None:
        return self._ask("piece", lambda to: to.piece(write_id, part, piece))

    def drop_pieces(self, write_id: str) -> None:
        self._ask("drop_pieces", lambda to: to.drop_pieces(write_id))

    def load_target(self, name: QueueName) -> LoadTarget:
        return self._ask("load_target", lambda to: to.load_target(name))

    def load(self, request: LoadRequest) -> WriteState:
        return self._ask("load", lambda to: to.load(request))

    # ── snapshots ────────────────────────────────────────────────────────────────────────────────────────────────────

    def snapshot(self, path: str) -> None:
        self._ask("snapshot", lambda to: to.snapshot(path))

    def take_snapshot(self, name: str, ttl_ms: int) -> SnapshotInfo:
        return self._ask("take_snapshot", lambda to: to.take_snapshot(name, ttl_ms))

    def renew_snapshot(self, id: str) -> SnapshotInfo:
        return self._ask("renew_snapshot", lambda to: to.renew_snapshot(id))

    def drop_snapshot(self, id: str) -> bool:
        return self._ask("drop_snapshot", lambda to: to.drop_snapshot(id))

    def snapshots(self) -> SnapshotInfos:
        return self._ask("snapshots", lambda to: to.snapshots())


class JoinedBackend(JoinedRequestView):
    """`contract.Backend` carried out by the store's owner: another process, and this one once it takes over."""

    def __init__(self, url: str, own: Callable[[], Backend], join: Callable[[], RemoteBackend], first: Backend) -> None:
        """`own` opens the store here or raises StoreLocked; `join` connects to its owner or raises OpenError."""
        super().__init__(_Link(url, own, join, first), None)

    @property
    def owns(self) -> bool:
        """Whether this process owns the store now."""
        return self._link.owns

    def on_owner(self, notify: Callable[[], None]) -> None:
        """Call `notify` once this process owns the store."""
        self._link.on_owner = notify

    def close(self) -> None:
        self._link.close()


def joined(url: str, own: Callable[[], Backend], folder: Path, timeout: float, locked: StoreLocked) -> Backend:
    """Return the store through its owner, or owned by this process if the owner has ended meanwhile.

    Raises `locked` if neither works; if the owner lets others in and does not answer, the error says so.
    """
    socket = str(folder / SOCKET)

    def join() -> RemoteBackend:
        return RemoteBackend(Address(f"http+unix:{socket}", unix=socket), timeout=timeout, retry=False)

    until = time.monotonic() + PATIENCE
    while True:
        try:
            return JoinedBackend(url, own, join, join())
        except OpenError:  # the owner is recovering its store, or about to end
            time.sleep(_PAUSE)
        try:
            return own()
        except StoreLocked:
            if not lets_in(folder):
                raise locked from None
            if time.monotonic() > until:
                owner = f"{locked.owner}, which does not answer"
                advice = "It may be suspended or overloaded: continue it, or stop it."
                raise StoreLocked(locked.path, owner, advice) from None
