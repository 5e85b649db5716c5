"""The contract over HTTP, which `tenure.open("http://…")` uses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from urllib.parse import quote

import msgspec

from tenure.backends.remote.address import Address
from tenure.backends.remote.bulk_verbs import BulkVerbs
from tenure.backends.remote.credentials import Credentials
from tenure.backends.remote.requests import LONG_MS, query_of
from tenure.contract.backend import (
    Backend,
    Children,
    Events,
    Parents,
    Progress,
    QuotaInfos,
    Schedules,
    Steps,
    Topic,
    Watch,
)
from tenure.contract.network import NetworkServing
from tenure.contract.polling import Poller
from tenure.errors import (
    LeaseLost,
    NotFound,
    OpenError,
    TenureError,
    Unauthenticated,
    Unavailable,
)
from tenure.model.event import EventPage
from tenure.model.group import GroupPage
from tenure.model.job import Counts, Enqueued, Job, Page, QueuePage, Replayed, Swept
from tenure.model.lease import AnyQueues, ClaimRequest, Extended, Leased, Proof, Settle, receipt
from tenure.model.names import DEFAULT_TENANT, QueueName
from tenure.model.quota import Quota
from tenure.model.report import Report
from tenure.model.request import JobRequest, ReplayRequest, UpcomingRequest
from tenure.model.retry import Policy
from tenure.model.schedule import ScheduleChange
from tenure.protocol import messages as m
from tenure.protocol.operations import OPERATIONS
from tenure.protocol.problems import error_of
from tenure.storage.engine import Traits
from tenure.storage.folder import expand


class RemoteBackend(NetworkServing, BulkVerbs):
    """`contract.Backend` on a server."""

    def __init__(
        self,
        address: Address,
        *,
        encoding: str = "msgpack",
        credentials: Credentials | None = None,
        timeout: float = 30.0,
        ca_file: str | None = None,
        patience: float = 0.0,
        retry: bool = True,
    ) -> None:
        """Connect, trying for `patience` seconds. Raises OpenError, Unauthenticated."""
        super().__init__(
            address, encoding=encoding, credentials=credentials, timeout=timeout, ca_file=ca_file, retry=retry
        )
        self._poller = Poller()
        try:
            self._info = self._store(patience)
            # Every process that reaches the server can share the store: of this host by a Unix socket, of others by
            # TCP.
            self._traits = replace(self._info.traits, scope="host" if address.unix else "cluster", poll=None)
        except Unavailable as exc:
            self._transport.close()
            raise OpenError(f"no Tenure server answers there: {exc}") from exc
        except NotFound as exc:
            self._transport.close()
            raise OpenError(
                f"no Tenure server answers at {self.url}: the server there knows no stores ({exc}). Check the path of the URL"
            ) from exc
        except Unauthenticated as exc:
            self._transport.close()
            raise Unauthenticated(
                f"{self.url}: {exc} (a client's token is storage.http.token, TENURE_STORAGE_HTTP_TOKEN or storage.http.token_file)"
            ) from None
        except BaseException:
            self._transport.close()
            raise

    # ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _store(self, patience: float | None = None) -> m.StoreInfo:
        return self._ask(OPERATIONS["store"], "/v1/store", None, None, m.StoreInfo, patience=patience)

    @property
    def traits(self) -> Traits:
        return self._traits

    def now_ms(self) -> int:
        return self._store().now_ms

    def clock_drift_ms(self) -> int:
        return self._store().drift_ms

    def on_retry(self, notify: Callable[[str], None]) -> None:
        self._transport.retried = notify

    def close(self) -> None:
        self._transport.close()

    # ── produce and consume ──────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, name: QueueName, jobs: Sequence[JobRequest]) -> list[Enqueued]:
        return self._of_queue("enqueue", name, "/jobs", m.job_bodies(jobs), list[Enqueued])

    def claim(
        self, names: Sequence[QueueName], request: ClaimRequest, cancel: threading.Event | None = None
    ) -> Leased | None:
        reply = self._claimed(request, lambda left_ms: self._claim(names, request, left_ms, cancel), cancel)
        return None if reply is None else reply.leased(_leased_queue(names, reply))

    def claim_any(
        self, request: ClaimRequest, among: AnyQueues, cancel: threading.Event | None = None
    ) -> Leased | None:
        limit, lease_ms, worker = request.limit, request.lease_ms, request.worker
        operation = OPERATIONS["claim_any"]

        def ask(wait_ms: int) -> m.ClaimReply:
            body = m.ClaimAnyBody(
                limit, lease_ms, wait_ms, worker, request.max_bytes, request.id, True,
                tenants=None if among.tenants is None else sorted(among.tenants),
                queues=None if among.queues is None else sorted(among.queues),
                weights=among.weights or None,
                excluding=sorted(among.excluding) or None,
            )  # fmt: skip
            return self._ask(operation, "/v1/claims/any", None, body, m.ClaimReply, wait_ms=wait_ms, cancel=cancel)

        reply = self._claimed(request, ask, cancel)
        return None if reply is None else reply.leased(QueueName(reply.tenant, reply.queue))

    def _claimed(
        self, request: ClaimRequest, ask: Callable[[int], m.ClaimReply], cancel: threading.Event | None
    ) -> m.ClaimReply | None:
        """Repeat the request with the rest of the wait until there is a lease or no time is left. None: no lease."""
        left_ms = request.wait_ms
        while True:
            if cancel is not None and cancel.is_set() and left_ms:
                return None
            try:
                reply = ask(left_ms)
            except LeaseLost:
                if request.id is not None or self._request:
                    raise
                # This process chose the id: the reply was lost, and the lease expired before the repeat. Its jobs are
                # ready again.
                continue
            if reply.lease is not None:
                return reply
            left_ms = reply.left_ms
            if left_ms <= 0:
                return None

    def _claim(
        self, names: Sequence[QueueName], request: ClaimRequest, wait_ms: int, cancel: threading.Event | None
    ) -> m.ClaimReply:
        limit, lease_ms, worker, max_bytes, id = (
            request.limit,
            request.lease_ms,
            request.worker,
            request.max_bytes,
            request.id,
        )
        if len(names) == 1:
            body = m.ClaimBody(limit, lease_ms, wait_ms, worker, max_bytes, id, True)
            return self._of_queue("claim", names[0], "/claims", body, m.ClaimReply, wait_ms=wait_ms, cancel=cancel)
        tenant, queues = _tenant_and_queues(names)
        several = m.ClaimSeveralBody(limit, lease_ms, wait_ms, worker, max_bytes, id, True, queues=queues)
        operation = OPERATIONS["claim_several"]
        return self._ask(operation, "/v1/claims", tenant, several, m.ClaimReply, wait_ms=wait_ms, cancel=cancel)

    def watch(self, topics: Sequence[Topic], wait_ms: int, notify: Callable[[], None]) -> Watch:
        return self._poller.watch(topics, wait_ms, notify)

    def settle(self, name: QueueName, items: Sequence[Settle]) -> list[TenureError | None]:
        reply = self._of_queue("settle", name, "/settle", m.SettleBody.of(items), m.SettleReply)
        return [None if problem is None else error_of(problem) for problem in reply.results]

    def extend(self, name: QueueName, lease: bytes, lease_ms: int) -> Extended:
        return self._of_queue("extend", name, f"/leases/{lease.hex()}/extend", m.ExtendBody(lease_ms), Extended)

    def progress(self, name: QueueName, proof: Proof, fraction: float, note: str | None) -> None:
        self._of_queue("progress", name, "/progress", m.ProgressBody(receipt(*proof), fraction, note), m.Done)

    def record_step(self, name: QueueName, proof: Proof, step: str, value: bytes) -> bytes:
        return self._of_queue(
            "record_step", name, "/steps", m.StepBody(receipt(*proof), step, value), m.StepValue
        ).value

    def signal(self, name: QueueName, job: bytes, signal: str, payload: bytes) -> bool:
        return self._of_queue("signal", name, f"/jobs/{job.hex()}/signal", m.SignalBody(signal, payload), m.Given).given

    def steps(self, name: QueueName, job: bytes) -> Steps:
        return self._of_queue("steps", name, f"/jobs/{job.hex()}/steps", None, m.StepList).steps

    # ── read ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, name: QueueName, job: bytes) -> Job | None:
        return self._job("get", name, f"/jobs/{job.hex()}")

    def wait_for(self, name: QueueName, job: bytes, timeout_ms: int) -> Job | None:
        path = f"/jobs/{job.hex()}/wait?timeout_ms={timeout_ms}"
        return self._job("wait_for", name, path, wait_ms=timeout_ms)

    def _job(self, verb: str, name: QueueName, rest: str, wait_ms: int = 0) -> Job | None:
        try:
            return self._of_queue(verb, name, rest, None, Job, wait_ms=wait_ms)
        except NotFound:
            return None

    def list(self, name: QueueName, state: str, limit: int, cursor: str | None) -> Page:
        query = query_of(state=state, limit=limit, cursor=cursor)
        return self._of_queue("list", name, "/jobs" + query, None, Page)

    def counts(self, name: QueueName) -> Counts:
        return self._of_queue("counts", name, "/counts", None, Counts)

    def groups(self, name: QueueName, limit: int, cursor: str | None) -> GroupPage:
        return self._of_queue("groups", name, "/groups" + query_of(limit=limit, cursor=cursor), None, GroupPage)

    def holder(self, name: QueueName, key: str) -> bytes | None:
        try:
            found = self._of_queue("holder", name, "/key" + query_of(key=key), None, m.KeyHolder)
        except NotFound:
            return None
        return bytes.fromhex(found.id)

    def timeline(self, name: QueueName, job: bytes) -> Events:
        try:
            return self._of_queue("timeline", name, f"/jobs/{job.hex()}/timeline", None, m.EventList).events
        except NotFound:
            return []

    def parents(self, name: QueueName, job: bytes, begin: int, limit: int) -> Parents:
        query = query_of(begin=begin, limit=limit)
        return self._of_queue("parents", name, f"/jobs/{job.hex()}/parents{query}", None, m.ParentList).parents

    def children(self, name: QueueName, job: bytes, limit: int) -> Children:
        query = query_of(limit=limit)
        return self._of_queue("children", name, f"/jobs/{job.hex()}/children{query}", None, m.ChildList).children

    def policy(self, name: QueueName) -> Policy:
        return self._of_queue("policy", name, "/policy", None, Policy)

    def queues(self, tenant: str | None, limit: int, cursor: str | None) -> QueuePage:
        at = "/v1/queues" + query_of(limit=limit, cursor=cursor)
        reply = self._ask(OPERATIONS["queues"], at, tenant, None, m.QueueList)
        return QueuePage([queue.info() for queue in reply.queues], reply.cursor)

    def schedules(self, tenant: str | None) -> Schedules:
        return self._ask(OPERATIONS["schedules"], "/v1/schedules", tenant, None, m.ScheduleList).schedules

    def change_schedule(self, tenant: str, name: str, change: ScheduleChange) -> bool:
        at = f"/v1/schedules/{quote(name, safe='')}"
        body: msgspec.Struct | None = None
        if change.put is not None:
            operation, body = "add_schedule", m.ScheduleBody.of(change.put, replace=change.replace)
        elif change.remove:
            operation = "remove_schedule"
        else:
            operation = "pause_schedule" if change.pause else "resume_schedule"
            at += "/pause" if change.pause else "/resume"
        try:
            self._ask(OPERATIONS[operation], at, tenant, body, m.Done)
        except NotFound:
            return False
        return True

    def set_quota(self, tenant: str, quota: Quota) -> None:
        self._ask(OPERATIONS["set_quota"], f"/v1/quotas/{quote(tenant, safe='')}", None, quota, m.Done, wait_ms=LONG_MS)

    def quotas(self, tenant: str | None) -> QuotaInfos:
        return self._ask(OPERATIONS["quotas"], "/v1/quotas", tenant, None, m.QuotaList).quotas

    def draw(self, tenant: str, requests: int) -> int:
        body = m.DrawBody(requests)
        return self._ask(OPERATIONS["draw"], f"/v1/quotas/{quote(tenant, safe='')}/draw", None, body, m.Count).count

    def find(self, job: bytes) -> Job | None:
        try:
            return self._ask(OPERATIONS["find"], f"/v1/jobs/{job.hex()}", None, None, Job)
        except NotFound:
            return None

    def list_all(
        self, state: str, limit: int, cursor: str | None, tenant: str | None, queues: Collection[str] | None
    ) -> Page:
        path = "/v1/jobs" + query_of(state=state, limit=limit, cursor=cursor, queues=_comma_separated(queues))
        return self._ask(OPERATIONS["list_all"], path, tenant, None, Page)

    def upcoming(self, request: UpcomingRequest) -> Page:
        before_ms, after_ms, limit, cursor, tenant, queues = request
        path = "/v1/upcoming" + query_of(
            before_ms=before_ms, after_ms=after_ms, limit=limit, cursor=cursor, queues=_comma_separated(queues)
        )
        return self._ask(OPERATIONS["upcoming"], path, tenant, None, Page)

    def events(self, after: str | None, limit: int, wait_ms: int, consumer: str | None) -> EventPage:
        path = "/v1/events" + query_of(after=after, limit=limit, wait_ms=wait_ms or None, consumer=consumer)
        return self._ask(OPERATIONS["events"], path, None, None, EventPage, wait_ms=wait_ms)

    def newest_events(self, limit: int) -> EventPage:
        return self._ask(
            OPERATIONS["newest_events"], "/v1/events/newest" + query_of(limit=limit), None, None, EventPage
        )

    # ── manage ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def replay(self, name: QueueName, request: ReplayRequest, progress: Progress | None = None) -> Replayed:
        replayed = self._of_queue("replay", name, "/replay", m.ReplayBody.of(request), Replayed)
        if progress is not None and not request.dry_run:
            progress(replayed.count, replayed.count)
        return replayed

    def cancel(self, name: QueueName, job: bytes) -> bool:
        try:
            self._of_queue("cancel", name, f"/jobs/{job.hex()}", None, m.Done)
        except NotFound:
            return False
        return True

    def purge(self, name: QueueName, state: str, progress: Progress | None = None) -> int:
        count = self._of_queue("purge", name, "/purge", m.PurgeBody(state), m.Count).count  # type: ignore[arg-type]
        if progress is not None:
            progress(count, count)
        return count

    def set_paused(self, name: QueueName, paused: bool) -> None:
        verb = "pause" if paused else "resume"
        self._of_queue(verb, name, "/" + verb, None, m.Done)

    def configure(self, policies: Mapping[QueueName, Policy]) -> None:
        if len(policies) == 1:
            ((name, policy),) = policies.items()
            self._of_queue("configure", name, "/policy", policy, m.Done)
            return
        tenant, queues = _tenant_and_queues(list(policies))
        body = dict(zip(queues, policies.values(), strict=True))
        self._ask(OPERATIONS["apply"], "/v1/queues", tenant, body, m.Done)

    def delete_queue(self, name: QueueName, force: bool) -> bool:
        try:
            self._of_queue("delete_queue", name, query_of(force="true" if force else None), None, m.Done)
        except NotFound:
            return False
        return True

    def replace_queues(self, tenant: str, policies: Mapping[str, Policy]) -> None:
        body = dict(policies)
        self._ask(OPERATIONS["replace_queues"], "/v1/queue-set", tenant, body, m.Done, wait_ms=LONG_MS)

    def sweep(self) -> Swept:
        return self._ask(OPERATIONS["sweep"], "/v1/admin/sweep", None, None, Swept)

    def cleanup(self, before_ms: int | None, limit: int, progress: Progress | None = None) -> int:
        body = m.CleanupBody(before_ms, limit)
        count = self._ask(OPERATIONS["cleanup"], "/v1/admin/cleanup", None, body, m.Count, wait_ms=LONG_MS).count
        if progress is not None:
            progress(count, count)
        return count

    def forget_consumer(self, consumer: str) -> bool:
        try:
            self._ask(OPERATIONS["forget_consumer"], f"/v1/consumers/{consumer}", None, None, m.Done)
        except NotFound:
            return False
        return True

    def check(self, repair: bool, progress: Progress | None = None) -> Report:
        # Checking a large store takes minutes, so this request has no practical deadline.
        body = m.CheckBody(repair)
        return self._ask(OPERATIONS["check"], "/v1/admin/check", None, body, Report, wait_ms=LONG_MS)

    def once(self, request: bytes) -> Backend:
        """Return a view of the same store, whose next verb is sent under that id."""
        return RemoteRequestView(self, request)

    def snapshot(self, path: str) -> None:
        body = m.SnapshotBody(str(expand(path)))
        self._ask(OPERATIONS["snapshot"], "/v1/admin/snapshot", None, body, m.Done, wait_ms=LONG_MS)


class RemoteRequestView(RemoteBackend):
    """A view of a client for one request whose id is already chosen."""

    def __init__(self, backend: RemoteBackend, request: bytes) -> None:
        vars(self).update(vars(backend))
        self._request = request.hex()

    def close(self) -> None:
        """Do nothing: the view does not own the store."""


def _tenant_and_queues(names: Sequence[QueueName]) -> tuple[str | None, list[str]]:
    """Return the tenant for the header if all queues share it; otherwise None, and each name with its tenant."""
    tenants = {name.tenant for name in names}
    if len(tenants) == 1:
        (tenant,) = tenants
        return None if tenant == DEFAULT_TENANT else tenant, [name.queue for name in names]
    return None, [f"{name.tenant}/{name.queue}" for name in names]


def _comma_separated(queues: Collection[str] | None) -> str | None:
    return None if queues is None else ",".join(sorted(queues))


def _leased_queue(names: Sequence[QueueName], reply: m.ClaimReply) -> QueueName:
    """Return the queue that the reply leases from. A token's own tenant is called the default tenant here."""
    exact = QueueName(reply.tenant, reply.queue)
    return exact if exact in names else next(name for name in names if name.queue == reply.queue)
