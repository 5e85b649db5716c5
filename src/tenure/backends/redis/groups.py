"""The groups of a queue: the partition of a job with a group, and the list for `queue.groups`.

`lua/45_groups.lua` and `lua/48_turns.lua` have the part that claims use.
"""

from __future__ import annotations

import base64

from tenure.backends.redis.core import Core
from tenure.backends.redis.shards import RegisteredQueue, Shard
from tenure.errors import InvalidArgument
from tenure.model.group import GroupInfo, GroupPage
from tenure.model.names import QueueName
from tenure.storage.keyspace import digest

_MARK_BYTES = 4
_FIELDS = 5


def shard_of_group(queue: RegisteredQueue, group: str, keyed: bool) -> Shard:
    """Return the partition that has all jobs of a group, so that the group's limits hold for all workers.

    Raises InvalidArgument in a queue of several partitions if the job also has a key, which belongs to another
    partition.
    """
    if keyed and len(queue.shards) > 1:
        raise InvalidArgument(
            f"queue {queue.name.queue!r} has partitions: a job with a key belongs to the key's, a job with a group to the "
            "group's. Leave one of them out, or use a queue of one partition"
        )
    return queue.shard_of(digest(group.encode()))


def list_groups(core: Core, name: QueueName, limit: int, cursor: str | None) -> GroupPage:
    """Return one page of the groups with waiting or leased jobs, by partition and name."""
    partition, after = (0, b"") if cursor is None else _split_cursor(name, cursor)
    queue = core.shards.find(name)
    found: list[GroupInfo] = []
    seen = 0
    for shard in () if queue is None else queue.shards[partition:]:
        reply = core.commands.call(shard.base, "groups", after, limit - seen)
        after = b""
        for group, waiting, leased, oldest, at_limit in zip(*[iter(reply)] * _FIELDS, strict=True):
            seen += 1
            if waiting or leased:
                found.append(
                    GroupInfo(
                        group=group.decode(),
                        waiting=waiting,
                        leased=leased,
                        oldest_at_ms=None if oldest < 0 else oldest,
                        at_limit=bool(at_limit),
                    )
                )
            if seen == limit:
                return GroupPage(found, _cursor(name, shard.partition, group))
    return GroupPage(found, None)


def _mark(name: QueueName) -> bytes:
    return digest(f"{name.tenant}/{name.queue}/groups".encode())[:_MARK_BYTES]


def _cursor(name: QueueName, partition: int, group: bytes) -> str:
    return base64.urlsafe_b64encode(_mark(name) + bytes((partition,)) + group).decode()


def _split_cursor(name: QueueName, cursor: str) -> tuple[int, bytes]:
    try:
        raw = base64.urlsafe_b64decode(cursor.encode())
    except (ValueError, AttributeError):
        raw = b""
    if len(raw) <= _MARK_BYTES + 1 or raw[:_MARK_BYTES] != _mark(name):
        raise InvalidArgument("that is not a cursor of this list")
    return raw[_MARK_BYTES], raw[_MARK_BYTES + 1 :]
