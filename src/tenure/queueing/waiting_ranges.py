"""Ranges of the index rows of a queue's waiting jobs: one for each priority, and one more if jobs may have a group."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from typing import NamedTuple

from tenure.queueing.registry import RegisteredQueue
from tenure.storage import keyspace
from tenure.storage.engine import Reader, iterate_keys
from tenure.storage.keyspace import GROUPED, READY

PRIORITIES = range(9, -1, -1)


class WaitingRange(NamedTuple):
    priority: int
    begin: bytes
    end: bytes


def kinds(queue: RegisteredQueue) -> tuple[int, ...]:
    """The tier offsets in use: 0 for jobs without a group, and `GROUPED` if jobs may have one."""
    return (0, GROUPED) if queue.grouped else (0,)


def waiting_ranges(queue: RegisteredQueue, state: str, now_ms: int) -> Iterator[WaitingRange]:
    """The ranges in `ready` of jobs that are ready, or scheduled."""
    for grouped in kinds(queue):
        for priority in PRIORITIES:
            middle = keyspace.ready_until(queue.number, priority, now_ms, grouped)
            if state == "ready":
                yield WaitingRange(priority, keyspace.ready_prefix(queue.number, priority, grouped), middle)
            else:
                yield WaitingRange(priority, middle, keyspace.ready_tier_end(queue.number, priority, grouped))


def waiting_rows(
    reader: Reader, queue: RegisteredQueue, state: str, now_ms: int, after: bytes | None, page: int
) -> Iterator[tuple[bytes, bytes]]:
    """(position, job) by priority and time, after a position, `page` read at once.

    A position is the job's row as if it had no group.
    """
    ranges = list(waiting_ranges(queue, state, now_ms))
    for priority in PRIORITIES:
        runs = [_keys(reader, begin, end, after, page) for each, begin, end in ranges if each == priority]
        for key in merge(*runs, key=lambda row: row[5:]):
            yield _tiered(key, key[4] % GROUPED), key[-16:]


def _keys(reader: Reader, begin: bytes, end: bytes, after: bytes | None, page: int) -> Iterator[bytes]:
    if after is not None:
        begin = max(begin, _tiered(after, after[4] + begin[4] - begin[4] % GROUPED) + b"\0")
    if begin < end:
        for keys in iterate_keys(reader, READY, begin, end, page):
            yield from keys


def _tiered(key: bytes, tier: int) -> bytes:
    return key[:4] + bytes((tier,)) + key[5:]
