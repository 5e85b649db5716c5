"""Bulk loads: jobs that come as sorted files, which the engine ingests (`storage.engine.Loader`).

The writer's files hold what does not depend on the load: the jobs, as rows with their `due`, or as segments. A job's
state refers to its event, and the event's number is known only when the load commits. So `state`, `ready`,
`group_ready` and the segments' state are made here, under the writer's lock, together with the rows of the journal,
from a list of the jobs that comes with the files. The last transaction updates the counts and turns of groups.

    <data>/staging/<digest of the id>/<part>.<space>.sst    sorted files
                                      <part>.rows           the jobs' keys, shapes and groups, and a CRC

A write id that was loaded or published before is not loaded again. A load that was interrupted is finished on opening.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, repeat
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from tenure.errors import Corrupt, InvalidArgument, QueueFull, TooLarge, Unavailable
from tenure.model.ids import NO_ID
from tenure.model.lifecycle import State
from tenure.model.names import QueueName
from tenure.model.write import MAX_LOAD, MAX_MANIFEST, NO_LOADS, LoadRequest, LoadTarget, WriteState
from tenure.queueing import groups, staged_writes
from tenure.queueing.core import JOURNAL_LINE, Core
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.unit_of_work import ALL, UnitOfWork, begin_unit
from tenure.storage import keyspace, records
from tenure.storage.checksum import crc32
from tenure.storage.engine import Loader, Row, Table, Transaction
from tenure.storage.keyspace import Counter
from tenure.storage.records import EVENTS_A_ROW, LoadedPart, LoadRecord, LoadShape

#: Spaces that the writer may give as files.
GIVEN = (keyspace.JOBS, keyspace.PAYLOAD, keyspace.READY, keyspace.DUE, keyspace.SEGMENTS)
_WAITING = int(State.WAITING)
_COUNT = Struct(">I")
_KEY = Struct("20s")
STAGING = "staging"
#: The most groups of one load: each is at least a row and a turn of the last transaction.
MAX_GROUPS = 100_000


class StagedJobs(NamedTuple):
    """The jobs of a part, in the order of their keys."""

    #: (count, shape) of neighbours that have the same shape.
    runs: list[tuple[int, LoadShape]]
    #: The keys, joined.
    keys: bytes
    #: The group's name of each job whose shape has the flag `HAS_GROUP`.
    groups: list[bytes]

    def packed(self, first: int, end: int) -> bytes:
        """The keys of the jobs at these indexes, joined."""
        return self.keys[first * _KEY.size : end * _KEY.size]


class _Repeated(Exception):
    """Leaves the transaction of a load that was done before. Not an error."""

    def __init__(self, state: WriteState) -> None:
        self.state = state


def target(core: Core, name: QueueName) -> LoadTarget:
    """What a writer of files needs to know of a queue, which is created if it does not exist."""
    _loader(core)
    queue = core.read(lambda reader: core.registry.find(reader, name))
    if queue is None:
        queue = core.write(lambda unit: unit.queue(name))
    now, drift = core.time.now_ms(), core.time.drift_ms()
    return LoadTarget(queue.number, queue.policy.max_attempts, now, drift, bool(queue.bounded))


def load(core: Core, request: LoadRequest) -> WriteState:
    """Load the files of a request, once. Raises InvalidArgument, TooLarge, QueueFull, Corrupt, Unavailable."""
    loader = _loader(core)
    total = sum([part.rows for part in request.parts])
    if total > MAX_LOAD:
        raise TooLarge("the number of jobs of the load", total, MAX_LOAD)
    if len(request.manifest) > MAX_MANIFEST:
        raise TooLarge("the load's manifest", len(request.manifest), MAX_MANIFEST)
    for part in request.parts:
        if os.path.basename(part.name) != part.name or not set(part.spaces) <= set(GIVEN) or part.rows < 1:
            raise InvalidArgument(f"{part.name!r} is not a part of a load")
    parts = [LoadedPart(part.name, part.queue, part.rows, part.spaces) for part in request.parts]
    record = LoadRecord(request.id, request.manifest, parts, core.time.now_ms(), request.keep_ms, request.chunk)
    try:
        return _run(core, loader, record, again=False)
    except _Repeated as repeated:
        return repeated.state


def roll_forward(core: Core) -> int:
    """Finish interrupted loads; returns how many. Called on opening, before any verb."""
    if core.engine.loader is None:
        return 0
    rows = core.read(lambda reader: reader.scan(keyspace.META, *keyspace.LOADS, 100))
    for _, raw in rows:
        record = records.decode_struct(LoadRecord, raw, "the intent of a bulk load")
        _run(core, core.engine.loader, record, again=True)
    return len(rows)


def _loader(core: Core) -> Loader:
    if core.engine.loader is None:
        raise InvalidArgument(NO_LOADS)
    return core.engine.loader


def _run(core: Core, loader: Loader, record: LoadRecord, *, again: bool) -> WriteState:
    assert core.engine.home is not None
    folder = core.engine.home / STAGING / keyspace.digest(record.id.encode()).hex()
    work = _Load(core, loader, folder, record)
    done = loader.load(work.intend, work.finish, again=again)
    for queue in work.queues.values():
        core.waiters.wake(queue.name, ALL)
    core.waiters.wake(JOURNAL_LINE, ALL)
    return done


class _Load:
    def __init__(self, core: Core, loader: Loader, folder: Path, record: LoadRecord) -> None:
        self._core, self._loader, self._folder, self._record = core, loader, folder, record
        self._key = keyspace.load_row(keyspace.digest(record.id.encode()))
        self.queues: dict[int, RegisteredQueue] = {}
        self._counts: dict[int, int] = {}
        self._priorities: dict[int, set[int]] = {}
        #: By (queue, group's name, tier): how many jobs, and their earliest visibility time.
        self._groups: dict[tuple[int, bytes, int], tuple[int, int]] = {}
        #: The event that jobs of one shape share, by (queue, shape).
        self._templates: dict[tuple[int, LoadShape], bytes] = {}
        self._journal: list[bytes] = []
        #: The journal row that is being filled: the number of its events, and their bytes.
        self._filled = 0
        self._events: list[_AlikeEvents] = []
        self._number = self._commit = 0

    def intend(self, tx: Transaction) -> Sequence[Table]:
        """Check the load, write the files that depend on it, and put the intent. Returns all files to ingest."""
        self._check_marker(staged_writes.find(tx, self._record.id))
        unit = begin_unit(tx, self._core, self._record.time_ms)
        self._now, self._number, self._commit = unit.now, unit.next_number, tx.next_append(keyspace.JOURNAL)
        self._check_queues(tx)
        again = tx.get(keyspace.META, self._key) is not None
        tables = []
        for part in self._record.parts:
            jobs = read_rows(self._folder, part.name, part.rows)
            if keyspace.SEGMENTS in part.spaces and not again and not _apart_from_segments(tx, jobs):
                raise Unavailable("the load's ids lie among those of other jobs: repeat the write, which makes others")
            if keyspace.READY not in part.spaces:  # else the writer's rows of `ready` fix the visibility times
                visible = {shape: self._visible(shape) for shape in {shape for _, shape in jobs.runs}}
                jobs = jobs._replace(runs=[(count, visible[shape]) for count, shape in jobs.runs])
            segments, ready, group_ready = _Segments(), list[bytes](), list[bytes]()
            states = self._states(part, jobs, segments, ready, group_ready)
            tables += self._written(part, keyspace.STATE, states)
            tables += self._written(part, keyspace.SEGMENT_STATE, iter(segments.states))
            tables += self._written(part, keyspace.SEGMENT_READY, iter(segments.marks))
            if keyspace.READY not in part.spaces:
                tables += self._written(part, keyspace.READY, zip(sorted(ready), repeat(b"")))
            tables += self._written(part, keyspace.GROUP_READY, zip(sorted(group_ready), repeat(b"")))
            tables += [Table(space, str(table_path(self._folder, part.name, space))) for space in part.spaces]
        if len(self._groups) > MAX_GROUPS:
            raise TooLarge("the number of groups of the load", len(self._groups), MAX_GROUPS)
        missing = [table.path for table in tables if not os.path.exists(table.path)]
        if missing:
            raise Corrupt(f"a bulk load cannot be finished: {missing[0]} is gone")
        tx.put(keyspace.META, self._key, records.encode_struct(self._record))
        return tables

    def finish(self, tx: Transaction) -> WriteState:
        """Write counters, turns, journal and marker, and remove the intent."""
        unit = begin_unit(tx, self._core, self._now)
        for number, count in self._counts.items():
            unit.count(number, Counter.WAITING, count)
            unit.count(number, Counter.ENQUEUED, count)
            for priority in self._priorities[number]:
                unit.in_use(number, priority)
            # Some of them may be scheduled: a claim that finds no job yet parks the queue until the first one's time.
            unit.has_work(self.queues[number], self._now)
        if self._groups:
            self._count_groups(unit)
        self._core.turns.offer(unit, unit.offers or {})
        tx.journal += self._journal
        if self._journal:
            self._core.journal_end = tx.next_append(keyspace.JOURNAL), self._number, self._now
        tx.delete(keyspace.META, self._key)
        record, total = self._record, sum(self._counts.values())
        if record.chunk is not None:
            return staged_writes.count_loaded(unit, record.id, record.chunk, total)
        return staged_writes.put_new(unit, record.id, record.manifest, record.keep_ms, loaded=total)

    def _count_groups(self, unit: UnitOfWork) -> None:
        """Update the counts and turns of the load's groups, and mark their queues as grouped."""
        for number in {number for number, _, _ in self._groups}:
            self.queues[number] = groups.make_grouped(unit, self.queues[number])
        for (number, name, tier), (count, at_ms) in self._groups.items():
            unit.groups.waits(self.queues[number], groups.group_id(name), name, tier, at_ms, count)
        unit.groups.finish()

    def _check_marker(self, found: WriteState | None) -> None:
        """Raise _Repeated if the load was done before, InvalidArgument if its chunk is not the write's next."""
        name, chunk = self._record.id, self._record.chunk
        if found is not None and (found.finished or (chunk is not None and chunk < found.chunk)):
            raise _Repeated(found)
        if chunk is None and found is not None:
            raise InvalidArgument(f"write {name!r} was begun by the ordinary path: finish it that way")
        if chunk is not None and (found is None or chunk > found.chunk):
            next_chunk = "it is begun" if found is None else f"chunk {found.chunk}"
            raise InvalidArgument(f"chunk {chunk} of write {name!r} comes before {next_chunk}")

    def _check_queues(self, tx: Transaction) -> None:
        for part in self._record.parts:
            queue = self._core.registry.by_number(tx, part.queue)
            if queue is None:
                raise InvalidArgument(f"there is no queue with the number {part.queue}")
            self.queues[part.queue] = queue
            self._counts[part.queue] = self._counts.get(part.queue, 0) + part.rows
        for number, queue in self.queues.items():
            if queue.meter:
                raise InvalidArgument(
                    f"tenant {queue.name.tenant!r} has a quota, which bulk files go past: publish them the ordinary way"
                )
            limit, key = queue.policy.max_waiting, keyspace.counter(number, Counter.WAITING)
            if limit is not None:
                waiting = records.decode_count(tx.get(keyspace.COUNTERS, key))
                if waiting + self._counts[number] > limit:
                    raise QueueFull(str(queue.name), waiting, limit)

    def _written(self, part: LoadedPart, space: int, rows: Iterator[Row]) -> list[Table]:
        """Write a file of these rows, unless there are none."""
        first = next(rows, None)
        if first is None:
            return []
        # A new name each time: the database may already own the file of an earlier try.
        path = str(self._folder / f"{part.name}.{keyspace.NAMES[space]}-{os.urandom(6).hex()}.sst")
        self._loader.write_table(path, chain([first], rows))
        return [Table(space, path)]

    def _visible(self, shape: LoadShape) -> LoadShape:
        """The shape with a visibility time that is not before now: its files were made earlier."""
        return shape if shape.visible_at_ms >= self._now else shape._replace(visible_at_ms=self._now)

    def _states(
        self,
        part: LoadedPart,
        jobs: StagedJobs,
        segments: _Segments,
        ready: list[bytes],
        group_ready: list[bytes],
    ) -> Iterator[Row]:
        """Yield the part's rows of `state`; fill `segments`, and the keys of the other jobs in `ready`, `group_ready`.

        Adds the part's events to journal rows of their own.
        """
        queue, first = self.queues[part.queue], 0
        names = iter(jobs.groups)
        for count, shape in jobs.runs:
            end = first + count
            if shape.flags & records.TOGETHER:
                if self._filled + count > EVENTS_A_ROW:
                    self._close_row()
                packed = jobs.packed(first, end)
                segments.add(queue.number, shape, packed, self._events_of(queue, shape, packed).start)
                first = end
            while first < end:
                until = min(end, first + EVENTS_A_ROW - self._filled)
                grouped = shape.flags & records.HAS_GROUP
                at = keyspace.ready_from(queue.number, shape.priority, shape.visible_at_ms, grouped)
                packed = jobs.packed(first, until)
                keys = _split(packed)
                ready += [at + key[4:] for key in keys]
                if grouped:
                    group_ready += self._of_groups(queue.number, shape, keys, names)
                yield from self._alike(queue, shape, keys, packed)
                first = until
                if self._filled == EVENTS_A_ROW:
                    self._close_row()
        self._close_row()

    def _of_groups(self, queue: int, shape: LoadShape, keys: Sequence[bytes], names: Iterator[bytes]) -> list[bytes]:
        """The keys in `group_ready` of jobs of one shape, whose groups are the next of `names`. Counts them."""
        tier, visible, counted = 9 - shape.priority, shape.visible_at_ms, self._groups
        made = []
        for key, name in zip(keys, names, strict=False):  # `names` continues with those of the next shape
            count, first = counted.get((queue, name, tier), (0, visible))
            counted[queue, name, tier] = count + 1, min(first, visible)
            made.append(keyspace.group_ready(queue, groups.group_id(name), tier, visible, key[4:]))
        return made

    def _alike(self, queue: RegisteredQueue, shape: LoadShape, keys: Sequence[bytes], packed: bytes) -> Iterator[Row]:
        """The states of jobs of one shape with events in one journal row: they differ only in their last event."""
        priority, flags, visible, attempts, due_at = shape
        head = records.pack_state(1, _WAITING, priority, 0, flags, 0, attempts, 0, 0, visible, 0, due_at, 0, NO_ID)
        head = head[: records.STATE_ALIKE]
        states = records.alike_states(head, NO_ID, self._events_of(queue, shape, packed))
        return zip(keys, states, strict=True)

    def _events_of(self, queue: RegisteredQueue, shape: LoadShape, packed: bytes) -> range:
        """Add the events of jobs of one shape, whose joined keys are `packed`, to the journal row that is being filled.

        Returns their references.
        """
        event = self._templates.get((queue.number, shape))
        if event is None:
            event = self._templates[queue.number, shape] = self._template(queue, shape)
        first, count = (self._commit << records.REF_BITS) + self._filled, len(packed) // _KEY.size
        self._events.append(_AlikeEvents(event, b"".join(_ids(count).unpack(packed))))
        self._filled += count
        return range(first, first + count)

    def _template(self, queue: RegisteredQueue, shape: LoadShape) -> bytes:
        """The event of a job of this shape, whose id is zeros. Notes that the queue uses the shape's priority."""
        self._priorities.setdefault(queue.number, set()).add(shape.priority)
        middle = records.pack_event_middle(0, 0, shape.max_attempts, shape.visible_at_ms, 0)
        return queue.enqueued[shape.priority] + NO_ID + NO_ID + middle + records.NO_TEXT

    def _close_row(self) -> None:
        if self._filled:
            events = self._events
            if len({alike.event for alike in events}) == 1:
                jobs = b"".join([alike.jobs for alike in events])
                row = records.encode_alike_row(self._number, self._now, events[0].event, jobs)
            else:
                every = b"".join([records.alike_events(*alike) for alike in events])
                row = records.encode_journal_row(self._filled, self._number, self._now, every)
            self._journal.append(row)
            self._number += self._filled
            self._commit += 1
            self._filled, self._events = 0, []


class _AlikeEvents(NamedTuple):
    """Events that differ only in their job: one event with zeros for its job, and the joined ids of all jobs."""

    event: bytes
    jobs: bytes


class _Segments:
    """The rows of `segment_state` and `segment_ready` of a part's segments."""

    def __init__(self) -> None:
        self.states: list[Row] = []
        self.marks: list[Row] = []

    def add(self, queue: int, shape: LoadShape, packed: bytes, first_event: int) -> None:
        """Add a segment of the jobs whose joined keys are `packed`."""
        first, last = packed[4 : _KEY.size], packed[4 - _KEY.size :]
        state = records.SegmentStateRecord(
            records.V1, _WAITING, shape.priority, 0, shape.max_attempts, 0, shape.visible_at_ms, first_event, 0, first,
            NO_ID, NO_ID,
        )  # fmt: skip
        self.states.append((packed[-_KEY.size :], records.encode_segment_state(state)))
        ready = keyspace.ready_from(queue, shape.priority, shape.visible_at_ms)
        self.marks.append((ready + first, records.encode_segment_mark(last)))


def _apart_from_segments(tx: Transaction, jobs: StagedJobs) -> bool:
    """Whether no segment of the store overlaps these jobs. Segments must never overlap."""
    last = jobs.keys[-_KEY.size :]
    for key, raw in tx.scan(keyspace.SEGMENT_STATE, jobs.packed(0, 1), keyspace.LAST, 1):
        return key[:4] != last[:4] or records.decode_segment_state(raw).first_job > last[4:]
    return True


def _split(packed: bytes) -> list[bytes]:
    return [key for (key,) in _KEY.iter_unpack(packed)]


@lru_cache(EVENTS_A_ROW)
def _ids(count: int) -> Struct:
    """Unpacks the ids of `count` joined keys."""
    return Struct("4x16s" * count)


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def table_path(folder: Path, part: str, space: int) -> Path:
    return folder / f"{part}.{keyspace.NAMES[space]}.sst"


def rows_path(folder: Path, part: str) -> Path:
    return folder / f"{part}.rows"


def encode_rows(runs: Sequence[tuple[int, LoadShape]], keys: bytes, groups: bytes = b"") -> bytes:
    """The file of a part's jobs without its final CRC: shapes, keys in order, groups."""
    return _COUNT.pack(len(runs)) + records.encode_load_runs(runs) + keys + groups


def read_rows(folder: Path, part: str, count: int) -> StagedJobs:
    """Read the file of a part's `count` jobs. Raises Corrupt."""
    path = rows_path(folder, part)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise Corrupt(f"a bulk load cannot be finished: {path} is gone") from None
    body = raw[:-4]
    if len(body) < _COUNT.size or crc32(body) != int.from_bytes(raw[-4:], "big"):
        raise Corrupt(f"{path} is damaged: its checksum does not fit its {len(raw)} bytes")
    first = _COUNT.size + _COUNT.unpack_from(body)[0] * records.LOAD_RUN_BYTES
    end = first + _KEY.size * count
    runs = records.decode_load_runs(body[_COUNT.size : first])
    grouped = sum([alike for alike, shape in runs if shape.flags & records.HAS_GROUP])
    names = records.decode_load_groups(body[end:]) if grouped else []
    if sum([alike for alike, _ in runs]) != count or len(names) != grouped or (len(body) != end and not grouped):
        raise Corrupt(f"{path} is not of {count} jobs")
    return StagedJobs(runs, body[first:end], names)
