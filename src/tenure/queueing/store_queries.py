"""Queries over all queues: a job by its id, jobs in a state, upcoming jobs. Lists read a snapshot and block no writer.

The lists go queue by queue, and read only the queues whose counters show jobs in that state.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Collection, Iterator
from struct import Struct

from tenure.errors import InvalidArgument
from tenure.model.job import Job, Page
from tenure.model.request import UpcomingRequest
from tenure.queueing import locations
from tenure.queueing.core import Core
from tenure.queueing.queries import (
    ANSWER_BYTES,
    SHOWN_SPACES,
    positions,
    read_job,
    read_job_of,
    read_rows,
    sealed_cursor,
    split_cursor,
    weight,
)
from tenure.queueing.registry import RegisteredQueue, registered
from tenure.queueing.waiting_ranges import kinds
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, iterate
from tenure.storage.keyspace import Counter

#: The counter of each state that users list.
_COUNTED = {
    "ready": Counter.WAITING,
    "scheduled": Counter.WAITING,
    "leased": Counter.LEASED,
    "done": Counter.DONE,
    "dead": Counter.DEAD,
    "blocked": Counter.BLOCKED,
}
_PLACE = Struct(">Q16s")
#: Queues that are read between two yields to other threads.
_QUEUES_AT_ONCE = 20


def find(core: Core, job: bytes) -> Job | None:
    """The job of that id in any queue; None: no queue has it."""

    def run(reader: Reader) -> Job | None:
        number = locations.locate(reader, job)
        queue = None if number is None else core.registry.by_number(reader, number)
        return None if queue is None else read_job(core, reader, queue, job)

    return core.read(run)


def _queues_with(
    reader: Reader, counter: Counter, tenant: str | None, queues: Collection[str] | None, begin: bytes = b""
) -> Iterator[tuple[bytes, RegisteredQueue]]:
    """(key, queue) of the queues whose counter is not 0, ordered by name, from a key on."""
    first, end = (b"", keyspace.LAST) if tenant is None else keyspace.tenant_range(tenant)
    for rows in iterate(reader, keyspace.QUEUES, max(first, begin), end, 100):
        found = [(key, registered(raw)) for key, raw in rows]
        counts = reader.get_many(keyspace.COUNTERS, [queue.counters[counter] for _, queue in found])
        for at, ((key, queue), raw) in enumerate(zip(found, counts, strict=True)):
            if not at % _QUEUES_AT_ONCE:
                time.sleep(0)  # release the interpreter's lock, so that writers can run
            if records.decode_count(raw) and (queues is None or queue.name.queue in queues):
                yield key, queue


def list_all(
    core: Core, state: str, limit: int, cursor: str | None, tenant: str | None, queues: Collection[str] | None
) -> Page:
    """A page of jobs in a state, queue by queue, in each queue's order. Raises InvalidArgument."""
    listed = f"*/{tenant or '*'}/{state}"
    begin, after = b"", None
    if cursor is not None:
        raw = split_cursor(listed, cursor)
        begin, after = raw[1 : 1 + raw[0]], raw[1 + raw[0] :]
        if not begin or not after:
            raise InvalidArgument("that is not a cursor of this list")
    jobs: list[Job] = []
    size, last, last_key = 0, b"", b""
    with core.engine.snapshot((*SHOWN_SPACES, keyspace.COUNTERS)) as reader:
        for key, queue in _queues_with(reader, _COUNTED[state], tenant, queues, begin):
            rows = positions(core, reader, queue, state, after if key == begin else None, limit + 1 - len(jobs))
            for position, row in read_rows(reader, queue, rows, limit):
                if len(jobs) == limit or size >= ANSWER_BYTES:
                    return Page(jobs, sealed_cursor(listed, bytes((len(last_key),)) + last_key + last))
                last, last_key = position, key
                found = read_job_of(core, reader, queue, row)
                if found is not None:
                    jobs.append(found)
                    size += weight(found)
    return Page(jobs, None)


# ── upcoming jobs ────────────────────────────────────────────────────────────────────────────────────────────────────


def upcoming(core: Core, request: UpcomingRequest) -> Page:
    """A page of scheduled jobs that become ready between two times, earliest first.

    Only index keys are read, and the payloads of the jobs that are returned. Raises InvalidArgument.
    """
    before_ms, after_ms, limit, cursor, tenant, queues = request
    listed = f"upcoming/{tenant or '*'}"
    now = core.time.now_ms()
    before = core.time.from_calendar(before_ms, now) if before_ms < 2**61 else keyspace.MAX_TIME - 1
    after = (max(now, core.time.from_calendar(after_ms, now) if after_ms else 0), b"\xff" * 16)
    if cursor is not None:
        raw = split_cursor(listed, cursor)
        if len(raw) != _PLACE.size:
            raise InvalidArgument("that is not a cursor of this list")
        after = max(after, _PLACE.unpack(raw))
    with core.engine.snapshot((*SHOWN_SPACES, keyspace.COUNTERS)) as reader:
        rows = _earliest(reader, after, before, limit + 1, tenant, queues)
        jobs: list[Job] = []
        size = 0
        for at, (_, job, queue) in enumerate(rows):
            if at == limit or size >= ANSWER_BYTES:
                return Page(jobs, sealed_cursor(listed, _PLACE.pack(*rows[at - 1][:2])))
            found = read_job(core, reader, queue, job)
            if found is not None:
                jobs.append(found)
                size += weight(found)
        return Page(jobs, None)


Row = tuple[int, bytes, RegisteredQueue]
"""When a job becomes ready, the job, its queue."""


def _earliest(
    reader: Reader,
    after: tuple[int, bytes],
    before: int,
    limit: int,
    tenant: str | None,
    queues: Collection[str] | None,
) -> list[Row]:
    """The first rows of all queues together, by time and id."""
    first: list[Row] = []
    for _, queue in _queues_with(reader, Counter.WAITING, tenant, queues):
        for row in _scheduled(reader, queue, after, before):
            if len(first) == limit:
                if row[:2] >= first[-1][:2]:
                    if row[0] > first[-1][0]:
                        before = first[-1][0] + 1  # later rows of any queue are not needed
                    continue
                first.pop()
            insort(first, row, key=lambda each: each[:2])
    return first


def _scheduled(reader: Reader, queue: RegisteredQueue, after: tuple[int, bytes], before: int) -> Iterator[Row]:
    """A queue's rows of `ready` after a position and before a time. Reads a page for each priority in use."""
    for grouped in kinds(queue):
        priority = 9
        end = keyspace.ready_tier_end(queue.number, 0, grouped)
        while priority >= 0:
            begin = keyspace.ready(queue.number, priority, *after, grouped) + b"\0"
            keys = reader.keys(keyspace.READY, begin, end, 100)
            if not keys:
                break
            stop = keyspace.ready_until(queue.number, priority, before - 1, grouped)
            tier = keyspace.split_ready(keys[0]).priority
            if tier < priority:
                priority = tier  # the priorities between have no rows
                continue
            yield from _up_to(reader, queue, keys, stop)
            priority -= 1


def _up_to(reader: Reader, queue: RegisteredQueue, keys: list[bytes], stop: bytes) -> Iterator[Row]:
    """The rows of one priority up to `stop`; `keys` is their first page."""
    while keys:
        for key in keys:
            if key >= stop:
                return
            ready = keyspace.split_ready(key)
            yield ready.visible_at_ms, ready.job, queue
        if len(keys) < 100:
            return
        keys = reader.keys(keyspace.READY, keys[-1] + b"\0", stop, 100)
