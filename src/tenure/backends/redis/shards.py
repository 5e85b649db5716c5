"""Queues and their shards: a queue has one shard for each of its partitions.

All keys of a shard share a hash tag, so it lives in one slot of a cluster, and each verb on it is one step there. Names
contain neither `/` nor braces, so they can be joined. A job's last byte is its partition. Queues created with
`one_slot` have their keys in the registry's slot.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from tenure.backends.redis.commands import Commands
from tenure.model.names import QueueName

MAX_PARTITIONS = 64


class Shard(NamedTuple):
    base: bytes
    name: QueueName
    partition: int
    #: The shard's name in cursors: the queue's number and the partition.
    number: int


class RegisteredQueue(NamedTuple):
    name: QueueName
    number: int
    shards: tuple[Shard, ...]

    @property
    def in_registry_slot(self) -> bool:
        return b":{registry}:q:" in self.shards[0].base

    @property
    def placement(self) -> str:
        """As in the registry's row: the number of partitions, and 1 if its keys are in the registry's slot."""
        return f"{len(self.shards)} 1" if self.in_registry_slot else f"{len(self.shards)}"

    def shard_of(self, job: bytes) -> Shard:
        return self.shards[job[15] % len(self.shards)]


class Packed(NamedTuple):
    """Jobs of one call that go to one shard, encoded for its verbs."""

    shard: Shard
    indexes: list[int] | range
    wishes: list[bytes]
    keyed: list[bytes]
    bodies: list[bytes]


class Shards:
    def __init__(self, commands: Commands, prefix: str, partitions: int, one_slot: bool = False) -> None:
        self._commands = commands
        self._one_slot = one_slot
        self._prefix = prefix
        self._partitions = partitions
        self.registry = f"{prefix}:{{registry}}".encode()
        self._known: dict[QueueName, RegisteredQueue] = {}
        self._turn = itertools.count()

    def find(self, name: QueueName) -> RegisteredQueue | None:
        """Return the queue if it is registered."""
        found = self._known.get(name)
        if found is None:
            raw = self._commands.plain(self.registry + b":names", "HGET", self.registry + b":names", _joined(name))
            if raw is not None:
                found = self._learn(name, raw)
        return found

    def find_or_register(self, name: QueueName) -> RegisteredQueue:
        """Return the queue, registering it with a new number if needed."""
        found = self._known.get(name)
        if found is None:
            reply = self._commands.call(self.registry, "register", _joined(name), self._placement())
            found = self._learn(name, reply[0])
        return found

    def queues(self, tenant: str | None = None) -> list[RegisteredQueue]:
        names = self.registry + b":names"
        rows = self._commands.plain(names, "HGETALL", names)
        pairs = rows.items() if isinstance(rows, dict) else zip(rows[::2], rows[1::2], strict=True)
        found = [self._learn(QueueName(*key.decode().split("/")), value) for key, value in pairs]
        # A failover may lose the newest names while their queues live on other nodes: register the known ones again.
        for queue in self._known.keys() - {queue.name for queue in found}:
            lost = self._known[queue]
            self._commands.plain(names, "HSETNX", names, _joined(queue), f"{lost.number} {lost.placement}")
            found.append(lost)
        return sorted((q for q in found if tenant is None or q.name.tenant == tenant), key=lambda q: q.name)

    def shards(self) -> list[Shard]:
        return [shard for queue in self.queues() for shard in queue.shards]

    def _placement(self) -> str:
        return "1 1" if self._one_slot else f"{self._partitions}"

    def at(self, base: bytes) -> Shard:
        """Return the shard with this base."""
        joined = base[len(self.registry) + 3 :] if b":{registry}:q:" in base else base[base.index(b"{") + 1 : -1]
        name = QueueName(*joined.decode().split("/")[:2])
        return next(shard for shard in self.find_or_register(name).shards if shard.base == base)

    def rotated(self, shards: Sequence[Shard]) -> Sequence[Shard]:
        """Return the shards, starting one further with each call."""
        if len(shards) == 1:
            return shards
        first = next(self._turn) % len(shards)
        return (*shards[first:], *shards[:first])

    def _learn(self, name: QueueName, raw: bytes) -> RegisteredQueue:
        number, partitions, *one_slot = (int(part) for part in raw.split())
        if one_slot:
            bases = [self.registry + f":q:{_joined(name)}".encode()]
        elif partitions == 1:
            bases = [f"{self._prefix}:{{{_joined(name)}}}".encode()]
        else:
            bases = [f"{self._prefix}:{{{_joined(name)}/{n}}}".encode() for n in range(partitions)]
        shards = tuple(Shard(base, name, n, number * MAX_PARTITIONS + n) for n, base in enumerate(bases))
        found = self._known[name] = RegisteredQueue(name, number, shards)
        return found


def _joined(name: QueueName) -> str:
    return f"{name.tenant}/{name.queue}"
