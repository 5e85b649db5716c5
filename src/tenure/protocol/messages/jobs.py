"""Jobs in, out and settled."""

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
    """A job to enqueue: its payload, or `text` where a person writes it."""

    payload: bytes | None = None
    text: str | None = None
    delay_ms: DurationMs = 0
    at_ms: TimeMs | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] = 0
    key: Annotated[str, Meta(min_length=1, max_length=MAX_KEY_BYTES)] | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)] | None = None
    ttl_ms: PositiveMs | None = None
    headers: dict[str, str] | None = None
    #: What a key means that another payload holds: an error, or that job is kept and answered with.
    on_conflict: Literal["error", "keep"] = "error"
    #: The queue it goes to, if not the one that the request names.
    queue: str | None = None
    #: What other jobs of the request name it by in `after`: `#name`.
    name: Annotated[str, Meta(min_length=1, max_length=MAX_KEY_BYTES)] | None = None
    #: Jobs that have to be done before it is ready: ids, or `#name`.
    after: list[str] | None = None
    #: What a dead one among them means: the job is removed, runs all the same, or waits for its replay.
    on_parent_dead: Literal["cancel", "run", "wait"] = "cancel"
    #: Jobs of one queue take turns by their group.
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


#: Jobs in one request: each as it is described, or, where there is nothing to say of it, its payload alone.
Jobs = list[JobBody | bytes]


def job_requests(jobs: Sequence[JobBody | bytes]) -> Sequence[JobRequest]:
    """Checked. The commonest, of which nothing is said but the payload, are made the quickest way."""
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
    """As they travel."""
    if all_plain(jobs):
        return list(payloads_of(jobs))
    return [job[0] if job[1:] == _PLAIN else JobBody.of(job) for job in jobs]


_BYTES = {bytes}
_ONLY_PAYLOAD = astuple(JobBody(b""))[1:]
_PLAIN = tuple(JobRequest(b""))[1:]
_new = tuple.__new__  # a NamedTuple without a Python frame


class ClaimBody(Request):
    """A claim of one queue. `id`: a repeat gives the same jobs. `columns`: for programs, the answer in columns."""

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
    """A claim of the first of several queues that has jobs; an operator may write `tenant/queue`."""

    queues: Annotated[list[str], Meta(min_length=1, max_length=1000)]


class ClaimAnyBody(ClaimBody, kw_only=True):
    """A claim of whichever queue's turn it is: of all, or of these tenants (for operators) and queues."""

    tenants: Annotated[list[str], Meta(min_length=1, max_length=1000)] | None = None
    queues: Annotated[list[str], Meta(min_length=1, max_length=1000)] | None = None
    #: By tenant, or by `tenant/queue`.
    weights: dict[str, float] | None = None
    #: Names of queues that are left out.
    excluding: Annotated[list[str], Meta(max_length=1000)] | None = None


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
    group: str | None = None


class Columns(Struct, frozen=True, omit_defaults=True):
    """The jobs of a claim, a list for each of their fields. A receipt is `ID.LEASE.TOKEN` in hex, of each."""

    #: 16 bytes each.
    ids: bytes
    tokens: Sequence[int]
    payloads: Sequence[bytes]
    attempts: Sequence[int]
    max_attempts: Sequence[int]
    created_at_ms: Sequence[int]
    #: Left out where all are 0, and where no job has any.
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
    # Fields as in `Delivery`: all of them at once take less than half of one after the other.
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
    """One lease over these jobs. Without a lease there were none; `left_ms` are left of the wait: ask again."""

    jobs: list[DeliveryBody]
    lease: str | None = None
    until_ms: int = 0
    tenant: str = ""
    queue: str = ""
    left_ms: int = 0
    #: The jobs, where the request wanted columns.
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
        """Of all the jobs it gives."""
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
    #: With nack, and with release: a snooze.
    delay_ms: DurationMs | None = None
    #: With ack: jobs that are enqueued in the same transaction.
    then: Annotated[list[JobBody | bytes], Meta(max_length=MAX_THEN)] | None = None
    #: With release and a delay: ready before it, as soon as the job has this signal.
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
    """Many jobs of one lease to which the same happens, and nothing is said of any: for programs."""

    verb: Literal["ack", "nack", "fail", "release"]
    lease: str
    #: Ids of 16 bytes each, and the token of each.
    jobs: Annotated[bytes, Meta(min_length=16)]
    tokens: Annotated[Sequence[Token], Meta(min_length=1, max_length=10_000)]

    def settles(self) -> AlikeSettles:
        if len(self.jobs) != 16 * len(self.tokens):
            raise InvalidArgument("alike: an id of 16 bytes and a token for each job")
        return AlikeSettles(self.verb, job_id_bytes(self.lease), _cut(self.jobs), self.tokens)


_NOTHING_SAID = (None,) * 5


class SettleBody(Request):
    """Deliveries to settle: each by its receipt, or all alike."""

    items: Annotated[list[SettleItem], Meta(min_length=1, max_length=10_000)] | None = None
    alike: SettleAlike | None = None

    def settles(self) -> Sequence[Settle]:
        """Checked."""
        items = self.items
        if self.alike is not None and items is None:
            return self.alike.settles()
        if items is None or self.alike is not None:
            raise InvalidArgument("give items, or all of one lease as alike")
        proofs = proofs_of([item.receipt for item in items])
        return [
            Settle(item.verb, proof)
            if (item.result, item.error, item.delay_ms, item.then, item.until_signal) == _NOTHING_SAID
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
    """In the order of the items: null where it was settled, or why it was not."""

    results: list[Problem | None]


class ExtendBody(Request):
    lease_ms: PositiveMs


class ProgressBody(Request):
    receipt: str
    fraction: Annotated[float, Meta(ge=0, le=1)]
    note: Annotated[str, Meta(max_length=MAX_ERROR_CHARS)] | None = None


class StepBody(Request):
    """A step of a delivery's job, to be stored once."""

    receipt: str
    name: str
    value: bytes = b""


class StepValue(Struct, frozen=True):
    """What is stored under the step's name: the value sent, or the one that was there before."""

    value: bytes


class SignalBody(Request):
    name: str
    payload: bytes = b""


class Given(Struct, frozen=True):
    """False: the job had a signal of that name."""

    given: bool


class StepList(Struct, frozen=True):
    steps: list[Step]
