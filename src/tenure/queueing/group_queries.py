"""Queries of the groups of a queue. Nothing here writes."""

from __future__ import annotations

from tenure.errors import InvalidArgument
from tenure.model.group import GroupInfo, GroupPage
from tenure.model.names import QueueName
from tenure.queueing.core import Core
from tenure.queueing.queries import sealed_cursor, split_cursor
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader
from tenure.storage.keyspace import GROUP_READY, GROUPS

_ID_BYTES = 16


def list_groups(core: Core, name: QueueName, limit: int, cursor: str | None) -> GroupPage:
    """A page of the groups that have waiting or leased jobs, in an arbitrary order. Raises InvalidArgument."""
    listed = f"{name.tenant}/{name.queue}/groups"
    with core.engine.snapshot((keyspace.QUEUES, GROUPS, GROUP_READY)) as reader:
        queue = core.registry.find(reader, name)
        if queue is None:
            return GroupPage([], None)
        begin, end = keyspace.queue_range(queue.number)
        if cursor is not None:
            after = split_cursor(listed, cursor)
            if len(after) != _ID_BYTES:
                raise InvalidArgument("that is not a cursor of this list")
            begin = keyspace.of_queue(queue.number, after) + b"\0"
        rows = reader.scan(GROUPS, begin, end, limit)
        found = [_info(reader, queue.number, key[4:], value, core.time.now_ms()) for key, value in rows]
        more = len(rows) == limit
        return GroupPage(
            [group for group in found if group.waiting or group.leased],
            sealed_cursor(listed, rows[-1][0][4:]) if more else None,
        )


def _info(reader: Reader, queue: int, group: bytes, value: bytes, now_ms: int) -> GroupInfo:
    record = records.decode_group(value)
    return GroupInfo(
        group=record.name.decode(),
        waiting=record.waiting,
        leased=record.leased,
        oldest_at_ms=_oldest(reader, queue, group, now_ms) if record.waiting else None,
        at_limit=bool(record.at_limit),
    )


def _oldest(reader: Reader, queue: int, group: bytes, now_ms: int) -> int | None:
    """When its oldest ready job became ready. Reads one key for each priority of its jobs, and one more."""
    oldest: int | None = None
    begin, end = keyspace.group_range(queue, group)
    while keys := reader.keys(GROUP_READY, begin, end, 1):
        _, _, tier, visible_at_ms, _ = keyspace.split_group_ready(keys[0])
        if visible_at_ms <= now_ms:
            oldest = visible_at_ms if oldest is None else min(oldest, visible_at_ms)
        begin = keyspace.group_tier_end(queue, group, tier)
    return oldest
