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
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby, repeat
from operator import itemgetter
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
from tenure.storage.folder import sync_names
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
    #: The keys, joined; and the ids alone, joined.
    keys: bytes
    ids: bytes
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
        tables, segments = list[Table](), _Segments()
        for part in self._record.parts:
            jobs = read_rows(self._folder, part.name, part.rows)
            if keyspace.SEGMENTS in part.spaces and not again and not _apart_from_segments(tx, jobs):
                raise Unavailable("the load's ids lie among those of other jobs: repeat the write, which makes others")
            ready, group_ready = list[bytes](), list[bytes]()
            states = self._states(part, jobs, segments, ready, group_ready)
            tables += self._written(part, keyspace.STATE, states)
            if keyspace.READY not in part.spaces:
                tables += self._written(part, keyspace.READY, zip(sorted(ready), repeat(b"")))
            tables += self._written(part, keyspace.GROUP_READY, zip(sorted(group_ready), repeat(b"")))
            tables += [Table(space, str(table_path(self._folder, part.name, space))) for space in part.spaces]
        for space, rows in ((keyspace.SEGMENT_STATE, segments.states), (keyspace.SEGMENT_READY, segments.marks)):
            # One file for all parts: the disk is waited for once, not once for each part. A load may have no parts.
            for first in self._record.parts[:1]:
                tables += self._written(first, space, iter(sorted(rows)))
        if len(self._groups) > MAX_GROUPS:
            raise TooLarge("the number of groups of the load", len(self._groups), MAX_GROUPS)
        missing = [table.path for table in tables if not os.path.exists(table.path)]
        if missing:
            raise Corrupt(f"a bulk load cannot be finished: {missing[0]} is gone")
        if tables:
            sync_names(self._folder)  # the files are synced, and from the intent on their names must last, too
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
        for given, runs in groupby(jobs.runs, itemgetter(1)):
            counts = [count for count, _ in runs]
            # Rows of `ready` that the writer made fix the visibility times.
            shape = given if keyspace.READY in part.spaces else self._visible(given)
            event = self._event(queue, shape)
            end = first + sum(counts)
            if shape.flags & records.TOGETHER:
                self._add_segments(segments.of(queue.number, shape), event, jobs, first, counts)
                first = end
            while first < end:
                until = min(end, first + EVENTS_A_ROW - self._filled)
                grouped = shape.flags & records.HAS_GROUP
                at = keyspace.ready_from(queue.number, shape.priority, shape.visible_at_ms, grouped)
                keys = _split(jobs.packed(first, until))
                ready += [at + key[4:] for key in keys]
                if grouped:
                    group_ready += self._of_groups(queue.number, shape, keys, names)
                references = self._add_events(event, jobs.ids[16 * first : 16 * until])
                yield from zip(keys, _alike_states(shape, references), strict=True)
                first = until
                if self._filled == EVENTS_A_ROW:
                    self._close_row()
        self._close_row()

    def _add_segments(
        self, add: Callable[[bytes, bytes, int], None], event: bytes, jobs: StagedJobs, first: int, counts: list[int]
    ) -> None:
        """Add a segment for each of `counts`, of so many jobs, the first of them at the index `first`."""
        ids, at = jobs.ids, 16 * first
        for count in counts:
            if self._filled + count > EVENTS_A_ROW:
                self._close_row()
            end = at + 16 * count
            of_segment = ids[at:end]
            add(of_segment[:16], of_segment[-16:], self._add_events(event, of_segment).start)
            at = end

    def _of_groups(self, queue: int, shape: LoadShape, keys: Sequence[bytes], names: Iterator[bytes]) -> list[bytes]:
        """The keys in `group_ready` of jobs of one shape, whose groups are the next of `names`. Counts them."""
        tier, visible, counted = 9 - shape.priority, shape.visible_at_ms, self._groups
        made = []
        for key, name in zip(keys, names, strict=False):  # `names` continues with those of the next shape
            count, first = counted.get((queue, name, tier), (0, visible))
            counted[queue, name, tier] = count + 1, min(first, visible)
            made.append(keyspace.group_ready(queue, groups.group_id(name), tier, visible, key[4:]))
        return made

    def _add_events(self, event: bytes, ids: bytes) -> range:
        """Add the events of the jobs whose joined ids these are to the journal row that is being filled.

        Returns their references.
        """
        first, count = (self._commit << records.REF_BITS) + self._filled, len(ids) // len(NO_ID)
        self._events.append(_AlikeEvents(event, ids))
        self._filled += count
        return range(first, first + count)

    def _event(self, queue: RegisteredQueue, shape: LoadShape) -> bytes:
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
    """The rows of `segment_state` and `segment_ready` of a load's segments."""

    def __init__(self) -> None:
        self.states: list[Row] = []
        self.marks: list[Row] = []

    def of(self, queue: int, shape: LoadShape) -> Callable[[bytes, bytes, int], None]:
        """A function that adds a segment of this shape: its first job, its last job and its first event."""
        state = records.SegmentStateRecord(
            records.V1, _WAITING, shape.priority, 0, shape.max_attempts, 0, shape.visible_at_ms, 0, 0, NO_ID, NO_ID,
            NO_ID,
        )  # fmt: skip
        encode = records.alike_segment_states(state)
        key, ready = keyspace.queue_prefix(queue), keyspace.ready_from(queue, shape.priority, shape.visible_at_ms)
        states, marks = self.states, self.marks

        def add(first: bytes, last: bytes, event: int) -> None:
            states.append((key + last, encode(event, first)))
            marks.append((ready + first, records.encode_segment_mark(last)))

        return add


def _alike_states(shape: LoadShape, references: range) -> list[bytes]:
    """The states of jobs of one shape, whose events are in one journal row: they differ only in their last event."""
    priority, flags, visible, attempts, due_at = shape
    head = records.pack_state(1, _WAITING, priority, 0, flags, 0, attempts, 0, 0, visible, 0, due_at, 0, NO_ID)
    return records.alike_states(head[: records.STATE_ALIKE], NO_ID, references)


def _apart_from_segments(tx: Transaction, jobs: StagedJobs) -> bool:
    """Whether no segment of the store overlaps these jobs. Segments must never overlap."""
    last = jobs.keys[-_KEY.size :]
    for key, raw in tx.scan(keyspace.SEGMENT_STATE, jobs.packed(0, 1), keyspace.LAST, 1):
        return key[:4] != last[:4] or records.decode_segment_state(raw).first_job > last[4:]
    return True


def _without_queue(keys: bytes) -> bytes:
    """The joined ids of joined keys: without the first 4 bytes of each 20."""
    words = array("I", keys)
    del words[::5]
    return words.tobytes()


def _split(packed: bytes) -> list[bytes]:
    return [key for (key,) in _KEY.iter_unpack(packed)]


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
    body = memoryview(raw)[:-4]
    if len(body) < _COUNT.size or crc32(body) != int.from_bytes(raw[-4:], "big"):
        raise Corrupt(f"{path} is damaged: its checksum does not fit its {len(raw)} bytes")
    first = _COUNT.size + _COUNT.unpack_from(body)[0] * records.LOAD_RUN_BYTES
    end = first + _KEY.size * count
    runs = records.decode_load_runs(body[_COUNT.size : first])
    grouped = sum([alike for alike, shape in runs if shape.flags & records.HAS_GROUP])
    names = records.decode_load_groups(bytes(body[end:])) if grouped else []
    if sum([alike for alike, _ in runs]) != count or len(names) != grouped or (len(body) != end and not grouped):
        raise Corrupt(f"{path} is not of {count} jobs")
    keys = bytes(body[first:end])
    return StagedJobs(runs, keys, _without_queue(keys), names)
