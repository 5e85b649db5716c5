"""`Store`: the object that `open` returns, and the verbs on all its queues.

Telemetry is recorded here and in `queue`, and nowhere below: one span for each verb (`telemetry.Telemetry.span`), one
log line for each event.
"""

from __future__ import annotations

import builtins
import os
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from tenure.api.claim import Claim
from tenure.api.queue import Queue, checked_policy, claim_from, claim_request
from tenure.api.queue_list import QueueList
from tenure.api.staged_write import Staged
from tenure.api.sweeper import Sweeper
from tenure.api.trace_check import specification_findings
from tenure.contract.backend import Backend, Progress
from tenure.contract.queue_infos import all_queues
from tenure.contract.scheduling import run_now
from tenure.errors import InvalidArgument, NotFound
from tenure.extras import needs
from tenure.model.durations import Duration, Moment, duration_ms, moment_ms
from tenure.model.event import EventPage
from tenure.model.ids import job_id_bytes
from tenure.model.job import Enqueued, Job, Page, QueueInfo, Swept
from tenure.model.lease import AnyQueues, ClaimRequest, any_queues
from tenure.model.lifecycle import checked_shown
from tenure.model.names import DEFAULT_TENANT, QueueName, checked, queue_name
from tenure.model.quota import Quota, QuotaInfo
from tenure.model.report import Report
from tenure.model.request import UpcomingRequest
from tenure.model.retry import Policy, whole_number
from tenure.model.schedule import Schedule, ScheduleChange
from tenure.model.snapshot import SnapshotInfo
from tenure.storage.engine import Traits
from tenure.telemetry import Telemetry

if TYPE_CHECKING:
    from tenure.bulk.table_access import Tables

#: A calendar change of this size is logged as a clock step.
_STEP_MS = 1000


class Store:
    """An open store. Thread-safe; a context manager that closes it."""

    def __init__(self, backend: Backend, *, sweeper: Sweeper | None = None) -> None:
        self._backend = backend
        self._telemetry = Telemetry(backend.url)
        self._queues: dict[QueueName, Queue] = {}
        self._turn = 0
        #: The queues of the last claim over several, as the caller named them, and as a list.
        self._claimed_over: tuple[tuple[Queue | str, ...], QueueList] | None = None
        self.closed = False
        self._sweeper = sweeper
        self._drift_ms = backend.clock_drift_ms()
        backend.on_retry(self._telemetry.retried)
        if sweeper is not None:
            sweeper.start(self.sweep)

    @property
    def backend(self) -> Backend:
        """The backend that carries out this store's verbs, for servers, bulk readers and tests."""
        return self._backend

    @property
    def url(self) -> str:
        return self._backend.url

    @property
    def traits(self) -> Traits:
        """The guarantees and limits of this store's engine."""
        return self._backend.traits

    @property
    def durability(self) -> str:
        return self._backend.traits.durability

    def queue(self, queue: str, tenant: str = DEFAULT_TENANT) -> Queue:
        """Return a handle on a queue. The queue need not exist: the first enqueue creates it."""
        name = queue_name(queue, tenant)
        found = self._queues.get(name)
        if found is None:
            # Two threads may both create a handle: handles have no state, so either will do.
            found = self._queues[name] = Queue(self._backend, self._telemetry, name)
        return found

    def claim(
        self,
        queues: Iterable[Queue | str],
        limit: int = 1,
        lease: Duration | None = None,
        wait: Duration = 0,
        worker: str = "",
        *,
        max_bytes: int | None = None,
    ) -> Claim:
        """Claim from the first of several queues that has jobs, taking turns: each call starts one queue further."""
        given = tuple(queues)
        listed = self._claimed_over
        if listed is None or listed[0] != given:
            handles = [queue if isinstance(queue, Queue) else self.queue(queue) for queue in given]
            if not handles:
                raise InvalidArgument("claim from at least one queue")
            listed = self._claimed_over = given, QueueList(handles)
        first = self._turn % len(given)
        self._turn = first + 1
        return claim_from(listed[1].beginning(first), claim_request(limit, lease, wait, worker, max_bytes, None))

    def claim_any(
        self,
        limit: int = 1,
        lease: Duration | None = None,
        wait: Duration = 0,
        worker: str = "",
        *,
        tenants: Collection[str] | None = None,
        queues: Collection[str] | None = None,
        weights: Mapping[str, float] | None = None,
        excluding: Collection[str] = (),
        max_bytes: int | None = None,
        id: str | None = None,
    ) -> Claim:
        """Claim from the next queue in turn: tenants take turns, then the queues of each. `claim.queue` is its handle.

        `tenants`, `queues` and `excluding` select queues. `weights` give a tenant, or a queue among its tenant's
        (`tenant/queue`), more or fewer turns; the default is 1.
        """
        request = claim_request(limit, lease, wait, worker, max_bytes, id)
        among = any_queues(tenants, queues, weights, excluding)
        return claim_anywhere(self, request, among)

    def staged(self, write_id: str, keep: Duration | None = None) -> Staged:
        """Return a write in several transactions that takes effect exactly once under its id, however often repeated.

        A finished write is remembered for `keep` (default: a day).
        """
        return Staged(self._backend, self._telemetry, write_id, keep)

    def queues(self, tenant: str | None = None) -> builtins.list[QueueInfo]:
        """Return all queues, with their policies and counts, ordered by tenant and name.

        They are read by pages of 1,000, each as it is at its time: no single answer or snapshot holds all.
        """
        with self._telemetry.span("queues"):
            return all_queues(self._backend, None if tenant is None else checked("tenant", tenant))

    def apply(self, policies: Mapping[str | Queue, Policy], tenant: str = DEFAULT_TENANT) -> None:
        """Set the policies of several queues in one transaction; missing queues are created."""
        named: dict[QueueName, Policy] = {}
        for queue, policy in policies.items():
            named[queue.name if isinstance(queue, Queue) else queue_name(queue, tenant)] = checked_policy(policy)
        with self._telemetry.span("apply"):
            self._backend.configure(named)
        self._telemetry.info("configured", queues=[str(name) for name in named])

    def replace_queues(self, policies: Mapping[str, Policy], tenant: str = DEFAULT_TENANT) -> None:
        """Replace the tenant's queues with these, and delete all others, in one transaction.

        Raises QueueNotEmpty if one of the others has leased, waiting or dead jobs.
        """
        named = {checked("queue", queue): checked_policy(policy) for queue, policy in policies.items()}
        with self._telemetry.span("replace_queues"):
            self._backend.replace_queues(checked("tenant", tenant), named)
        self._telemetry.info("queues_replaced", tenant=tenant, queues=list(named))

    def delete_queue(self, queue: str, tenant: str = DEFAULT_TENANT, *, force: bool = False) -> bool:
        """Delete a queue with its policy and its done jobs; False if there is none.

        Raises QueueNotEmpty if it has leased jobs or, without `force`, waiting or dead ones.
        """
        name = queue_name(queue, tenant)
        with self._telemetry.span("delete_queue"):
            deleted = self._backend.delete_queue(name, bool(force))
        if deleted:
            self._telemetry.info("queue_deleted", tenant=tenant, queue=queue)
        return deleted

    def set_quota(self, tenant: str, quota: Quota | None) -> None:
        """Limit what a tenant may use of this store, over all its queues. None removes the limit."""
        given = Quota() if quota is None else quota
        if not isinstance(given, Quota):
            raise InvalidArgument(f"quota={quota!r} is not a Quota")
        with self._telemetry.span("set_quota"):
            self._backend.set_quota(checked("tenant", tenant), given.checked())
        self._telemetry.info("quota_set", tenant=tenant)

    def quotas(self, tenant: str | None = None) -> builtins.list[QuotaInfo]:
        """Return the tenants with a quota, and what each has waiting."""
        with self._telemetry.span("quotas"):
            return self._backend.quotas(None if tenant is None else checked("tenant", tenant))

    def schedules(self, tenant: str | None = None) -> builtins.list[Schedule]:
        """Return the schedules of one tenant, or of all, ordered by tenant and name."""
        with self._telemetry.span("schedules"):
            return self._backend.schedules(None if tenant is None else checked("tenant", tenant))

    def add_schedule(self, schedule: Schedule, *, replace: bool = False) -> None:
        """Store a schedule; workers enqueue its job once at each tick. `replace`: overwrite one of the same name.

        Raises InvalidArgument (not a schedule, or the name is taken), TooLarge (1,000 a tenant).
        """
        made = schedule.checked()
        self._change_schedule(made.name, made.tenant, ScheduleChange(put=made, replace=replace))

    def pause_schedule(self, name: str, tenant: str = DEFAULT_TENANT) -> bool:
        """Stop a schedule's ticks until it is resumed; False if there is none of that name."""
        return self._change_schedule(name, tenant, ScheduleChange(pause=True))

    def resume_schedule(self, name: str, tenant: str = DEFAULT_TENANT) -> bool:
        """Resume a paused schedule; False if there is none of that name."""
        return self._change_schedule(name, tenant, ScheduleChange(pause=False))

    def remove_schedule(self, name: str, tenant: str = DEFAULT_TENANT) -> bool:
        """Remove a schedule; False if there is none of that name. The jobs that it enqueued stay."""
        return self._change_schedule(name, tenant, ScheduleChange(remove=True))

    def run_schedule(self, name: str, tenant: str = DEFAULT_TENANT) -> Enqueued:
        """Enqueue a schedule's job now, also if it is paused. Raises NotFound."""
        found = next((each for each in self.schedules(tenant) if each.name == name), None)
        if found is None:
            raise NotFound(f"there is no schedule {name!r}")
        with self._telemetry.span("run_schedule"):
            return run_now(self._backend, found)

    def _change_schedule(self, name: str, tenant: str, change: ScheduleChange) -> bool:
        with self._telemetry.span("change_schedule"):
            changed = self._backend.change_schedule(checked("tenant", tenant), name, change)
        if changed:
            self._telemetry.info("schedule_changed", tenant=tenant, schedule=name)
        return changed

    def get(self, job_id: str) -> Job | None:
        """Return the job with that id, in any queue; None if there is none."""
        job = job_id_bytes(job_id)
        with self._telemetry.span("get"):
            return self._backend.find(job)

    def list(
        self,
        state: str = "ready",
        limit: int = 100,
        cursor: str | None = None,
        *,
        tenant: str | None = None,
        queues: Collection[str] | None = None,
    ) -> Page:
        """Return one page of the jobs in a state, queue by queue; `tenant` and `queues` (names) select queues."""
        checked_shown(state)
        whole_number("limit", limit, 1, 10_000)
        with self._telemetry.span("list"):
            return self._backend.list_all(state, limit, _cursor(cursor), *_checked_selection(tenant, queues))

    def upcoming(
        self,
        before: Moment | None = None,
        limit: int = 100,
        cursor: str | None = None,
        *,
        after: Moment | None = None,
        tenant: str | None = None,
        queues: Collection[str] | None = None,
    ) -> Page:
        """Return one page of the scheduled jobs that become ready before a time, and after another, earliest first."""
        before_ms = 2**62 if before is None else moment_ms("before", before)
        after_ms = 0 if after is None else moment_ms("after", after)
        whole_number("limit", limit, 1, 100_000)
        request = UpcomingRequest(before_ms, after_ms, limit, _cursor(cursor), *_checked_selection(tenant, queues))
        with self._telemetry.span("upcoming"):
            return self._backend.upcoming(request)

    def sweep(self) -> Swept:
        """Make one bounded pass over what is due: expired leases, ttl, retention, expired keys. `more`: call again."""
        self._notice_clock()
        with self._telemetry.span("sweep"):
            swept = self._backend.sweep()
        if swept.total:
            self._telemetry.info("swept", **{k: v for k in swept.__struct_fields__ if (v := getattr(swept, k))})
        return swept

    def cleanup(self, before: Moment | None = None, limit: int = 1000, progress: Progress | None = None) -> int:
        """Remove done jobs whose retention has passed; with `before`, all done and dead jobs that ended before it."""
        before_ms = None if before is None else moment_ms("before", before)
        with self._telemetry.span("cleanup"):
            removed = self._backend.cleanup(before_ms, whole_number("limit", limit, 1, 2**40), progress)
        if removed:
            self._telemetry.info("cleaned_up", removed=removed)
        return removed

    def events(
        self, after: str | None = None, limit: int = 1000, wait: Duration = 0, consumer: str | None = None
    ) -> EventPage:
        """Return durable events after a cursor (None: from the oldest), in order, waiting up to `wait` for the first.

        With `consumer`, the store remembers the position `after` under that name, and does not trim events after it.
        """
        whole_number("limit", limit, 1, 1_000_000)
        if consumer is not None:
            checked("consumer", consumer)
        if after is not None and not isinstance(after, str):
            raise InvalidArgument(f"after={after!r} is not a cursor")
        wait_ms = duration_ms("wait", wait)
        with self._telemetry.span("events"):
            return self._backend.events(after, limit, wait_ms, consumer)

    def forget_consumer(self, consumer: str) -> bool:
        """Forget a consumer, so that the journal may be trimmed past its position; False if there was none."""
        return self._backend.forget_consumer(checked("consumer", consumer))

    def check(self, repair: bool = False, progress: Progress | None = None, *, specification: bool = False) -> Report:
        """Verify every invariant on a snapshot of the store. With `repair`, fix what can be fixed and report how.

        `specification` also replays the journal: a finding names the first event that is no step of the specification.
        Such a finding cannot be repaired.
        """
        with self._telemetry.span("check"):
            report = self._backend.check(repair, progress)
            if specification:
                departures = specification_findings(self._backend)
                report = msgspec.structs.replace(report, findings=[*report.findings, *departures])
        if report.findings:
            self._telemetry.warning("check_found", findings=len(report.findings), ok=report.ok)
        return report

    def snapshot(self, path: str | os.PathLike[str]) -> None:
        """Write a copy of the store, as of now, to a new folder that can be opened as a store."""
        with self._telemetry.span("snapshot"):
            self._backend.snapshot(os.fspath(path))
        self._telemetry.info("snapshot_written", path=os.fspath(path))

    def take_snapshot(self, name: str = "snapshot", ttl: Duration = 3600) -> SnapshotInfo:
        """Keep a snapshot of the store under a name (not a path), until it has been unused for `ttl`."""
        checked("snapshot", name)
        ttl_ms = duration_ms("ttl", ttl, minimum_ms=1)
        with self._telemetry.span("take_snapshot"):
            info = self._backend.take_snapshot(name, ttl_ms)
        self._telemetry.info("snapshot_taken", snapshot=info.id, ttl_seconds=ttl_ms / 1000)
        return info

    def renew_snapshot(self, id: str) -> SnapshotInfo:
        """Keep the snapshot for another `ttl` from now. Raises SnapshotExpired."""
        with self._telemetry.span("renew_snapshot"):
            return self._backend.renew_snapshot(id)

    def drop_snapshot(self, id: str) -> bool:
        """Remove a named snapshot now; False if there was none."""
        with self._telemetry.span("drop_snapshot"):
            return self._backend.drop_snapshot(id)

    def snapshots(self) -> builtins.list[SnapshotInfo]:
        """Return the kept named snapshots, oldest first."""
        with self._telemetry.span("snapshots"):
            return self._backend.snapshots()

    def tables(self, *, snapshot: str | None = None) -> AbstractContextManager[Tables]:
        """Open a snapshot of the store as tables: `with store.tables() as tables: tables.pandas("jobs", state="dead")`.

        Reads a named snapshot, or one that is taken now and dropped at the end. Raises SettingsError if pyarrow is not
        installed.
        """
        with needs("analysis", "store.tables()"):
            # Imported by name: `bulk` depends on this class, and programs without Arrow never load it.
            access = import_module("tenure.bulk.table_access")
        found: AbstractContextManager[Tables] = access.tables(self, snapshot=snapshot)
        return found

    def _begin_sweeping(self, sweeper: Sweeper) -> None:
        """Start sweeping, once this process has become the owner of the store."""
        if self._sweeper is None:
            self._sweeper = sweeper
            sweeper.start(self.sweep)

    def close(self) -> None:
        """Stop the sweeper, make all writes durable, release the files. Closing twice is fine."""
        if self._sweeper is not None:
            self._sweeper.stop()
            self._sweeper = None
        self.closed = True
        self._backend.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.url} ({self.durability})>"

    def _notice_clock(self) -> None:
        """Log a step of the calendar, which the store's time does not follow."""
        drift = self._backend.clock_drift_ms()
        if abs(drift - self._drift_ms) > _STEP_MS:
            self._telemetry.warning("clock_stepped", by_seconds=(drift - self._drift_ms) / 1000)
        self._drift_ms = drift


def _cursor(cursor: object) -> str | None:
    if cursor is None or isinstance(cursor, str):
        return cursor
    raise InvalidArgument(f"cursor={cursor!r} is not a cursor")


def _checked_selection(tenant: str | None, queues: Collection[str] | None) -> tuple[str | None, Collection[str] | None]:
    """Check the selection of queues of a list."""
    if queues is not None:
        if isinstance(queues, str):
            raise InvalidArgument("queues is a list of names")
        queues = frozenset(checked("queue", queue) for queue in queues)
    return None if tenant is None else checked("tenant", tenant), queues


def claim_anywhere(
    store: Store, request: ClaimRequest, among: AnyQueues, cancel: threading.Event | None = None
) -> Claim:
    """Claim from the next of these queues in turn. Setting `cancel` ends the waiting."""
    with store._telemetry.span("claim_any") as span:
        leased = store._backend.claim_any(request, among, cancel)
        if leased is None or not leased.deliveries:
            return Claim.of_nothing()
        span.jobs(len(leased.deliveries))
    return Claim(store.queue(leased.name.queue, leased.name.tenant), leased)
