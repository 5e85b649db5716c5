"""The contract over HTTP: what `leasehold.open("http://…")` stands on."""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from leasehold.errors import (
    LeaseholdError,
    LeaseLost,
    NotFound,
    OpenError,
    SnapshotExpired,
    Unauthenticated,
    Unavailable,
)
from leasehold.model.event import EventPage
from leasehold.model.job import Counts, Enqueued, Job, Page, QueueInfo, Replayed, Restored, Swept
from leasehold.model.lease import ClaimRequest, Extended, Leased, Proof, Settle, receipt
from leasehold.model.names import DEFAULT_TENANT, QueueName
from leasehold.model.quota import Quota
from leasehold.model.report import Report
from leasehold.model.request import JobImage, JobRequest, ReplayRequest
from leasehold.model.retry import Policy
from leasehold.model.snapshot import JournalSlice, SnapshotInfo
from leasehold.model.write import LoadRequest, LoadTarget, Published, WriteState
from leasehold.storage.engine import Traits
from leasehold.storage.folder import expand
from leasehold.stores.contract import (
    Backend,
    Events,
    JobIds,
    Jobs,
    Progress,
    QueueInfos,
    QuotaInfos,
    SnapshotInfos,
    Topic,
    Watch,
)
from leasehold.stores.polling import Poller
from leasehold.stores.remote import messages as m
from leasehold.stores.remote.address import Address
from leasehold.stores.remote.calls import Operation
from leasehold.stores.remote.credentials import Credentials
from leasehold.stores.remote.faults import error_of
from leasehold.stores.remote.formats import ARROW, FORMATS, JSON, MSGPACK
from leasehold.stores.remote.mending import write_word
from leasehold.stores.remote.operations import OPERATIONS
from leasehold.stores.remote.transport import Answer, Transport
from leasehold.stores.tracing import client_span

T = TypeVar("T")

#: For what takes as long as it takes: a check of a large store, a copy of it.
_LONG_MS = 86_400_000
_WORD = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_clients: weakref.WeakSet[RemoteBackend] = weakref.WeakSet()


def _disown_in_child() -> None:
    for client in list(_clients):
        client._transport.disown()


os.register_at_fork(after_in_child=_disown_in_child)


class RemoteBackend:
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
        """`patience` is how long to try for a first answer. Raises OpenError, Unauthenticated."""
        self.url = address.url
        self._format = FORMATS[encoding]
        self._transport = Transport(address, timeout=timeout, ca_file=ca_file, retry=retry)
        fixed = f" HTTP/1.1\r\nHost: {address.authority}\r\nAccept: {self._format.content_type}\r\n"
        self._credentials = credentials or Credentials()
        self._base = address.base
        self._fixed = fixed
        self._content_type = f"Content-Type: {self._format.content_type}\r\n"
        self._poller = Poller()
        self._request = ""
        _clients.add(self)
        try:
            self._info = self._store(patience)
            # Whoever can reach the server may share the store: processes of this host by a Unix socket, others by TCP.
            self._traits = replace(self._info.traits, scope="host" if address.unix else "cluster", poll=None)
        except Unavailable as exc:
            self._transport.close()
            raise OpenError(f"no Leasehold server answers there: {exc}") from exc
        except BaseException:
            self._transport.close()
            raise

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _ask(
        self,
        operation: Operation,
        path: str,
        tenant: str | None,
        request: object,
        answers: type[T],
        *,
        wait_ms: int = 0,
        cancel: threading.Event | None = None,
        patience: float | None = None,
    ) -> T:
        name = (self._request or os.urandom(16).hex()) if operation.writes else ""
        carried: dict[str, str] = {}
        with client_span(operation.name, carried, {"server.address": self.url}):
            more = "".join(f"{header}: {value}\r\n" for header, value in carried.items())
            sent = self._credentials.header
            try:
                return self._asked(
                    operation, path, tenant, request, answers, name, sent + more, wait_ms, cancel, patience
                )
            except Unauthenticated:
                # Another thread may have renewed them meanwhile.
                if self._credentials.header == sent and not self._credentials.renew():
                    raise
            sent = self._credentials.header
            return self._asked(operation, path, tenant, request, answers, name, sent + more, wait_ms, cancel, patience)

    def _asked(
        self,
        operation: Operation,
        path: str,
        tenant: str | None,
        request: object,
        answers: type[T],
        name: str,
        more: str,
        wait_ms: int,
        cancel: threading.Event | None,
        patience: float | None,
    ) -> T:
        head = f"{operation.method} {self._base}{path}{self._fixed}{more}"
        if tenant is not None:
            head += f"Leasehold-Tenant: {tenant}\r\n"
        if name:
            head += f"Leasehold-Request: {name}\r\n"
        if request is None:
            head += "\r\n" if operation.in_query else "Content-Length: 0\r\n\r\n"
            parts = [head.encode("ascii")]
        else:
            body = self._format.encode(request)
            start = f"{head}{self._content_type}Content-Length: {len(body)}\r\n\r\n".encode("ascii")
            parts = [start + body] if len(body) < 1 << 16 else [start, body]
        answer = self._transport.exchange(
            parts,
            wait=wait_ms / 1000,
            patience=patience,
            cancel=cancel if wait_ms else None,
            call_off=lambda: self._call_off(name, tenant),
        )
        return self._read(answer, answers)

    def _read(self, answer: Answer, answers: type[T]) -> T:
        written = MSGPACK if "msgpack" in answer.content_type else JSON
        try:
            if answer.status == 200:
                return written.decode(answer.body, answers)
            problem = written.decode(answer.body, m.Problem)
        except msgspec.DecodeError as exc:
            raise Unavailable(
                f"{self.url} answers {answer.status}, and not as a Leasehold server does: {exc}"
            ) from None
        raise error_of(problem)

    def _call_off(self, name: str, tenant: str | None) -> None:
        """Tell the server that a waiting request is no longer wanted; its answer says what became of it."""
        head = f"DELETE {self._base}/v1/requests/{name}{self._fixed}{self._credentials.header}"
        if tenant is not None:
            head += f"Leasehold-Tenant: {tenant}\r\n"
        self._transport.exchange([(head + "\r\n").encode("ascii")], patience=1.0)

    def _of_queue(
        self,
        verb: str,
        name: QueueName,
        rest: str,
        request: object,
        answers: type[T],
        *,
        wait_ms: int = 0,
        cancel: threading.Event | None = None,
    ) -> T:
        # The default tenant is not named: it is whichever the token is for.
        tenant = None if name.tenant == DEFAULT_TENANT else name.tenant
        return self._ask(
            OPERATIONS[verb],
            f"/v1/queues/{name.queue}{rest}",
            tenant,
            request,
            answers,
            wait_ms=wait_ms,
            cancel=cancel,
        )

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

    def on_retry(self, told: Callable[[str], None]) -> None:
        self._transport.retried = told

    def close(self) -> None:
        self._transport.close()

    # ── produce and consume ──────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, name: QueueName, jobs: Sequence[JobRequest]) -> list[Enqueued]:
        return self._of_queue("enqueue", name, "/jobs", [m.JobBody.of(job) for job in jobs], list[Enqueued])

    def claim(
        self, names: Sequence[QueueName], request: ClaimRequest, cancel: threading.Event | None = None
    ) -> Leased | None:
        left_ms = request.wait_ms
        while True:
            if cancel is not None and cancel.is_set() and left_ms:
                return None
            try:
                reply = self._claim(names, request, left_ms, cancel)
            except LeaseLost:
                if request.id is not None or self._request:
                    raise
                # The id was ours: the answer was lost, and the lease ran out before we could ask again. Its jobs are back.
                continue
            if reply.lease is not None:
                return reply.leased(_which(names, reply))
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
            body = m.ClaimBody(limit, lease_ms, wait_ms, worker, max_bytes, id)
            return self._of_queue("claim", names[0], "/claims", body, m.ClaimReply, wait_ms=wait_ms, cancel=cancel)
        tenant, queues = _told(names)
        several = m.ClaimAnyBody(limit, lease_ms, wait_ms, worker, max_bytes, id, queues=queues)
        operation = OPERATIONS["claim_any"]
        return self._ask(operation, "/v1/claims", tenant, several, m.ClaimReply, wait_ms=wait_ms, cancel=cancel)

    def watch(self, topics: Sequence[Topic], wait_ms: int, told: Callable[[], None]) -> Watch:
        return self._poller.watch(topics, wait_ms, told)

    def settle(self, name: QueueName, items: Sequence[Settle]) -> list[LeaseholdError | None]:
        body = m.SettleBody([m.SettleItem.of(item) for item in items])
        reply = self._of_queue("settle", name, "/settle", body, m.SettleReply)
        return [None if problem is None else error_of(problem) for problem in reply.results]

    def extend(self, name: QueueName, lease: bytes, lease_ms: int) -> Extended:
        return self._of_queue("extend", name, f"/leases/{lease.hex()}/extend", m.ExtendBody(lease_ms), Extended)

    def progress(self, name: QueueName, proof: Proof, fraction: float, note: str | None) -> None:
        self._of_queue("progress", name, "/progress", m.ProgressBody(receipt(*proof), fraction, note), m.Done)

    # ── bring in ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def restore(self, name: QueueName, jobs: Sequence[JobImage]) -> Restored:
        body = m.RestoreBody([m.ImageBody.of(job) for job in jobs])
        return self._of_queue("restore", name, "/restore", body, Restored)

    def discard(self, name: QueueName, state: str, tokens: Mapping[bytes, int]) -> JobIds:
        body = m.DiscardBody(state, {job.hex(): token for job, token in tokens.items()})  # type: ignore[arg-type]
        return [bytes.fromhex(job) for job in self._of_queue("discard", name, "/discard", body, m.JobIdList).ids]

    def begin_write(self, write_id: str, manifest: bytes, keep_ms: int) -> WriteState:
        return self._write("begin_write", write_id, "", m.WriteBody(manifest, keep_ms), WriteState)

    def write_state(self, write_id: str) -> WriteState | None:
        try:
            return self._write("write_state", write_id, "", None, WriteState)
        except NotFound:
            return None

    def publish(self, write_id: str, chunk: int, name: QueueName, jobs: Sequence[JobRequest]) -> Published:
        queue = name.queue if name.tenant == DEFAULT_TENANT else f"{name.tenant}/{name.queue}"
        body = m.ChunkBody(queue, [m.JobBody.of(job) for job in jobs])
        return self._write("publish", write_id, f"/chunks/{chunk}", body, Published)

    def finish_write(self, write_id: str, forget: str | None = None) -> WriteState:
        return self._write("finish_write", write_id, "/finish", m.FinishBody(forget), WriteState)

    def put_piece(self, write_id: str, part: str, piece: int, data: bytes) -> None:
        self._write("put_piece", write_id, f"/parts/{part}/{piece}", m.PieceBody(data), m.Done)

    def piece(self, write_id: str, part: str, piece: int) -> bytes | None:
        try:
            return self._write("piece", write_id, f"/parts/{part}/{piece}", None, m.PieceBody).data
        except NotFound:
            return None

    def drop_pieces(self, write_id: str) -> None:
        self._write("drop_pieces", write_id, "/parts", None, m.Done)

    def load_target(self, name: QueueName) -> LoadTarget:
        return self._of_queue("load_target", name, "/load-target", None, LoadTarget)

    def load(self, request: LoadRequest) -> WriteState:
        body = m.LoadBody(request.manifest, request.parts, request.keep_ms)
        return self._write("load", request.id, "/load", body, WriteState)

    def _write(self, verb: str, write_id: str, rest: str, body: object, answers: type[T]) -> T:
        return self._ask(OPERATIONS[verb], f"/v1/writes/{write_word(write_id)}{rest}", None, body, answers)

    # ── look ─────────────────────────────────────────────────────────────────────────────────────────────────────────

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
        query = _query(state=state, limit=limit, cursor=cursor)
        return self._of_queue("list", name, "/jobs" + query, None, Page)

    def counts(self, name: QueueName) -> Counts:
        return self._of_queue("counts", name, "/counts", None, Counts)

    def timeline(self, name: QueueName, job: bytes) -> Events:
        try:
            return self._of_queue("timeline", name, f"/jobs/{job.hex()}/timeline", None, m.EventList).events
        except NotFound:
            return []

    def policy(self, name: QueueName) -> Policy:
        return self._of_queue("policy", name, "/policy", None, Policy)

    def queues(self, tenant: str | None) -> QueueInfos:
        reply = self._ask(OPERATIONS["queues"], "/v1/queues", tenant, None, m.QueueList)
        return [
            QueueInfo(
                tenant=q.tenant, queue=q.queue, number=q.number, paused=q.paused, policy=q.policy, counts=q.counts
            )
            for q in reply.queues
        ]

    def set_quota(self, tenant: str, quota: Quota) -> None:
        self._ask(OPERATIONS["set_quota"], f"/v1/quotas/{tenant}", None, quota, m.Done, wait_ms=_LONG_MS)

    def quotas(self, tenant: str | None) -> QuotaInfos:
        return self._ask(OPERATIONS["quotas"], "/v1/quotas", tenant, None, m.QuotaList).quotas

    def draw(self, tenant: str, requests: int) -> int:
        body = m.DrawBody(requests)
        return self._ask(OPERATIONS["draw"], f"/v1/quotas/{tenant}/draw", None, body, m.Count).count

    def upcoming(self, before_ms: int, limit: int) -> Jobs:
        path = "/v1/upcoming" + _query(before_ms=before_ms, limit=limit)
        return self._ask(OPERATIONS["upcoming"], path, None, None, m.JobList).jobs

    def events(self, after: str | None, limit: int, wait_ms: int, consumer: str | None) -> EventPage:
        path = "/v1/events" + _query(after=after, limit=limit, wait_ms=wait_ms or None, consumer=consumer)
        return self._ask(OPERATIONS["events"], path, None, None, EventPage, wait_ms=wait_ms)

    # ── mend ─────────────────────────────────────────────────────────────────────────────────────────────────────────

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
        tenant, queues = _told(list(policies))
        body = dict(zip(queues, policies.values(), strict=True))
        self._ask(OPERATIONS["apply"], "/v1/queues", tenant, body, m.Done)

    def sweep(self) -> Swept:
        return self._ask(OPERATIONS["sweep"], "/v1/admin/sweep", None, None, Swept)

    def cleanup(self, before_ms: int | None, limit: int, progress: Progress | None = None) -> int:
        body = m.CleanupBody(before_ms, limit)
        count = self._ask(OPERATIONS["cleanup"], "/v1/admin/cleanup", None, body, m.Count, wait_ms=_LONG_MS).count
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
        # A large store takes minutes: the answer may take as long as the server needs.
        body = m.CheckBody(repair)
        return self._ask(OPERATIONS["check"], "/v1/admin/check", None, body, Report, wait_ms=_LONG_MS)

    # ── read in bulk ─────────────────────────────────────────────────────────────────────────────────────────────────

    def take_snapshot(self, name: str, ttl_ms: int) -> SnapshotInfo:
        body = m.TakeBody(ttl_ms, name)
        return self._ask(OPERATIONS["take_snapshot"], "/v1/snapshots", None, body, SnapshotInfo, wait_ms=_LONG_MS)

    def renew_snapshot(self, id: str) -> SnapshotInfo:
        if not _WORD.fullmatch(id):
            raise SnapshotExpired(id)  # no server gave that out
        return self._ask(OPERATIONS["renew_snapshot"], f"/v1/snapshots/{id}/renew", None, None, SnapshotInfo)

    def drop_snapshot(self, id: str) -> bool:
        if not _WORD.fullmatch(id):
            return False
        try:
            self._ask(OPERATIONS["drop_snapshot"], f"/v1/snapshots/{id}", None, None, m.Done)
        except NotFound:
            return False
        return True

    def snapshots(self) -> SnapshotInfos:
        return self._ask(OPERATIONS["snapshots"], "/v1/snapshots", None, None, m.SnapshotList).snapshots

    def table_parts(self, snapshot: str, table: str, **which: object) -> m.PartList:
        """Beside the contract: readers elsewhere cut and read a snapshot's tables through the server."""
        path = f"/v1/snapshots/{snapshot}/{table}/parts" + _query(**which)
        return self._ask(OPERATIONS["table_parts"], path, None, None, m.PartList, wait_ms=_LONG_MS)

    def read_table(self, snapshot: str, table: str, **which: object) -> bytes:
        """A page, as an Arrow stream."""
        path = f"/v1/snapshots/{snapshot}/{table}" + _query(**which)
        head = f"GET {self._base}{path}{self._fixed}\r\n".encode("ascii")
        answer = self._transport.exchange([head], wait=60.0)
        return answer.body if answer.content_type == ARROW else self._read(answer, bytes)

    def journal_slice(self, begin: int | None, end: int | None, max_bytes: int) -> JournalSlice:
        path = "/v1/journal" + _query(begin=begin, end=end, max_bytes=min(max_bytes, 64 * 1024**2))
        return self._ask(OPERATIONS["journal_slice"], path, None, None, JournalSlice)

    def once(self, request: bytes) -> Backend:
        """The same store, whose next verb goes by that id."""
        return RemoteOnce(self, request)

    def snapshot(self, path: str) -> None:
        body = m.SnapshotBody(str(expand(path)))
        self._ask(OPERATIONS["snapshot"], "/v1/admin/snapshot", None, body, m.Done, wait_ms=_LONG_MS)


class RemoteOnce(RemoteBackend):
    """A view of a client for one request whose id was chosen before."""

    def __init__(self, backend: RemoteBackend, request: bytes) -> None:
        vars(self).update(vars(backend))
        self._request = request.hex()

    def close(self) -> None:
        """The store is not the view's to close."""


def _query(**values: object) -> str:
    given = {name: value for name, value in values.items() if value is not None}
    return "?" + urlencode(given) if given else ""


def _told(names: Sequence[QueueName]) -> tuple[str | None, list[str]]:
    """Several queues by one tenant's header, or each with its tenant before it."""
    tenants = {name.tenant for name in names}
    if len(tenants) == 1:
        (tenant,) = tenants
        return None if tenant == DEFAULT_TENANT else tenant, [name.queue for name in names]
    return None, [f"{name.tenant}/{name.queue}" for name in names]


def _which(names: Sequence[QueueName], reply: m.ClaimReply) -> QueueName:
    """The one of the queues asked for that the reply is of; a token's own tenant goes by the default's name here."""
    exact = QueueName(reply.tenant, reply.queue)
    return exact if exact in names else next(name for name in names if name.queue == reply.queue)
