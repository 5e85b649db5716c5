"""From a query to parts that can be read side by side, and from a part to record batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tenure.bulk import events, flow_tables, index_tables, jobs
from tenure.bulk.extents import even, spread, within_queues
from tenure.bulk.query import Query, Range, StoreView, queue_ranges
from tenure.errors import InvalidArgument
from tenure.storage import keyspace
from tenure.storage.engine import Reader, Snapshot, Space

#: The space whose keys a table is cut by.
_SPACES: dict[str, Space] = {
    "jobs": keyspace.STATE,
    "events": keyspace.JOURNAL,
    "leases": keyspace.LEASES,
    "queues": keyspace.QUEUES,
    "counters": keyspace.COUNTERS,
    "lease_jobs": keyspace.LEASE_JOBS,
    "groups": keyspace.GROUPS,
    "parents": keyspace.PARENTS,
    "steps": keyspace.STEPS,
}
_READERS = {
    "jobs": jobs.read,
    "events": events.read,
    "leases": index_tables.leases,
    "queues": index_tables.queues,
    "counters": index_tables.counters,
    "lease_jobs": index_tables.lease_jobs,
    "groups": index_tables.groups,
    "parents": flow_tables.parents,
    "steps": flow_tables.steps,
}

#: Up to this many rows are counted exactly. Larger tables are cut by the engine's estimates.
_EXACT = 100_000


@dataclass(frozen=True)
class Part:
    """Key ranges of a space, read one after another."""

    space: Space
    ranges: tuple[Range, ...]


def plan(moment: StoreView, query: Query, rows: int) -> list[Part]:
    """The query in parts of about `rows` rows each, before any is filtered out."""
    if rows < 1:
        raise InvalidArgument(f"rowsPerPartition={rows}: at least 1")
    numbers = moment.names.chosen(query.tenant, query.queue)
    if query.table == "events":
        begin, end = events.span(moment.reader, query.since_ms, query.until_ms)
        return event_parts(moment.reader, begin, end, rows)
    if query.table == "queues":
        return [Part(keyspace.QUEUES, ((b"", keyspace.LAST),))]
    if query.table == "indexes":
        parts = []
        for space in index_tables.INDEXES:
            chosen = None if space == keyspace.DUE else numbers
            parts += _cut(moment.reader, space, queue_ranges(chosen), rows)
        return parts
    return _cut(moment.reader, _SPACES[query.table], queue_ranges(numbers), rows)


def event_parts(reader: Reader, begin: int, end: int, rows: int) -> list[Part]:
    return [
        Part(keyspace.JOURNAL, ((keyspace.commit(first), keyspace.commit(stop)),))
        for first, stop in events.cuts(reader, begin, end, rows)
    ]


def read(moment: StoreView, query: Query, part: Part) -> Iterator[pa.RecordBatch]:
    for begin, end in part.ranges:
        if query.table == "indexes":
            batches = index_tables.index(moment, query, part.space, begin, end)
        else:
            batches = _READERS[query.table](moment, query, begin, end)
        for batch in batches:
            if batch.num_rows:
                yield batch


def _cut(reader: Snapshot, space: Space, ranges: list[Range], rows: int) -> list[Part]:
    boundaries = reader.boundaries(space)
    if boundaries:
        return [Part(space, (piece,)) for piece in cut_at(ranges, boundaries)]
    if space == keyspace.STATE:
        # Both spaces have the same keys; of `jobs` no row is ever written twice, so its files tell better how many
        # there are.
        known = spread(within_queues(reader, reader.extents(keyspace.JOBS)), ranges)
        if known.rows > _EXACT:
            return [Part(space, found) for found in known.cut(even(known.rows, rows))]
    return _walked(reader, space, ranges, rows)


def cut_at(ranges: list[Range], boundaries: list[bytes]) -> list[Range]:
    """The same ranges, cut at those of the boundaries that lie within them. Both ascend."""
    pieces: list[Range] = []
    for begin, end in ranges:
        at = begin
        for boundary in boundaries:
            if at < boundary < end:
                pieces.append((at, boundary))
                at = boundary
        pieces.append((at, end))
    return pieces


def _walked(reader: Reader, space: Space, ranges: list[Range], rows: int) -> list[Part]:
    """Walk the keys, which costs a fraction of reading the rows and is exact where ids cluster."""
    parts: list[Part] = []
    current: list[Range] = []
    room = rows
    for begin, end in ranges:
        while True:
            keys = reader.keys(space, begin, end, room + 1)
            if len(keys) <= room:
                current.append((begin, end))
                room -= len(keys)
                break
            cut = keys[-1]
            current.append((begin, cut))
            parts.append(Part(space, tuple(current)))
            begin, current, room = cut, [], rows
        if room == 0:
            parts.append(Part(space, tuple(current)))
            current, room = [], rows
    return [*parts, Part(space, tuple(current))] if current else parts
