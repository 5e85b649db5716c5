"""The journal of events, in order. It is kept for a week, or as long as a setting says."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Iterator
from struct import Struct
from struct import error as StructError
from typing import TypeVar

from tenure.errors import Corrupt, InvalidArgument, JournalTrimmed
from tenure.model.event import MAX_TIMELINE, MAX_TIMELINE_TEXT, Event, EventPage
from tenure.model.event_view import EventPosition, public_event
from tenure.model.ids import NO_ID
from tenure.model.lifecycle import State
from tenure.model.names import QueueName
from tenure.model.snapshot import JournalSlice
from tenure.queueing.core import JOURNAL_KEPT_MS, JOURNAL_LINE, Core
from tenure.queueing.outcomes import YES_OR_NO
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader
from tenure.storage.records import EventRecord, JournalRow

T = TypeVar("T")
KEPT_MS = JOURNAL_KEPT_MS
_CONSUMER = b"consumer/"
_STORE = b"store"
_CURSOR = Struct(">BQH")  # version, commit, events of it that were read
#: Rows one trim may delete: an engine without range deletes walks over each.
_TRIM = 10_000
#: Rows that `newest` reads at a time, going back from the end.
_NEWEST_ROWS = 20


# ── cursors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def cursor(commit: int, index: int) -> str:
    """A position in the journal: the rows before `commit`, and `index` events of that row, have been read."""
    return base64.urlsafe_b64encode(_CURSOR.pack(1, commit, index)).decode().rstrip("=")


def split_cursor(text: str) -> tuple[int, int]:
    try:
        version, commit, index = _CURSOR.unpack(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, StructError) as exc:
        raise InvalidArgument(f"{text!r} is not a cursor of this journal") from exc
    if version != 1:
        raise InvalidArgument(f"{text!r} is not a cursor of this journal")
    return commit, index


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def events(core: Core, after: str | None, limit: int, wait_ms: int, consumer: str | None) -> EventPage:
    start = None if after is None else split_cursor(after)
    if consumer is not None:
        _register(core, consumer, start)
    page = _read(core, lambda reader: _page(core, reader, start, limit))
    if page.events or not wait_ms:
        return page
    deadline = core.time.now_ms() + wait_ms
    waiter = core.waiters.join((JOURNAL_LINE,))
    try:
        while True:
            waiter.signal.clear()
            page = _read(core, lambda reader: _page(core, reader, start, limit))
            left = deadline - core.time.now_ms()
            if page.events or left <= 0:
                return page
            core.clock.wait(waiter.signal, left / 1000, core.engine.traits.poll)
    finally:
        core.waiters.leave(waiter)


def _read(core: Core, fn: Callable[[Reader], T]) -> T:
    """Read durable events only. Sync first, since claims do not wait for it: a caller then finds its claim's events."""
    if core.engine.group_commit is not None and core.engine.durable() is not None:
        core.engine.group_commit.sync_now()
    return core.read(fn)


def _page(core: Core, reader: Reader, start: tuple[int, int] | None, limit: int) -> EventPage:
    oldest, newest = bounds(reader)
    durable = core.engine.durable()
    if durable is not None:
        newest = min(newest, durable)
    commit, skip = start if start is not None else (oldest, 0)
    if commit < oldest:
        raise JournalTrimmed(cursor(oldest, 0))
    if commit > newest + 1 and commit > bounds(reader)[1] + 1:
        raise InvalidArgument("that cursor is past the journal's end: it belongs to another store")
    found: list[Event] = []
    while commit <= newest and len(found) < limit:
        rows = reader.scan(keyspace.JOURNAL, keyspace.commit(commit), keyspace.commit(newest + 1), 100)
        if not rows:
            raise Corrupt(f"journal row {commit} is missing")
        for key, value in rows:
            if keyspace.split_commit(key) != commit:
                raise Corrupt(f"journal row {commit} is missing")
            row = records.decode_journal(value, commit)
            taken = row.events[skip : skip + limit - len(found)]
            found.extend(_shown(core, reader, row, commit, index, event) for index, event in enumerate(taken, skip))
            skip += len(taken)
            if skip < len(row.events):
                return EventPage(found, cursor(commit, skip))
            commit, skip = commit + 1, 0
            if len(found) >= limit:
                break
    return EventPage(found, cursor(commit, skip))


def newest(core: Core, limit: int) -> EventPage:
    """The last durable events, oldest first, read from the journal's end."""

    def run(reader: Reader) -> EventPage:
        oldest, last = bounds(reader)
        durable = core.engine.durable()
        end = commit = (last if durable is None else min(last, durable)) + 1
        parts: list[list[Event]] = []
        left = limit
        while commit > oldest and left:
            rows = reader.scan(
                keyspace.JOURNAL, keyspace.commit(oldest), keyspace.commit(commit), _NEWEST_ROWS, reverse=True
            )
            if not rows:
                break
            for key, value in rows:
                commit = keyspace.split_commit(key)
                row = records.decode_journal(value, commit)
                first = max(0, len(row.events) - left)
                taken = enumerate(row.events[first:], first)
                parts.append([_shown(core, reader, row, commit, index, event) for index, event in taken])
                left -= len(row.events) - first
                if not left:
                    break
        return EventPage([event for part in reversed(parts) for event in part], cursor(end, 0))

    return _read(core, run)


def slice_of(core: Core, begin: int | None, end: int | None, max_bytes: int) -> JournalSlice:
    """Stored rows, for readers that decode many at once."""
    return _read(core, lambda reader: _slice(core, reader, begin, end, max_bytes))


def _slice(core: Core, reader: Reader, begin: int | None, end: int | None, max_bytes: int) -> JournalSlice:
    oldest, newest = bounds(reader)
    durable = core.engine.durable()
    if durable is not None:
        newest = min(newest, durable)
    first = oldest if begin is None else begin
    if first < oldest:
        raise JournalTrimmed(cursor(oldest, 0))
    stop = newest + 1 if end is None else min(end, newest + 1)
    rows: list[bytes] = []
    at, size = first, 0
    while at < stop and size < max_bytes:
        found = reader.scan(keyspace.JOURNAL, keyspace.commit(at), keyspace.commit(stop), 100)
        if not found:
            raise Corrupt(f"journal row {at} is missing")
        for key, value in found:
            if keyspace.split_commit(key) != at:
                raise Corrupt(f"journal row {at} is missing")
            rows.append(value)
            at, size = at + 1, size + len(value)
            if size >= max_bytes:
                break
    return JournalSlice(first, rows, oldest, newest, store_id(reader))


def name_store(core: Core) -> None:
    """Give the store an id when it is first opened. Its copies share the id; streams tell stores apart by it."""
    if core.read(store_id):
        return
    made = records.encode_struct(records.StoreRecord(uuid.uuid4().hex))

    def run(unit: UnitOfWork) -> None:
        if not store_id(unit.tx):  # another process may have been faster
            unit.tx.put(keyspace.META, _STORE, made)

    core.write(run)


def store_id(reader: Reader) -> str:
    """The store's id; empty if it has none, or it is damaged."""
    raw = reader.get(keyspace.META, _STORE)
    try:
        return "" if raw is None else records.decode_struct(records.StoreRecord, raw, "the store's id").id
    except Corrupt:
        return ""  # `check` reports it; a stream continues without the comparison


def bounds(reader: Reader, *, snapshot: bool = False) -> tuple[int, int]:
    """The first and last stored row; (1, 0) for an empty journal. `snapshot`: add no read conflict with appends."""
    first = reader.keys(keyspace.JOURNAL, b"", keyspace.LAST, 1)
    if not first:
        return 1, 0
    last = reader.keys(keyspace.JOURNAL, b"", keyspace.LAST, 1, reverse=True, snapshot=snapshot)
    return keyspace.split_commit(first[0]), keyspace.split_commit(last[0])


def _shown(core: Core, reader: Reader, row: JournalRow, commit: int, index: int, event: EventRecord) -> Event:
    queue = core.registry.by_number(reader, event.queue)
    name = queue.name if queue is not None else QueueName("", f"#{event.queue}")
    return shown(row, commit, index, event, name)


def shown(row: JournalRow, commit: int, index: int, event: EventRecord, name: QueueName) -> Event:
    """The public form of a stored event."""
    position = EventPosition(commit, index, row.header.first_number + index, row.header.time_ms)
    return public_event(event, position, name, row.text(event))


# ── one job's events ─────────────────────────────────────────────────────────────────────────────────────────────────


def timeline(core: Core, name: QueueName, job: bytes) -> list[Event]:
    """A job's newest events, oldest first: by the links back from its last, which is searched if the job is gone."""

    def run(reader: Reader) -> tuple[int, int] | None:
        queue = core.registry.find(reader, name)
        if queue is None:
            return None
        raw = reader.get(keyspace.STATE, keyspace.of_queue(queue.number, job))
        return queue.number, 0 if raw is None else records.decode_state(raw, job).last_event

    found = core.read(run)
    if found is None or job == NO_ID:
        return []
    # On a snapshot: a search may be long, and must not block writers.
    with core.engine.snapshot((keyspace.JOURNAL,)) as journal:
        last = found[1] or _last_event_of(journal, found[0], job)
        return [] if last is None else _walk(journal, name, last)


def _walk(reader: Reader, name: QueueName, ref: int) -> list[Event]:
    found: list[Event] = []
    size = 0
    oldest, _ = bounds(reader)
    while ref and len(found) < MAX_TIMELINE and size < MAX_TIMELINE_TEXT:
        commit, index = records.split_ref(ref)
        if commit < oldest:
            break  # earlier events were trimmed
        raw = reader.get(keyspace.JOURNAL, keyspace.commit(commit))
        if raw is None:
            raise Corrupt(f"journal row {commit} is missing")
        row = records.decode_journal(raw, commit)
        if index >= len(row.events):
            raise Corrupt(f"journal row {commit} has no event {index}")
        event = row.events[index]
        found.append(shown(row, commit, index, event, name))
        size += event.text_bytes
        ref = event.previous
    return found[::-1]


def _last_event_of(reader: Reader, queue: int, job: bytes) -> int | None:
    """The event that ended a job that is gone, searched from the time in its id."""
    created = int.from_bytes(job[:6], "big")
    oldest, newest = bounds(reader)
    start = first_at(reader, created, oldest, newest)
    for commit, value in _values_from(reader, start, newest):
        if records.row_names_job(value, commit, job):
            for index, event in enumerate(records.decode_journal(value, commit).events):
                if event.job == job and event.queue == queue and event.state == State.GONE:
                    return records.event_ref(commit, index)
    return None


def rows_from(reader: Reader, commit: int, newest: int) -> Iterator[tuple[int, JournalRow]]:
    for number, value in _values_from(reader, commit, newest):
        yield number, records.decode_journal(value, number)


def _values_from(reader: Reader, commit: int, newest: int) -> Iterator[tuple[int, bytes]]:
    while commit <= newest:
        rows = reader.scan(keyspace.JOURNAL, keyspace.commit(commit), keyspace.commit(newest + 1), 100)
        if not rows:
            return
        for key, value in rows:
            number = keyspace.split_commit(key)
            yield number, value
            commit = number + 1


def first_at(reader: Reader, time_ms: int, oldest: int, newest: int) -> int:
    """The first row written at `time_ms` or later, by bisection: times never decrease. newest + 1 if there is none."""
    low, high = oldest, newest + 1
    while low < high:
        middle = (low + high) // 2
        raw = reader.get(keyspace.JOURNAL, keyspace.commit(middle))
        if raw is None:
            raise Corrupt(f"journal row {middle} is missing")
        if records.decode_journal_header(raw).time_ms < time_ms:
            low = middle + 1
        else:
            high = middle
    return low


# ── trimming ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def trim(core: Core) -> tuple[int, bool]:
    """Delete rows past their retention that every consumer has read. Returns how many, and whether there are more."""
    now = core.time.now_ms()
    try:
        cut = core.read(lambda reader: _cut(reader, now - core.journal_kept_ms))
    except Corrupt:
        return 0, False  # nothing is deleted; `check` reports the damage
    if cut is None:
        return 0, False

    def run(unit: UnitOfWork) -> tuple[int, bool]:
        found = _cut(unit.tx, now - core.journal_kept_ms)
        if found is None:
            return 0, False
        first, end = found
        stop = min(end, first + unit.tx.at_most(_TRIM))
        unit.tx.delete_range(keyspace.JOURNAL, keyspace.commit(first), keyspace.commit(stop))
        return stop - first, stop < end

    return core.write(run)


def _cut(reader: Reader, before_ms: int) -> tuple[int, int] | None:
    """The rows [first, end) that may be deleted; None if there are none."""
    first = reader.scan(keyspace.JOURNAL, b"", keyspace.LAST, 1)
    if not first or records.decode_journal_header(first[0][1]).time_ms >= before_ms:
        return None
    oldest, newest = bounds(reader, snapshot=True)
    # The last row is never deleted: the next row's number follows from it.
    end = min(
        first_at(reader, before_ms, oldest, newest), newest, *[c.commit for _, c in consumers(reader)] or [newest]
    )
    return (oldest, end) if end > oldest else None


# ── consumers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def consumers(reader: Reader) -> list[tuple[str, records.ConsumerRecord]]:
    rows = reader.scan(keyspace.META, _CONSUMER, _CONSUMER + b"\xff", 10_000)
    return [
        (key[len(_CONSUMER) :].decode(), records.decode_struct(records.ConsumerRecord, value, "a consumer's row"))
        for key, value in rows
    ]


def _register(core: Core, consumer: str, start: tuple[int, int] | None) -> None:
    """Store a consumer's position: rows from there on are not trimmed. Raises JournalTrimmed."""

    def run(unit: UnitOfWork) -> None:
        oldest, _ = bounds(unit.tx, snapshot=True)
        commit = oldest if start is None else start[0]
        if commit < oldest:
            raise JournalTrimmed(cursor(oldest, 0))
        at = _CONSUMER + consumer.encode()
        raw = unit.tx.get(keyspace.META, at)
        if raw is None or records.decode_struct(records.ConsumerRecord, raw, "a consumer's row").commit != commit:
            unit.tx.put(keyspace.META, at, records.encode_struct(records.ConsumerRecord(commit, unit.now)))

    core.write(run)


def forget_consumer(core: Core, consumer: str) -> bool:
    def run(unit: UnitOfWork) -> bool:
        at = _CONSUMER + consumer.encode()
        if unit.tx.get(keyspace.META, at) is None:
            return False
        unit.tx.delete(keyspace.META, at)
        return True

    return core.write(run, answer=YES_OR_NO)
