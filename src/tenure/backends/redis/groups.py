"""A Redis store keeps no groups: the order of their turns is not in its Lua functions."""

from __future__ import annotations

from tenure.errors import InvalidArgument


def no_groups() -> InvalidArgument:
    """What a caller is told that gives a job a group, or a queue a policy for groups."""
    return InvalidArgument(
        "a Redis store keeps no groups: use a queue for each, or an embedded store (rocksdb:, lmdb:)"
    )
