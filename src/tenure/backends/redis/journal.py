"""The journal: each shard has its own, dense and in order; a cursor holds the position in each of them."""

from __future__ import annotations

import heapq
from typing import Any

import msgspec

from tenure.backends.redis.constants import PLACE_BITS
from tenure.backends.redis.core import Core
from tenure.backends.redis.records import Row, decode_row, decode_state, encode_msgpack, row_time
from tenure.backends.redis.shards import Shard
from tenure.errors import Corrupt, InvalidArgument, JournalTrimmed
from tenure.model.event import MAX_TIMELINE, MAX_TIMELINE_TEXT, Event, EventPage
from tenure.model.event_view import EventPosition, public_event
from tenure.model.ids import NO_ID, created_ms
from tenure.model.lifecycle import State
from tenure.model.names import QueueName
from tenure.queueing.core import JOURNAL_LINE

_ROWS = 200
#: The most rows of each shard that `newest` reads.
_NEWEST_ROWS = 2_000
_VERSION = 1
Place = tuple[int, int]
"""The commit to read next, and how many of its events were read."""

_decode_cursor = msgspec.msgpack.Decoder(tuple[int, dict[int, tuple[int, int]]]).decode


# ── cursors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def cursor(core: Core, places: dict[int, Place]) -> str:
    return core.cursor_seal().seal(encode_msgpack((_VERSION, places)))


def split_cursor(core: Core, text: str) -> dict[int, Place]:
    """Return the positions in a cursor. Raises InvalidArgument if this store did not make it."""
    raw = core.cursor_seal().open(text)
    if raw is None:
        raw = core.cursor_seal(anew=True).open(text)  # a failover may have restored another key
    if raw is None:
        raise InvalidArgument(
            f"{text!r} is not a cursor of this journal (those of releases before cursors were sealed are not taken: "
            "begin again from the oldest event kept, after=None)"
        )
    version, places = _decode_cursor(raw)
    if version != _VERSION:
        raise InvalidArgument(f"{text!r} is a cursor of another release: begin again from the oldest event kept")
    return places


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def events(core: Core, after: str | None, limit: int, wait_ms: int, consumer: str | None) -> EventPage:
    start = None if after is None else split_cursor(core, after)
    page = _page(core, start, limit, consumer)
    if page.events or not wait_ms:
        return page
    deadline = core.clock.steady_ms() + wait_ms
    notifications = core.notifications
    waiter = notifications.waiters.join((JOURNAL_LINE,))
    try:
        while True:
            waiter.signal.clear()
            subscribe_to_all(core)
            page = _page(core, start, limit, consumer)
            left = deadline - core.clock.steady_ms()
            if page.events or left <= 0:
                return page
            notifications.wait(waiter, left)
            core.commands.ensure_open()
    finally:
        notifications.waiters.leave(waiter)


def subscribe_to_all(core: Core) -> None:
    """Subscribe to every shard's channel, and to the registry's, which announces new queues."""
    core.notifications.subscribe(core.shards.registry, JOURNAL_LINE)
    for shard in core.shards.shards():
        core.notifications.subscribe(shard.base, shard.name)


def _page(core: Core, start: dict[int, Place] | None, limit: int, consumer: str | None) -> EventPage:
    """Return the next events of all shards, merged by time; those of one shard stay in order."""
    places = dict(start or {})
    streams = []
    for shard in core.shards.shards():
        place = places.get(shard.number, (0 if start is None else 1, 0))
        try:
            rows, place = _rows(core, shard, place, min(limit, _ROWS), consumer)
        except _Trimmed as trimmed:
            raise JournalTrimmed(cursor(core, _oldest(core, places, trimmed))) from None
        places[shard.number] = place
        streams.append(_merged(shard, rows, place))
    found: list[Event] = []
    for _, number, event, next_place in heapq.merge(*streams, key=lambda item: item[:2]):
        found.append(event)
        places[number] = next_place
        if len(found) >= limit:
            break
    return EventPage(found, cursor(core, places))


def newest(core: Core, limit: int) -> EventPage:
    """Return the last events of all shards, merged by time, oldest first."""
    places: dict[int, Place] = {}
    streams = []
    for shard in core.shards.shards():
        key = shard.base + b":journal"
        entries = core.commands.plain(key, "XREVRANGE", key, "+", "-", "COUNT", min(limit, _NEWEST_ROWS))
        rows = [decode_row(int(entry[0].split(b"-")[0]), _value(entry[1])) for entry in reversed(entries)]
        places[shard.number] = (rows[-1].commit + 1, 0) if rows else (1, 0)
        streams.append(_merged(shard, rows, (0, 0)))
    found = [event for _, _, event, _ in heapq.merge(*streams, key=lambda item: item[:2])]
    return EventPage(found[-limit:], cursor(core, places))


class _Trimmed(Exception):
    def __init__(self, shard: int, first: int) -> None:
        self.shard, self.first = shard, first


def _oldest(core: Core, places: dict[int, Place], trimmed: _Trimmed) -> dict[int, Place]:
    """Return a cursor to continue from: the oldest event of every shard that was trimmed past its position."""
    oldest = dict(places)
    for shard in core.shards.shards():
        first = int(core.commands.call(shard.base, "events", 0, 1, b"")[0])
        if oldest.get(shard.number, (1, 0))[0] < first:
            oldest[shard.number] = (first, 0)
    return oldest


def _rows(core: Core, shard: Shard, place: Place, count: int, consumer: str | None) -> tuple[list[Row], Place]:
    first, last, commit, *entries = core.commands.call(shard.base, "events", place[0], count, consumer or b"")
    if place[0] and commit < first:
        raise _Trimmed(shard.number, first)
    if place[0] > last + 1:
        raise InvalidArgument("that cursor is past the journal's end: it belongs to another store")
    rows = []
    for wanted, (number, value) in enumerate(zip(entries[::2], entries[1::2], strict=True), commit):
        if number != wanted:
            raise Corrupt(f"journal row {wanted} of {shard.name} is missing")
        rows.append(decode_row(number, value))
    if not rows and commit <= last:
        raise Corrupt(f"journal row {commit} of {shard.name} is missing")
    return rows, (commit, place[1])


def _merged(shard: Shard, rows: list[Row], place: Place) -> list[tuple[int, int, Event, Place]]:
    skip = place[1]
    found = []
    for row in rows:
        for index in range(skip, len(row.events)):
            whole = index + 1 == len(row.events)
            after = (row.commit + 1, 0) if whole else (row.commit, index + 1)
            found.append((row.time_ms, shard.number, shown(row, index, shard.name), after))
        skip = 0
    return found


def shown(row: Row, index: int, name: QueueName) -> Event:
    """Convert a stored event for users."""
    event = row.events[index]
    position = EventPosition(row.commit, index, row.first_number + index, row.time_ms)
    return public_event(event, position, name, event.text)


def forget_consumer(core: Core, consumer: str) -> bool:
    forgotten = [core.call_once(shard.base, "forget_consumer", consumer)[0] for shard in core.shards.shards()]
    return any(forgotten)


# ── one job's events ─────────────────────────────────────────────────────────────────────────────────────────────────


def timeline(core: Core, name: QueueName, job: bytes) -> list[Event]:
    """Return a job's newest events, oldest first, by links back from the last one; a removed job's is searched for."""
    queue = core.shards.find(name)
    if queue is None or job == NO_ID:
        return []
    shard = queue.shard_of(job)
    raw = core.commands.call(shard.base, "fetch", job)[1]
    last = decode_state(raw, job).last_event if raw else _last_event_of(core, shard, job)
    found: list[Event] = []
    size = 0
    while last and len(found) < MAX_TIMELINE and size < MAX_TIMELINE_TEXT:
        commit, index = divmod(last, 1 << PLACE_BITS)
        row = read_row(core, shard, commit)
        if row is None:
            break  # earlier events were trimmed
        if index >= len(row.events):
            raise Corrupt(f"journal row {commit} of {name} has no event {index}")
        found.append(shown(row, index, name))
        size += len(found[-1].text or "")
        last = row.events[index].previous
    return found[::-1]


def _entries(core: Core, shard: Shard, begin: str, end: str, count: int) -> list[tuple[int, bytes]]:
    key = shard.base + b":journal"
    rows: list[Any] = core.commands.plain(key, "XRANGE", key, begin, end, "COUNT", count)
    return [(int(entry[0].split(b"-")[0]), _value(entry[1])) for entry in rows]


def _value(fields: Any) -> bytes:
    value = fields[b"e"] if isinstance(fields, dict) else fields[1]
    assert isinstance(value, bytes)
    return value


def read_row(core: Core, shard: Shard, commit: int) -> Row | None:
    found = _entries(core, shard, f"{commit}-0", f"{commit}-0", 1)
    return decode_row(*found[0]) if found else None


def bounds(core: Core, shard: Shard) -> tuple[int, int]:
    first, last, *_ = core.commands.call(shard.base, "events", 0, 1, b"")
    return first, last


def rows_from(core: Core, shard: Shard, commit: int) -> Any:
    while True:
        found = _entries(core, shard, f"{commit}-0", "+", 500)
        for number, value in found:
            yield decode_row(number, value)
            commit = number + 1
        if not found:
            return


def _last_event_of(core: Core, shard: Shard, job: bytes) -> int:
    """Return the event that ended a removed job, searched from the time in its id; 0 if there is none."""
    low, end = bounds(core, shard)
    high = end + 1
    while low < high:
        middle = (low + high) // 2
        found = _entries(core, shard, f"{middle}-0", f"{middle}-0", 1)
        if found and row_time(found[0][1]) < created_ms(job):
            low = middle + 1
        else:
            high = middle
    # If many ids were made within a millisecond, their times may be slightly ahead of the journal's.
    for row in rows_from(core, shard, max(low - 1, 1)):
        for index, event in enumerate(row.events):
            if event.job == job and event.state == State.GONE:
                return int(row.commit << PLACE_BITS | index)
    return 0
