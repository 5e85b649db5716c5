"""What travels: requests and replies as structs, the same in JSON and in MessagePack.

Times are whole milliseconds and say so (`_ms`); ids and leases are hex; payloads and results are bytes, which JSON
writes as base64. What `model` already has a struct for (Job, Counts, EventPage, …) travels as that struct.
A request with a field that is not listed here is refused; a reply may grow fields, which older clients pass over.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from leasehold.errors import InvalidArgument
from leasehold.model.durations import MAX_MS
from leasehold.model.event import Event
from leasehold.model.ids import job_id_bytes
from leasehold.model.job import MAX_ERROR_CHARS, Counts, Job
from leasehold.model.lease import ClaimRequest, Delivery, Leased, Settle, proof_of
from leasehold.model.names import MAX_KEY_BYTES, MAX_WORKER_BYTES, QueueName, short_text
from leasehold.model.quota import QuotaInfo
from leasehold.model.request import JobImage, JobRequest, ReplayRequest, checked_bytes, checked_headers
from leasehold.model.retry import MAX_ATTEMPTS, Policy
from leasehold.model.snapshot import SnapshotInfo
from leasehold.model.write import CHUNK, LoadPart
from leasehold.storage.engine import Traits
from leasehold.stores.queue import MAX_CLAIM

Span = Annotated[int, Meta(ge=0, le=MAX_MS)]
SomeSpan = Annotated[int, Meta(ge=1, le=MAX_MS)]
Moment = Annotated[int, Meta(ge=0, le=2 * MAX_MS)]
Limit = Annotated[int, Meta(ge=1, le=10_000)]
State = Literal["ready", "scheduled", "leased", "done", "dead"]


def checked_text(what: str, text: str | None) -> bytes:
    try:
        return b"" if text is None else text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} is not valid Unicode") from None


class Request(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all requests."""


class Nothing(Request):
    """A request that says nothing besides its path."""


# ── produce ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class JobBody(Request):
    """A job to enqueue: its payload, or `text` where a person writes it."""

    payload: bytes | None = None
    text: str | None = None
    delay_ms: Span = 0
    at_ms: Moment | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] = 0
    key: Annotated[str, Meta(min_length=1, max_length=MAX_KEY_BYTES)] | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)] | None = None
    ttl_ms: SomeSpan | None = None
    headers: dict[str, str] | None = None

    def checked(self) -> JobRequest:
        payload = self.payload
        if payload is None or self.text is not None:
            payload = self._from_text()
        if self.delay_ms and self.at_ms is not None:
            raise InvalidArgument("give delay_ms or at_ms, not both")
        return JobRequest(
            checked_bytes("payload", payload),
            self.delay_ms,
            self.at_ms,
            self.priority,
            None if self.key is None else short_text("key", self.key, MAX_KEY_BYTES),
            self.max_attempts,
            self.ttl_ms,
            checked_headers(self.headers) if self.headers else None,
        )

    def _from_text(self) -> bytes:
        if self.payload is not None:
            raise InvalidArgument("give payload or text, not both")
        if self.text is None:
            raise InvalidArgument("a job has a payload (base64 in JSON) or a text")
        return checked_text("text", self.text)

    @classmethod
    def of(cls, job: JobRequest) -> JobBody:
        payload, delay_ms, at_ms, priority, key, max_attempts, ttl_ms, headers = job
        return cls(payload, None, delay_ms, at_ms, priority, key, max_attempts, ttl_ms, headers)


# ── consume ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class ClaimBody(Request):
    """A claim of one queue. `id`: a repeat gives the same jobs."""

    limit: Annotated[int, Meta(ge=1, le=MAX_CLAIM)] = 1
    lease_ms: SomeSpan | None = None
    wait_ms: Span = 0
    worker: Annotated[str, Meta(max_length=MAX_WORKER_BYTES)] = ""
    max_bytes: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None

    def checked(self) -> ClaimRequest:
        return ClaimRequest(
            self.limit,
            self.lease_ms,
            self.wait_ms,
            short_text("worker", self.worker, MAX_WORKER_BYTES) if self.worker else "",
            self.max_bytes,
            None if self.id is None else short_text("id", self.id, 256),
        )


class ClaimAnyBody(ClaimBody, kw_only=True):
    """A claim of the first of several queues that has jobs; an operator may write `tenant/queue`."""

    queues: Annotated[list[str], Meta(min_length=1, max_length=1000)]


class DeliveryBody(Struct, frozen=True, omit_defaults=True, gc=False):
    """A job in the caller's hands. `receipt` is the proof that settles it."""

    id: str
    receipt: str
    token: int
    payload: bytes
    attempt: int
    max_attempts: int
    created_at_ms: int
    priority: int = 0
    headers: dict[str, str] | None = None
    key: str | None = None


class ClaimReply(Struct, frozen=True, omit_defaults=True):
    """One lease over these jobs; without a lease there was nothing, and `left_ms` of the wait are left to be asked for again."""

    jobs: list[DeliveryBody]
    lease: str | None = None
    until_ms: int = 0
    tenant: str = ""
    queue: str = ""
    left_ms: int = 0

    @classmethod
    def of(cls, leased: Leased | None, left_ms: int = 0) -> ClaimReply:
        if leased is None:
            return cls([], left_ms=left_ms)
        lease = leased.lease.hex()
        jobs = []
        for d in leased.deliveries:
            job = d.job.hex()
            jobs.append(
                DeliveryBody(
                    job,
                    f"{job}.{lease}.{d.token:x}",
                    d.token,
                    d.payload,
                    d.attempt,
                    d.max_attempts,
                    d.created_at_ms,
                    d.priority,
                    d.headers or None,
                    d.key,
                )
            )
        return cls(jobs, lease, leased.until_ms, leased.name.tenant, leased.name.queue)

    def leased(self, name: QueueName) -> Leased | None:
        if self.lease is None:
            return None
        lease = bytes.fromhex(self.lease)
        fromhex = bytes.fromhex
        return Leased(
            name,
            lease,
            self.until_ms,
            [
                Delivery(
                    name,
                    fromhex(d.id),
                    lease,
                    d.token,
                    d.payload,
                    d.attempt,
                    d.max_attempts,
                    d.priority,
                    d.created_at_ms,
                    d.headers or {},
                    d.key,
                )
                for d in self.jobs
            ],
        )


class SettleItem(Request):
    verb: Literal["ack", "nack", "fail", "release"]
    receipt: str
    result: bytes | None = None
    error: Annotated[str, Meta(max_length=MAX_ERROR_CHARS)] | None = None
    delay_ms: Span | None = None

    def checked(self) -> Settle:
        if self.result is not None and self.verb != "ack":
            raise InvalidArgument("a result goes with ack only")
        if self.delay_ms is not None and self.verb != "nack":
            raise InvalidArgument("a delay goes with nack only")
        if self.error is not None:
            if self.verb not in ("nack", "fail"):
                raise InvalidArgument("an error goes with nack and fail only")
            checked_text("error", self.error)
        if self.result is not None:
            checked_bytes("result", self.result)
        return Settle(self.verb, proof_of(self.receipt), self.result, self.error, self.delay_ms)

    @classmethod
    def of(cls, item: Settle) -> SettleItem:
        job, lease, token = item.proof
        receipt = f"{job.hex()}.{lease.hex()}.{token:x}"
        return cls(item.verb, receipt, item.result, item.error, item.delay_ms)  # type: ignore[arg-type]


class SettleBody(Request):
    items: Annotated[list[SettleItem], Meta(min_length=1, max_length=10_000)]


class Problem(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """RFC 9457, with a `code` for programs and the error's facts."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    facts: dict[str, str | int | float | None] = {}


class SettleReply(Struct, frozen=True):
    """In the order of the items: null where it was settled, or why it was not."""

    results: list[Problem | None]


class ExtendBody(Request):
    lease_ms: SomeSpan


class ProgressBody(Request):
    receipt: str
    fraction: Annotated[float, Meta(ge=0, le=1)]
    note: Annotated[str, Meta(max_length=MAX_ERROR_CHARS)] | None = None


# ── look ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class ListQuery(Request):
    state: State = "ready"
    limit: Limit = 100
    cursor: str | None = None


class WaitQuery(Request):
    timeout_ms: Span = 10_000


class EventsQuery(Request):
    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    wait_ms: Span = 0
    consumer: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


class UpcomingQuery(Request):
    before_ms: Annotated[int, Meta(ge=0, le=2**62)] = 2**62
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 100


class JobList(Struct, frozen=True):
    jobs: list[Job]


class EventList(Struct, frozen=True):
    events: list[Event]


class QueueBody(Struct, frozen=True, kw_only=True):
    tenant: str
    queue: str
    number: int
    paused: bool
    policy: Policy
    counts: Counts


class QueueList(Struct, frozen=True):
    queues: list[QueueBody]


class QuotaList(Struct, frozen=True):
    quotas: list[QuotaInfo]


class StoreInfo(Struct, frozen=True):
    """What is behind this address."""

    traits: Traits
    now_ms: int
    drift_ms: int
    #: The release that answers.
    version: str
    #: Who owns the store, where it has an owner.
    owner: str = ""


# ── mend ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class ReplayBody(Request):
    ids: Annotated[list[str], Meta(max_length=100_000)] | None = None
    error: str | None = None
    reason: Literal["max_attempts", "failed"] | None = None
    since_ms: Moment | None = None
    before_ms: Moment | None = None
    limit: Annotated[int, Meta(ge=1, le=2**40)] | None = None
    spacing_ms: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0
    dry_run: bool = False
    #: Of each of the ids, the token it must still have.
    tokens: Annotated[list[Annotated[int, Meta(ge=0, le=2**63 - 1)]], Meta(max_length=100_000)] | None = None
    delay_ms: Span = 0

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
    state: Literal["ready", "scheduled", "done", "dead"] = "dead"


class CleanupBody(Request):
    before_ms: Moment | None = None
    limit: Annotated[int, Meta(ge=1, le=2**40)] = 1000


class CheckBody(Request):
    repair: bool = False


class SnapshotBody(Request):
    path: Annotated[str, Meta(min_length=1)]


# ── bring in ─────────────────────────────────────────────────────────────────────────────────────────────────────────

Number = Annotated[int, Meta(ge=0, le=2**62)]
Small = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class ImageBody(Request, kw_only=True):
    """A job as it stood elsewhere (`model.request.JobImage`)."""

    id: str
    state: Literal["waiting", "done", "dead"]
    payload: bytes
    headers: dict[str, str] = {}
    key: Annotated[str, Meta(min_length=1, max_length=MAX_KEY_BYTES)] | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] = 0
    attempt: Small = 0
    max_attempts: Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)]
    token: Number = 0
    replays: Small = 0
    created_at_ms: Number
    visible_at_ms: Number
    ended_at_ms: Number = 0
    reason: Literal["max_attempts", "failed"] | None = None
    error: Annotated[str, Meta(max_length=MAX_ERROR_CHARS)] | None = None
    result: bytes | None = None
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None
    progress_note: Annotated[str, Meta(max_length=MAX_ERROR_CHARS)] | None = None
    due_at_ms: Number = 0

    def checked(self) -> JobImage:
        if self.state == "dead" and self.reason is None:
            raise InvalidArgument(f"job {self.id} is dead: say of what (reason: max_attempts or failed)")
        if self.result is not None:
            checked_bytes("result", self.result)
        for what in ("error", "progress_note"):
            checked_text(what, getattr(self, what))
        checked_bytes("payload", self.payload)
        if self.headers:
            checked_headers(self.headers)
        if self.key is not None:
            short_text("key", self.key, MAX_KEY_BYTES)
        return JobImage(job_id_bytes(self.id), *[getattr(self, name) for name in JobImage._fields[1:]])

    @classmethod
    def of(cls, image: JobImage) -> ImageBody:
        return cls(**image._asdict() | {"id": image.id.hex()})


class RestoreBody(Request):
    jobs: Annotated[list[ImageBody], Meta(max_length=10_000)]


class DiscardBody(Request):
    """Jobs by id, each with the token it must still have."""

    state: Literal["done", "dead"]
    tokens: Annotated[dict[str, Number], Meta(max_length=100_000)]


class JobIdList(Struct, frozen=True):
    ids: list[str]


class WriteBody(Request):
    manifest: bytes
    keep_ms: Span


class ChunkBody(Request):
    queue: str
    jobs: Annotated[list[JobBody], Meta(max_length=CHUNK)]


class FinishBody(Request):
    forget: str | None = None


class PieceBody(Request):
    data: bytes


class LoadBody(Request):
    manifest: bytes
    parts: list[LoadPart]
    keep_ms: Span


# ── read in bulk ─────────────────────────────────────────────────────────────────────────────────────────────────────


class TakeBody(Request):
    ttl_ms: SomeSpan
    name: str = "snapshot"


class SnapshotList(Struct, frozen=True):
    snapshots: list[SnapshotInfo]


class SliceQuery(Request):
    begin: Number | None = None
    end: Number | None = None
    max_bytes: Annotated[int, Meta(ge=0, le=64 * 1024**2)] = 4 * 1024**2


class TableQuery(Request):
    """Which rows and columns of a table: names joined by commas, times in milliseconds."""

    columns: str = ""
    tenant: str | None = None
    queue: str | None = None
    state: str = ""
    since_ms: Number | None = None
    until_ms: Number | None = None


class PartsQuery(TableQuery):
    """The table in parts of about so many rows; of `events`, from one commit to before another, if said."""

    rows: Annotated[int, Meta(ge=1)] = 200_000
    first_commit: Number | None = None
    end_commit: Number | None = None


class PageQuery(TableQuery):
    """The keys of a part's range, in hex digits; after a page, from where that says the next one begins."""

    space: Number = 0
    begin: str = ""
    end: str = ""


class PartList(Struct, frozen=True):
    """For each part its space and its ranges of keys, in hex digits."""

    parts: list[tuple[int, list[tuple[str, str]]]]


class Stream(Struct, frozen=True):
    """An answer that is no message: an Arrow stream, as it is."""

    body: bytes


class Count(Struct, frozen=True):
    """How many jobs a verb removed."""

    count: int


class Done(Struct, frozen=True):
    """It is so."""
