"""Messages to enqueue, claim and settle jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import astuple

from tenure.errors import InvalidArgument
from tenure.model.ids import job_id_bytes
from tenure.model.job import MAX_ERROR_CHARS, MAX_PAYLOAD, OnParentDead
from tenure.model.lease import (
    MAX_CLAIM,
    AlikeSettles,
    ClaimRequest,
    Delivery,
    DeliveryColumns,
    Leased,
    Proof,
    Settle,
    alike,
    proof_of,
    proofs_of,
)
from tenure.model.names import MAX_KEY_BYTES, MAX_WORKER_BYTES, TENANT_PATTERN, QueueName, checked, short_text
from tenure.model.request import (
    MAX_THEN,
    FlowPart,
    JobRequest,
    all_plain,
    checked_bytes,
    checked_headers,
    flow_part,
    job_request,
    payloads_of,
)
from tenure.model.request import job_requests as plain_or_checked
from tenure.model.retry import MAX_ATTEMPTS
from tenure.model.step import Step, checked_signal_name
from tenure.protocol.messages.base import DurationMs, PositiveMs, Problem, Request, TimeMs, checked_text

Token = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class JobBody(Request, gc=False):
    """A job to enqueue: its payload, or `text` for requests written by hand."""

    payload: bytes | None = None
    text: str | None = None
    delay_ms: DurationMs = 0
    at_ms: TimeMs | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] = 0
    key: Annotated[str, Meta(min_length=1, max_length=MAX_KEY_BYTES)] | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)] | None = None
    ttl_ms: PositiveMs | None = None
    headers: dict[str, str] | None = None
    #: If a job with another payload holds the key: raise an error, or keep that job and return it.
    on_conflict: Literal["error", "keep"] = "error"
    #: The queue, if not the one that the request's path names.
    queue: str | None = None
    #: A name by which other jobs of the request refer to it in `after`: `#name`.
    name: Annotated[str, Meta(min_length=1, max_length=MAX_KEY_BYTES)] | None = None
    #: The jobs that must be done before it is ready: ids, or `#name`.
    after: list[str] | None = None
    #: If a parent is dead: remove the job, run it anyway, or wait for the parent's replay.
    on_parent_dead: Literal["cancel", "run", "wait"] = "cancel"
    #: Jobs of one queue take turns by group.
    group: Annotated[str, Meta(pattern=f"^{TENANT_PATTERN}$")] | None = None

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
            self.on_conflict,
            flow_part(self.queue, self.name, self.after or (), self.on_parent_dead),
            None if self.group is None else checked("group", self.group),
        )

    def _from_text(self) -> bytes:
        if self.payload is not None:
            raise InvalidArgument("give payload or text, not both")
        if self.text is None:
            raise InvalidArgument("a job has a payload (base64 in JSON) or a text")
        return checked_text("text", self.text)

    @classmethod
    def of(cls, job: JobRequest) -> JobBody:
        payload, delay_ms, at_ms, priority, key, max_attempts, ttl_ms, headers, on_conflict, flow, group = job
        return cls(
            payload, None, delay_ms, at_ms, priority, key, max_attempts, ttl_ms, headers, on_conflict,
            *_flow_fields(flow), group,
        )  # fmt: skip


def _flow_fields(flow: FlowPart | None) -> tuple[str | None, str | None, list[str] | None, OnParentDead]:
    if flow is None:
        return None, None, None, "cancel"
    parents = [parent.hex() if isinstance(parent, bytes) else f"#{parent}" for parent in flow.after]
    return flow.queue, flow.name, parents or None, flow.on_parent_dead


#: The jobs of one request: each a JobBody, or just its payload if it has no other fields.
Jobs = list[JobBody | bytes]


def job_requests(jobs: Sequence[JobBody | bytes]) -> Sequence[JobRequest]:
    """Check the jobs and convert them. Jobs with only a payload, the most common kind, take a faster path."""
    if set(map(type, jobs)) == _BYTES:
        return plain_or_checked(jobs)
    made = []
    for job in jobs:
        if type(job) is bytes:
            made.append(job_request(job))
            continue
        assert isinstance(job, JobBody)
        fields = astuple(job)
        payload = fields[0]
        if fields[1:] == _ONLY_PAYLOAD and payload is not None and len(payload) <= MAX_PAYLOAD:
            made.append(_new(JobRequest, (payload, *_PLAIN)))
        else:
            made.append(job.checked())
    return made


def job_bodies(jobs: Sequence[JobRequest]) -> Jobs:
    """Convert jobs to messages."""
    if all_plain(jobs):
        return list(payloads_of(jobs))
    return [job[0] if job[1:] == _PLAIN else JobBody.of(job) for job in jobs]


_BYTES = {bytes}
_ONLY_PAYLOAD = astuple(JobBody(b""))[1:]
_PLAIN = tuple(JobRequest(b""))[1:]
_new = tuple.__new__  # builds a NamedTuple without a Python frame


class ClaimBody(Request):
    """A claim from one queue. `id`: a repeat returns the same jobs. `columns`: return columns instead of rows."""

    limit: Annotated[int, Meta(ge=1, le=MAX_CLAIM)] = 1
    lease_ms: PositiveMs | None = None
    wait_ms: DurationMs = 0
    worker: Annotated[str, Meta(max_length=MAX_WORKER_BYTES)] = ""
    max_bytes: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    columns: bool = False

    def checked(self) -> ClaimRequest:
        return ClaimRequest(
            self.limit,
            self.lease_ms,
            self.wait_ms,
            short_text("worker", self.worker, MAX_WORKER_BYTES) if self.worker else "",
            self.max_bytes,
            None if self.id is None else short_text("id", self.id, 256),
        )


class ClaimSeveralBody(ClaimBody, kw_only=True):
    """A claim from the first of several queues that has jobs; an operator may write `tenant/queue`."""

    queues: Annotated[list[str], Meta(min_length=1, max_length=1000)]


class ClaimAnyBody(ClaimBody, kw_only=True):
    """A claim from the next queue in turn: of all, or of these tenants (for operators) and queues."""

    tenants: Annotated[list[str], Meta(min_length=1, max_length=1000)] | None = None
    queues: Annotated[list[str], Meta(min_length=1, max_length=1000)] | None = None
    #: By tenant, or by `tenant/queue`.
    weights: dict[str, float] | None = None
    #: Names of queues to skip.
    excluding: Annotated[list[str], Meta(max_length=1000)] | None = None


class DeliveryBody(Struct, frozen=True, omit_defaults=True, gc=False):
    """A claimed job. `receipt` is the proof that settles it."""

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
    group: str | None = None


class Columns(Struct, frozen=True, omit_defaults=True):
    """The jobs of a claim, one list for each field. A job's receipt is `ID.LEASE.TOKEN` in hex."""

    #: 16 bytes for each job.
    ids: bytes
    tokens: Sequence[int]
    payloads: Sequence[bytes]
    attempts: Sequence[int]
    max_attempts: Sequence[int]
    created_at_ms: Sequence[int]
    #: Omitted if all are 0, or if no job has one.
    priorities: Sequence[int] | None = None
    headers: Sequence[dict[str, str]] | None = None
    keys: Sequence[str | None] | None = None
    groups: Sequence[str | None] | None = None

    @classmethod
    def of(cls, leased: Leased) -> Columns:
        of = leased.columns or _columns(leased)
        given = of.priorities if any(of.priorities) else None
        return cls(
            b"".join(of.jobs),
            of.tokens,
            of.payloads,
            of.attempts,
            of.max_attempts,
            of.created_at_ms,
            given,
            of.headers,
            of.keys,
            of.groups,
        )

    def columns(self) -> DeliveryColumns:
        return DeliveryColumns(
            _cut(self.ids),
            self.tokens,
            self.payloads,
            self.attempts,
            self.max_attempts,
            self.priorities or [0] * len(self.tokens),
            self.created_at_ms,
            self.headers,
            self.keys,
            self.groups,
        )


def _columns(leased: Leased) -> DeliveryColumns:
    # Fields as in `Delivery`. One transposition takes less than half the time of one loop for each field.
    _, jobs, _, tokens, payloads, attempts, most, priorities, created, headers, keys, groups = zip(
        *map(astuple, leased.deliveries), strict=True
    )
    some = headers if any(headers) else None
    return DeliveryColumns(
        jobs, tokens, payloads, attempts, most, priorities, created, some,
        keys if any(keys) else None, groups if any(groups) else None,
    )  # fmt: skip


def _cut(ids: bytes) -> list[bytes]:
    return [ids[at : at + 16] for at in range(0, len(ids), 16)]


class ClaimReply(Struct, frozen=True, omit_defaults=True):
    """One lease over these jobs; no lease if there were none. `left_ms` remain of the wait: repeat the request."""

    jobs: list[DeliveryBody]
    lease: str | None = None
    until_ms: int = 0
    tenant: str = ""
    queue: str = ""
    left_ms: int = 0
    #: The jobs, if the request asked for columns.
    columns: Columns | None = None

    @classmethod
    def of(cls, leased: Leased | None, columns: bool = False) -> ClaimReply:
        if leased is None:
            return cls([])
        lease, (tenant, queue) = leased.lease.hex(), leased.name
        if columns and (leased.columns is not None or leased.deliveries):
            return cls([], lease, leased.until_ms, tenant, queue, columns=Columns.of(leased))
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
                    d.group,
                )
            )
        return cls(jobs, lease, leased.until_ms, tenant, queue)

    def proofs(self) -> list[Proof]:
        """Return the proofs of all its jobs."""
        if self.columns is None or self.lease is None:
            return proofs_of([job.receipt for job in self.jobs])
        lease = bytes.fromhex(self.lease)
        return [
            Proof(job, lease, token) for job, token in zip(_cut(self.columns.ids), self.columns.tokens, strict=True)
        ]

    def leased(self, name: QueueName) -> Leased | None:
        if self.lease is None:
            return None
        lease = bytes.fromhex(self.lease)
        if self.columns is not None:
            return Leased(name, lease, self.until_ms, columns=self.columns.columns())
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
                    d.group,
                )
                for d in self.jobs
            ],
        )


class SettleItem(Request, gc=False):
    verb: Literal["ack", "nack", "fail", "release"]
    receipt: str
    result: bytes | None = None
    error: Annotated[str, Meta(max_length=MAX_ERROR_CHARS)] | None = None
    #: For nack; for release, the delay of a snooze.
    delay_ms: DurationMs | None = None
    #: For ack: jobs to enqueue in the same transaction.
    then: Annotated[list[JobBody | bytes], Meta(max_length=MAX_THEN)] | None = None
    #: For release with a delay: this signal makes the job ready earlier.
    until_signal: str | None = None

    def checked(self) -> Settle:
        if self.result is not None and self.verb != "ack":
            raise InvalidArgument("a result goes with ack only")
        if self.delay_ms is not None and self.verb not in ("nack", "release"):
            raise InvalidArgument("a delay goes with nack and release only")
        if self.then is not None and self.verb != "ack":
            raise InvalidArgument("then goes with ack only")
        if self.until_signal is not None:
            if self.verb != "release" or self.delay_ms is None:
                raise InvalidArgument("until_signal goes with release and a delay only")
            checked_signal_name(self.until_signal)
        if self.error is not None:
            if self.verb not in ("nack", "fail"):
                raise InvalidArgument("an error goes with nack and fail only")
            checked_text("error", self.error)
        if self.result is not None:
            checked_bytes("result", self.result)
        then = tuple(job_requests(self.then)) if self.then else None
        return Settle(
            self.verb, proof_of(self.receipt), self.result, self.error, self.delay_ms, then, self.until_signal
        )


class SettleAlike(Request):
    """Jobs of one lease to settle in the same way, without results or errors."""

    verb: Literal["ack", "nack", "fail", "release"]
    lease: str
    #: Ids of 16 bytes each, with one token for each.
    jobs: Annotated[bytes, Meta(min_length=16)]
    tokens: Annotated[Sequence[Token], Meta(min_length=1, max_length=10_000)]

    def settles(self) -> AlikeSettles:
        if len(self.jobs) != 16 * len(self.tokens):
            raise InvalidArgument("alike: an id of 16 bytes and a token for each job")
        return AlikeSettles(self.verb, job_id_bytes(self.lease), _cut(self.jobs), self.tokens)


_PLAIN_FIELDS = (None,) * 5


class SettleBody(Request):
    """Deliveries to settle: each by its receipt, or all alike."""

    items: Annotated[list[SettleItem], Meta(min_length=1, max_length=10_000)] | None = None
    alike: SettleAlike | None = None

    def settles(self) -> Sequence[Settle]:
        """Return the checked items."""
        items = self.items
        if self.alike is not None and items is None:
            return self.alike.settles()
        if items is None or self.alike is not None:
            raise InvalidArgument("give items, or all of one lease as alike")
        proofs = proofs_of([item.receipt for item in items])
        return [
            Settle(item.verb, proof)
            if (item.result, item.error, item.delay_ms, item.then, item.until_signal) == _PLAIN_FIELDS
            else item.checked()
            for item, proof in zip(items, proofs, strict=True)
        ]

    @classmethod
    def of(cls, items: Sequence[Settle]) -> SettleBody:
        same = alike(items) if len(items) > 1 else None
        if same is not None:
            return cls(None, SettleAlike(same.verb, same.lease.hex(), b"".join(same.jobs), same.tokens))  # type: ignore[arg-type]
        made = []
        held = text = None
        for verb, (job, lease, token), result, error, delay_ms, then, until in map(astuple, items):
            if lease is not held:
                held, text = lease, lease.hex()
            jobs = None if then is None else job_bodies(then)
            made.append(SettleItem(verb, f"{job.hex()}.{text}.{token:x}", result, error, delay_ms, jobs, until))
        return cls(made)


class SettleReply(Struct, frozen=True):
    """For each item, in order: null if it was settled, else why not."""

    results: list[Problem | None]


class ExtendBody(Request):
    lease_ms: PositiveMs


class ProgressBody(Request):
    receipt: str
    fraction: Annotated[float, Meta(ge=0, le=1)]
    note: Annotated[str, Meta(max_length=MAX_ERROR_CHARS)] | None = None


class StepBody(Request):
    """A step of a delivery's job, stored once."""

    receipt: str
    name: str
    value: bytes = b""


class StepValue(Struct, frozen=True):
    """The stored value of the step: the one sent, or an earlier one."""

    value: bytes


class SignalBody(Request):
    name: str
    payload: bytes = b""


class Given(Struct, frozen=True):
    """Whether the signal was stored; false if the job had one of that name."""

    given: bool


class StepList(Struct, frozen=True):
    steps: list[Step]
