"""Claims, their deliveries, and the proofs that settle them.

A claim is one lease over several jobs. Each `Delivery` has a job, the lease and a token: this triple is the proof that
every settling verb takes. `receipt` is the same triple as a string, which a caller can pass to another process.
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

_new = tuple.__new__  # makes a NamedTuple without calling its Python constructor
#: The largest `limit` of a claim.
MAX_CLAIM = 10_000


class Proof(NamedTuple):
    """Proof of a lease on a job: settling verbs compare all three with the stored state."""

    job: bytes
    lease: bytes
    token: int


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A job that a worker holds until it settles the job or the lease ends."""

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
    """The proof of a delivery or a receipt. Raises InvalidArgument for anything else, such as a job's id."""
    if type(thing) is Delivery:
        return _new(Proof, (thing.job, thing.lease, thing.token))
    if isinstance(thing, str):
        parts = _RECEIPT.match(thing)
        if parts:
            return Proof(bytes.fromhex(parts[1]), bytes.fromhex(parts[2]), int(parts[3], 16))
        raise InvalidArgument(_NO_RECEIPT)
    raise InvalidArgument(f"settle with a Delivery or its .receipt, not with {type(thing).__name__}")


def proofs_of(receipts: Sequence[str]) -> list[Proof]:
    """The proofs of many receipts; faster than `proof_of` where they share a lease and have one-digit tokens."""
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


#: Tokens of one hex digit. A receipt with one is 67 characters long.
_DIGITS = {f"{token:x}": token for token in range(16)}


def _sixteen(digits: str) -> bytes:
    try:
        found = bytes.fromhex(digits)
    except ValueError:
        found = b""
    if len(found) != 16:  # `fromhex` skips spaces
        raise InvalidArgument(_NO_RECEIPT)
    return found


class Extended(msgspec.Struct, frozen=True):
    """The lease now ends at `until_ms`; `lost` are the claim's jobs that it no longer holds (cancelled ones)."""

    until_ms: int
    lost: list[str]

    @property
    def until(self) -> datetime:
        return as_datetime(self.until_ms)


class Settled(msgspec.Struct, frozen=True):
    """The result of a batch by job id: settled, no longer held by the caller, and damaged."""

    done: list[str]
    lost: list[str]
    #: Jobs whose rows cannot be read. The rows are unchanged: `check` says what can be repaired.
    damaged: list[str] = []


class DeliveryColumns(NamedTuple):
    """The deliveries of a claim as columns."""

    jobs: Sequence[bytes]
    tokens: Sequence[int]
    payloads: Sequence[bytes]
    attempts: Sequence[int]
    max_attempts: Sequence[int]
    priorities: Sequence[int]
    created_at_ms: Sequence[int]
    #: None: no job of the claim has headers (the same for keys and groups).
    headers: Sequence[dict[str, str]] | None = None
    keys: Sequence[str | None] | None = None
    groups: Sequence[str | None] | None = None


class Leased(msgspec.Struct, eq=False, gc=False):
    """A backend's answer to a claim: one lease and its deliveries. Without deliveries, no lease was stored.

    A batch may come as `columns`. `deliveries` makes the objects on first use; a server encodes the columns instead.
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
                [{} for _ in jobs] if headers is None else headers,  # a dict each: a handler may change its own
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
    """A checked choice of queues for `claim_any`, and the weight of each."""

    #: None: all tenants.
    tenants: frozenset[str] | None = None
    #: Queue names, in any of these tenants. None: all queues.
    queues: frozenset[str] | None = None
    #: By `tenant` or `tenant/queue`; the default is 1.
    weights: dict[str, float] = {}
    #: Queue names that are left out.
    excluding: frozenset[str] = frozenset()

    def includes(self, name: QueueName) -> bool:
        return (
            (self.queues is None or name.queue in self.queues)
            and (self.tenants is None or name.tenant in self.tenants)
            and name.queue not in self.excluding
        )

    def weight(self, name: QueueName | str) -> float:
        """The weight of a tenant among tenants (a string), or of a queue among its tenant's queues."""
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
    """Check the arguments of `claim_any`. Raises InvalidArgument."""
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
    """Return the weight if it is valid. Raises InvalidArgument."""
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT:
        raise InvalidArgument(f"the weight of {name!r}, {weight!r}, is a number from {1 / MAX_WEIGHT} to {MAX_WEIGHT}")
    return weight


class Settle(msgspec.Struct, frozen=True, gc=False):
    """A checked request to settle one delivery."""

    verb: str  # ack, nack, fail, release
    proof: Proof
    result: bytes | None = None
    error: str | None = None
    #: nack and release: the time until the job is ready again.
    delay_ms: int | None = None
    #: ack: jobs that are enqueued in the same transaction.
    then: tuple[JobRequest, ...] | None = None
    #: release with a delay: the job is ready earlier, as soon as it has this signal.
    until_signal: str | None = None


class AlikeSettles(Sequence[Settle]):
    """Settles of one lease by one verb, without results, errors or delays. A `Settle` is made only when one is read."""

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
    """The items as `AlikeSettles` if they have one verb, one lease and no other argument; else None."""
    if type(items) is AlikeSettles or not items:
        return items if items else None  # type: ignore[return-value]
    verbs, proofs, *arguments = zip(*map(astuple, items), strict=True)
    jobs, leases, tokens = zip(*proofs, strict=True)
    count = len(jobs)
    if verbs.count(verbs[0]) == leases.count(leases[0]) == count and arguments == [(None,) * count] * 5:
        return AlikeSettles(verbs[0], leases[0], jobs, tokens)
    return None
