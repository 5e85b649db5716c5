"""A claim, its deliveries, and the proofs they carry.

A claim is one lease over the jobs it was given. Each `Delivery` names job, lease and token: that triple is the
proof a settling verb asks for, and `receipt` is the same triple as a string, for callers who cross a process.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import repeat
from typing import NamedTuple, overload

import msgspec
from msgspec.structs import astuple

from tenure.errors import InvalidArgument
from tenure.model.durations import as_datetime
from tenure.model.names import QueueName, checked
from tenure.model.request import JobRequest

_new = tuple.__new__  # a NamedTuple without a Python frame
#: The most jobs one claim may ask for.
MAX_CLAIM = 10_000


class Proof(NamedTuple):
    """What settles: this job, under this lease, at this token."""

    job: bytes
    lease: bytes
    token: int


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A job in a worker's hands, until the lease ends or it is settled."""

    name: QueueName
    job: bytes
    lease: bytes
    token: int
    payload: bytes
    attempt: int
    max_attempts: int
    priority: int
    created_at_ms: int
    headers: dict[str, str]
    key: str | None = None
    group: str | None = None

    @property
    def id(self) -> str:
        return self.job.hex()

    @property
    def created_at(self) -> datetime:
        return as_datetime(self.created_at_ms)

    @property
    def tenant(self) -> str:
        return self.name.tenant

    @property
    def queue(self) -> str:
        return self.name.queue

    @property
    def receipt(self) -> str:
        return receipt(self.job, self.lease, self.token)

    @property
    def proof(self) -> Proof:
        return Proof(self.job, self.lease, self.token)


_NO_RECEIPT = "that is not a receipt: settle with a Delivery or its .receipt, not with a job's id"
_RECEIPT = re.compile(r"([0-9a-fA-F]{32})\.([0-9a-fA-F]{32})\.([0-9a-fA-F]{1,16})\Z")


def receipt(job: bytes, lease: bytes, token: int) -> str:
    return f"{job.hex()}.{lease.hex()}.{token:x}"


def proof_of(thing: object) -> Proof:
    """The proof in a delivery or a receipt. A job's id is not one."""
    if type(thing) is Delivery:
        return _new(Proof, (thing.job, thing.lease, thing.token))
    if isinstance(thing, str):
        parts = _RECEIPT.match(thing)
        if parts:
            return Proof(bytes.fromhex(parts[1]), bytes.fromhex(parts[2]), int(parts[3], 16))
        raise InvalidArgument(_NO_RECEIPT)
    raise InvalidArgument(f"settle with a Delivery or its .receipt, not with {type(thing).__name__}")


def proofs_of(receipts: Sequence[str]) -> list[Proof]:
    """The proofs in many receipts, most of which are of one lease and early deliveries."""
    found = []
    held, lease = "", b""
    for receipt in receipts:
        token = _DIGITS.get(receipt[66:])
        if token is not None and receipt[32] == "." == receipt[65]:
            if receipt[33:65] != held:
                held, lease = receipt[33:65], _sixteen(receipt[33:65])
            found.append(_new(Proof, (_sixteen(receipt[:32]), lease, token)))
        else:
            found.append(proof_of(receipt))
    return found


#: Tokens of one digit; a receipt with such is 67 characters long.
_DIGITS = {f"{token:x}": token for token in range(16)}


def _sixteen(digits: str) -> bytes:
    try:
        found = bytes.fromhex(digits)
    except ValueError:
        found = b""
    if len(found) != 16:  # spaces between digits are passed over
        raise InvalidArgument(_NO_RECEIPT)
    return found


class Extended(msgspec.Struct, frozen=True):
    """The lease now ends at `until_ms`; `lost` are the claim's jobs that are no longer its own (cancelled)."""

    until_ms: int
    lost: list[str]

    @property
    def until(self) -> datetime:
        return as_datetime(self.until_ms)


class Settled(msgspec.Struct, frozen=True):
    """What became of a batch: the ids it settled, those of jobs that were no longer the caller's, and of damaged ones."""

    done: list[str]
    lost: list[str]
    #: Their rows cannot be read, and stay as they are: `check` says what can be repaired.
    damaged: list[str] = []


class DeliveryColumns(NamedTuple):
    """The deliveries of a claim, field by field."""

    jobs: Sequence[bytes]
    tokens: Sequence[int]
    payloads: Sequence[bytes]
    attempts: Sequence[int]
    max_attempts: Sequence[int]
    priorities: Sequence[int]
    created_at_ms: Sequence[int]
    #: None: no job has any.
    headers: Sequence[dict[str, str]] | None = None
    keys: Sequence[str | None] | None = None
    groups: Sequence[str | None] | None = None


class Leased(msgspec.Struct, eq=False):
    """What a store hands out for a claim: one lease, and the deliveries under it. Empty: no lease was made.

    A batch may be given as `columns`: deliveries are made of them when they are asked for, which a server never does.
    """

    name: QueueName
    lease: bytes
    until_ms: int
    given: list[Delivery] | None = None
    columns: DeliveryColumns | None = None

    @property
    def deliveries(self) -> list[Delivery]:
        found = self.given
        if found is None:
            found = self.given = [] if self.columns is None else self._made(self.columns)
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Leased) and self._fields() == other._fields()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "Leased" + repr(self._fields())

    def _fields(self) -> tuple[QueueName, bytes, int, list[Delivery]]:
        return self.name, self.lease, self.until_ms, self.deliveries

    def _made(self, columns: DeliveryColumns) -> list[Delivery]:
        jobs, tokens, payloads, attempts, max_attempts, priorities, created, headers, keys, groups = columns
        return list(
            map(
                Delivery,
                repeat(self.name),
                jobs,
                repeat(self.lease),
                tokens,
                payloads,
                attempts,
                max_attempts,
                priorities,
                created,
                [{} for _ in jobs] if headers is None else headers,  # each its own: its holder may change it
                repeat(None) if keys is None else keys,
                repeat(None) if groups is None else groups,
            )
        )


class ClaimRequest(msgspec.Struct, frozen=True):
    """A checked request to claim."""

    limit: int
    lease_ms: int | None = None
    wait_ms: int = 0
    worker: str = ""
    max_bytes: int | None = None
    id: str | None = None


class AnyQueues(msgspec.Struct, frozen=True):
    """Which queues a claim from any may be served by, and how much of the turns each gets; checked."""

    #: None: all.
    tenants: frozenset[str] | None = None
    #: Names, of queues of any of these tenants.
    queues: frozenset[str] | None = None
    #: By tenant, or by `tenant/queue`; 1 where nothing is said.
    weights: dict[str, float] = {}
    #: Names of queues that are left out.
    excluding: frozenset[str] = frozenset()

    def includes(self, name: QueueName) -> bool:
        return (
            (self.queues is None or name.queue in self.queues)
            and (self.tenants is None or name.tenant in self.tenants)
            and name.queue not in self.excluding
        )

    def weight(self, name: QueueName | str) -> float:
        """Of a tenant among tenants, or of a queue among its tenant's."""
        if not self.weights:
            return 1
        return self.weights.get(name if isinstance(name, str) else f"{name.tenant}/{name.queue}", 1)


MAX_WEIGHT = 1000


def any_queues(
    tenants: Collection[str] | None,
    queues: Collection[str] | None,
    weights: Mapping[str, float] | None,
    excluding: Collection[str] = (),
) -> AnyQueues:
    """Checked. Raises InvalidArgument."""
    for what, given in (("tenants", tenants), ("queues", queues), ("excluding", excluding)):
        if isinstance(given, str):
            raise InvalidArgument(f"{what} is a list of names")
    found = dict(weights or {})
    for name, weight in found.items():
        tenant, slash, queue = name.partition("/")
        checked("tenant", tenant)
        if slash:
            checked("queue", queue)
        checked_weight(name, weight)
    return AnyQueues(
        None if tenants is None else frozenset(checked("tenant", tenant) for tenant in tenants),
        None if queues is None else frozenset(checked("queue", queue) for queue in queues),
        found,
        frozenset(checked("queue", queue) for queue in excluding),
    )


def checked_weight(name: str, weight: object) -> float:
    """A share of the turns, relative to others'. Raises InvalidArgument."""
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT:
        raise InvalidArgument(f"the weight of {name!r}, {weight!r}, is a number from {1 / MAX_WEIGHT} to {MAX_WEIGHT}")
    return weight


class Settle(msgspec.Struct, frozen=True, gc=False):
    """A checked request to settle one delivery."""

    verb: str  # ack, nack, fail, release
    proof: Proof
    result: bytes | None = None
    error: str | None = None
    #: Of nack and release: how long until it is ready again.
    delay_ms: int | None = None
    #: Of ack: jobs that are enqueued in the same transaction.
    then: tuple[JobRequest, ...] | None = None
    #: Of release with a delay: ready before it, as soon as the job has this signal.
    until_signal: str | None = None


class AlikeSettles(Sequence[Settle]):
    """Jobs of one lease to which the same happens, and nothing is said of any; a `Settle` is made of one only when it is asked for."""

    __slots__ = ("jobs", "lease", "tokens", "verb")

    def __init__(self, verb: str, lease: bytes, jobs: Sequence[bytes], tokens: Sequence[int]) -> None:
        self.verb = verb
        self.lease = lease
        self.jobs = jobs
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.jobs)

    @overload
    def __getitem__(self, index: int) -> Settle: ...
    @overload
    def __getitem__(self, index: slice) -> AlikeSettles: ...
    def __getitem__(self, index: int | slice) -> Settle | AlikeSettles:
        if isinstance(index, slice):
            return AlikeSettles(self.verb, self.lease, self.jobs[index], self.tokens[index])
        return Settle(self.verb, Proof(self.jobs[index], self.lease, self.tokens[index]))

    def __iter__(self) -> Iterator[Settle]:
        verb, lease = self.verb, self.lease
        for job, token in zip(self.jobs, self.tokens, strict=True):
            yield Settle(verb, _new(Proof, (job, lease, token)))


def alike(items: Sequence[Settle]) -> AlikeSettles | None:
    """The same items, if they are such; None: they are not."""
    if type(items) is AlikeSettles or not items:
        return items if items else None  # type: ignore[return-value]
    verbs, proofs, *said = zip(*map(astuple, items), strict=True)
    jobs, leases, tokens = zip(*proofs, strict=True)
    count = len(jobs)
    if verbs.count(verbs[0]) == leases.count(leases[0]) == count and said == [(None,) * count] * 5:
        return AlikeSettles(verbs[0], leases[0], jobs, tokens)
    return None
