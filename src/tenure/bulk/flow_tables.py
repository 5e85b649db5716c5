"""The tables `parents` and `steps`: which jobs a job runs after, and what its handlers and others stored under it.

    parents   one row a job and parent     joined with   blocked    how many parents the job still waits for
                                                         state      what became of the parent
                                                         children   whether the parent's end still counts for the job
    steps     one row a step or signal     joined with   the job's first row, which counts them

What a row is joined with is looked up only where a column that is asked for needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from tenure.bulk import arrays, layouts
from tenure.bulk.index_tables import Columns, batch, keys_of
from tenure.bulk.query import Query, StoreView
from tenure.errors import Corrupt
from tenure.model.lifecycle import State, shown
from tenure.queueing.edges import joined
from tenure.queueing.flows import parents_in
from tenure.storage import keyspace, records
from tenure.storage.engine import Row, iterate
from tenure.storage.keyspace import BLOCKED, PARENTS, STATE, STEPS
from tenure.storage.records import ON_PARENT_DEAD, BlockedRecord, StepRecord, StepsRecord

#: A row may name 500 parents.
_PARENTS_CHUNK = 64
#: Values of steps are read with their rows, and one may have 64 KiB.
_STEPS_CHUNK = 512
#: Where a row of `parents` has its parent, as `of_queue` writes it.
_PARENT = slice(24, 44)
_OF_JOB = slice(0, 20)
_GONE = State.GONE.name.lower()
_DONE = State.DONE.name.lower()


def parents(moment: StoreView, query: Query, begin: bytes, end: bytes) -> Iterator[pa.RecordBatch]:
    for rows in iterate(moment.reader, PARENTS, begin, end, _PARENTS_CHUNK):
        found = [key for row in rows for key in _one_each(row)]
        keys = keys_of(found, layouts.PARENT, "parents")
        edges = _Edges(moment, found)
        columns: Columns = {
            "job_id": lambda: arrays.hex_ids(keys["id"]),  # noqa: B023 - called before the next turn
            "place": lambda: arrays.longs(keys["place"]),  # noqa: B023
            "parent_id": lambda: arrays.hex_ids(keys["parent"]),  # noqa: B023
            "parent_queue": lambda: moment.names.columns(keys["parent_queue"])[1],  # noqa: B023
            "parent_queue_number": lambda: arrays.longs(keys["parent_queue"]),  # noqa: B023
            "parent_state": lambda: pa.array(edges.parent_states(), pa.string()),  # noqa: B023
            "met": lambda: pa.array(edges.met(), pa.bool_()),  # noqa: B023
            "unmet": lambda: pa.array(edges.unmet(), pa.int64()),  # noqa: B023
            "on_parent_dead": lambda: pa.array(edges.on_parent_dead(), pa.string()),  # noqa: B023
        }
        yield batch(moment, query, keys["queue"], columns)


def _one_each(row: Row) -> list[bytes]:
    """A row of `parents` as the keys of as many rows, each of one parent. Raises Corrupt."""
    key, child, first = row[0], row[0][_OF_JOB], int.from_bytes(row[0][20:24], "big")
    return (
        [keyspace.parent_row(child, place, parent) for place, parent in enumerate(parents_in(row), first)]
        if keyspace.is_parents_row(key)
        else [key]
    )


class _Edges:
    """Jobs and their parents, with what the snapshot says of both. Each job and each parent is read once."""

    def __init__(self, moment: StoreView, keys: Sequence[bytes]) -> None:
        self._reader, self._now_ms = moment.reader, moment.now_ms
        self._jobs = [key[_OF_JOB] for key in keys]
        self._parents = [key[_PARENT] for key in keys]

    def parent_states(self) -> list[str]:
        return [self._states.get(parent, _GONE) for parent in self._parents]

    def met(self) -> list[bool]:
        """A blocked job waits for a parent as long as a row leads from the parent to it, and the parent is not done."""
        waiting: dict[bytes, list[bytes]] = {}
        for job, parent in zip(self._jobs, self._parents, strict=True):
            if job in self._blocked and self._states.get(parent, _GONE) != _DONE:
                waiting.setdefault(job, []).append(parent)
        unmet = {parent + job for job, parents in waiting.items() for parent in joined(self._reader, parents, job)}
        return [parent + job not in unmet for job, parent in zip(self._jobs, self._parents, strict=True)]

    def unmet(self) -> list[int | None]:
        found = map(self._blocked.get, self._jobs)
        return [None if record is None else record.open for record in found]

    def on_parent_dead(self) -> list[str | None]:
        found = map(self._blocked.get, self._jobs)
        return [None if record is None else ON_PARENT_DEAD[record.on_parent_dead] for record in found]

    @cached_property
    def _blocked(self) -> dict[bytes, BlockedRecord]:
        """Of the jobs that are blocked."""
        jobs = list(dict.fromkeys(self._jobs))
        rows = zip(jobs, self._reader.get_many(BLOCKED, jobs), strict=True)
        return {job: records.decode_blocked(raw, job[4:]) for job, raw in rows if raw is not None}

    @cached_property
    def _states(self) -> dict[bytes, str]:
        """Of the parents that are there."""
        parents = list(dict.fromkeys(self._parents))
        rows = zip(parents, self._reader.get_many(STATE, parents), strict=True)
        return {parent: self._shown(parent, raw) for parent, raw in rows if raw is not None}

    def _shown(self, parent: bytes, raw: bytes) -> str:
        record = records.decode_state(raw, parent[4:])
        return shown(State(record.state), record.visible_at_ms, self._now_ms)


def steps(moment: StoreView, query: Query, begin: bytes, end: bytes) -> Iterator[pa.RecordBatch]:
    for rows in iterate(moment.reader, STEPS, begin, end, _STEPS_CHUNK):
        stored = [row for row in rows if len(row[0]) != layouts.OF_QUEUE.itemsize]
        keys = keys_of([key for key, _ in stored], layouts.STEP, "steps")
        found = [records.decode_struct(StepRecord, value, "a step of it", key[4:20]) for key, value in stored]
        times = np.array([step.stored_at_ms for step in found], np.int64)
        columns: Columns = {
            "job_id": lambda: arrays.hex_ids(keys["id"]),  # noqa: B023 - called before the next turn
            "number": lambda: pa.array([step.place for step in found], pa.int64()),  # noqa: B023
            "kind": lambda: pa.array([_kind(key) for key, _ in stored], pa.string()),  # noqa: B023
            "name": lambda: pa.array([step.name for step in found], pa.string()),  # noqa: B023
            "stored_at": lambda: arrays.times(times),  # noqa: B023
            "size": lambda: pa.array([len(step.value) for step in found], pa.int64()),  # noqa: B023
            "value": lambda: pa.array([step.value for step in found], pa.binary()),  # noqa: B023
            "count": lambda: pa.array(_counts(moment, rows, stored), pa.int64()),  # noqa: B023
        }
        yield batch(moment, query, keys["queue"], columns, query.in_time(times))


def _kind(key: bytes) -> str:
    try:
        kind = keyspace.step_kind(key)
    except ValueError:
        kind = None
    if kind is None:
        raise Corrupt(f"steps has a row of a kind that is not known: {key.hex()}", key=key)
    return kind.name.lower()


def _counts(moment: StoreView, rows: Sequence[Row], stored: Sequence[Row]) -> list[int | None]:
    """How many steps the job of each row has, as its first row says; None if there is no such row."""
    firsts: dict[bytes, bytes | None] = {key: value for key, value in rows if len(key) == layouts.OF_QUEUE.itemsize}
    jobs = [key[_OF_JOB] for key, _ in stored]
    if jobs and jobs[0] not in firsts:  # the rows of this job were cut
        firsts[jobs[0]] = moment.reader.get(STEPS, jobs[0])
    counted = {job: _count(firsts, job) for job in dict.fromkeys(jobs)}
    return [counted[job] for job in jobs]


def _count(firsts: Mapping[bytes, bytes | None], job: bytes) -> int | None:
    raw = firsts.get(job)
    return None if raw is None else records.decode_struct(StepsRecord, raw, "its steps", job[4:]).count
