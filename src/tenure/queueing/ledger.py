"""One transaction's books: its time, its events, its counters, and whom to wake once it has committed.

Nothing here is written before `finish`, and a transaction never reads what it wrote: verbs read first, decide, and
hand everything to the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tenure.model.ids import NO_ID
from tenure.model.lifecycle import Change, State
from tenure.model.names import QueueName
from tenure.model.retry import Policy
from tenure.queueing.registry import NEXT_QUEUE, Registered, registered
from tenure.storage import keyspace, records
from tenure.storage.engine import Transaction
from tenure.storage.records import EVENTS_A_ROW, NO_TEXT, StateRecord

if TYPE_CHECKING:
    from tenure.queueing.core import Core

_pack_queue_event = msgspec.msgpack.Encoder().encode
#: Wakes every waiter of a queue, so that each plans anew.
ALL = 1 << 30


class Tail(NamedTuple):
    """Where the journal ends."""

    commit: int
    next_number: int
    time_ms: int


class Ledger:
    __slots__ = (
        "_core", "_events", "_first", "_meters", "_number", "_rows", "_texts", "_texts_bytes",
        "ended", "now", "queues", "tx", "woken",
    )  # fmt: skip

    def __init__(self, tx: Transaction, core: Core, now_ms: int) -> None:
        self.tx, self._core = tx, core
        self._first = first = tx.next_append(keyspace.JOURNAL)
        tail = core.tail
        # What this process wrote last is the end of the journal only if no run of it was thrown away, as on an engine with
        # one writer.
        if tail.commit != first - 1 or not core.only_writer:
            tail = self._read_tail()
        self._number = tail.next_number
        #: The transaction's time: never before one that was stored.
        self.now = now_ms if now_ms > tail.time_ms else tail.time_ms
        self._events: list[bytes] = []
        self._rows: list[tuple[list[bytes], bytes]] = []
        self._texts: list[bytes] = []
        self._texts_bytes = 0
        #: What to wake for: jobs that became waiting, by queue, and jobs that ended.
        self.woken: dict[QueueName, int] = {}
        self.ended: list[bytes] = []
        self.queues: list[Registered] = []
        self._meters: dict[int, int] = {}

    def _read_tail(self) -> Tail:
        raw = self.tx.get(keyspace.JOURNAL, keyspace.commit(self._first - 1)) if self._first > 1 else None
        if raw is None:
            return Tail(self._first - 1, 1, 0)
        header = records.decode_journal_header(raw)
        return Tail(self._first - 1, header.first_number + header.events, header.time_ms)

    # ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def next_ref(self) -> int:
        """Where the next event will stand."""
        return (self._first + len(self._rows)) << records.REF_BITS | len(self._events)

    @property
    def next_number(self) -> int:
        """What the next event is counted as, if none has been added yet."""
        return self._number

    def room(self, wanted: int, text: str = "") -> Iterable[tuple[int, int, int, bytes]]:
        """Places for `wanted` events with one text: (from, to, first ref, text reference) for each journal row."""
        if not self._events and 0 < wanted <= EVENTS_A_ROW:
            return ((0, wanted, self.next_ref, self._text(text) if text else NO_TEXT),)
        return self._room(wanted, text)

    def fits(self, wanted: int) -> bool:
        """Whether so many events will stand side by side, in one row of the journal."""
        return wanted <= EVENTS_A_ROW - len(self._events)

    def _room(self, wanted: int, text: str) -> Iterator[tuple[int, int, int, bytes]]:
        done = 0
        while done < wanted:
            if len(self._events) >= EVENTS_A_ROW:
                self._close_row()
            take = min(wanted - done, EVENTS_A_ROW - len(self._events))
            yield done, done + take, self.next_ref, self._text(text) if text else NO_TEXT
            done += take

    def put_events(self, events: Sequence[bytes]) -> None:
        """Whole events, built by the caller for the places `room` gave."""
        self._events.extend(events)

    def events(
        self,
        heads: Sequence[bytes],
        priorities: Sequence[int],
        jobs: Sequence[bytes],
        leases: Sequence[bytes],
        tokens: Sequence[int],
        attempts: Sequence[int],
        max_attempts: Sequence[int],
        at_ms: int,
        previous: Sequence[int],
        text: str = "",
    ) -> list[int]:
        """Add one event for each of many jobs, given column by column, `heads` by priority; returns their refs."""
        refs: list[int] = []
        for begin, end, ref, said in self.room(len(jobs), text):
            part = slice(begin, end)
            refs += range(ref, ref + end - begin)
            self._events += map(
                records.pack_event, map(heads.__getitem__, priorities[part]), jobs[part], leases[part], tokens[part],
                attempts[part], max_attempts[part], repeat(at_ms), previous[part], repeat(said),
            )  # fmt: skip
        return refs

    def event(
        self,
        change: Change,
        queue: int,
        job: bytes = NO_ID,
        after: StateRecord | None = None,
        *,
        state: int = State.GONE,
        lease: bytes = NO_ID,
        at_ms: int = 0,
        previous: int = 0,
        text: str | bytes = "",
    ) -> int:
        """Add one event, described by the state it leads to; returns its ref. The state's own `last_event` is ignored."""
        if len(self._events) >= EVENTS_A_ROW:
            self._close_row()
        ref = self.next_ref
        if after is None:
            head = records.pack_event_head(change, state, 0, 0, queue)
            middle = records.pack_event_middle(0, 0, 0, at_ms, previous)
        else:
            head = records.pack_event_head(change, state or after.state, after.priority, after.reason, queue)
            middle = records.pack_event_middle(after.token, after.attempt, after.max_attempts, at_ms, previous)
        self._events.append(head + job + lease + middle + (self._text(text) if text else NO_TEXT))
        return ref

    def _text(self, text: str | bytes) -> bytes:
        raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
        at = self._texts_bytes
        self._texts.append(raw)
        self._texts_bytes += len(raw)
        return records.pack_event_text(at, len(raw))

    def _close_row(self) -> None:
        self._rows.append((self._events, b"".join(self._texts)))
        self._events, self._texts, self._texts_bytes = [], [], 0

    # ── counters and wake-ups ────────────────────────────────────────────────────────────────────────────────────────

    def count(self, queue: int, counter: int, delta: int) -> None:
        if delta:
            self.tx.add(keyspace.counter(queue, counter), delta)

    def in_use(self, queue: int, priorities: Iterable[int]) -> None:
        """Ready rows of these priorities are being written: claims have to look there from now on."""
        self._core.tiers.add(queue, priorities)

    def ready(self, queue: Registered, priority: int, visible_at_ms: int) -> None:
        """A ready row is being written: have claims look there, and wake whoever can take the job or must plan for it."""
        self.in_use(queue.number, (priority,))
        name = queue.name
        if visible_at_ms > self.now:
            self.woken[name] = ALL
        else:
            self.woken[name] = self.woken.get(name, 0) + 1

    def freed(self, queue: Registered, count: int) -> None:
        """Jobs are no longer held: who waits because too many were, may go on."""
        if queue.limited:
            self.woken[queue.name] = self.woken.get(queue.name, 0) + count

    def meter_of(self, queue: int) -> int:
        """The meter of a queue known by its number; 0 if it has none."""
        meter = self._meters.get(queue)
        if meter is None:
            found = self._core.registry.by_number(self.tx, queue)
            meter = self._meters[queue] = 0 if found is None else found.meter
        return meter

    # ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def queue(self, name: QueueName) -> Registered:
        """The queue of that name, made if it is not there."""
        found = self._core.registry.find(self.tx, name)
        return found if found is not None else self.make_queues([name])[0]

    def make_queues(self, names: Sequence[QueueName]) -> list[Registered]:
        raw = self.tx.get(keyspace.META, NEXT_QUEUE)
        number = 1 if raw is None else records.decode_struct(records.NumberRecord, raw, "the queue counter").value
        made = []
        for name in names:
            raw = self.tx.get(keyspace.META, keyspace.quota_row(name.tenant))
            meter = 0 if raw is None else records.decode_struct(records.QuotaRecord, raw, "a quota").number
            made.append(self.save_queue(records.QueueRecord(number, *name, Policy(), meter=meter)))
            self.event(Change.QUEUE_CREATED, number, text=_pack_queue_event((name.tenant, name.queue)))
            number += 1
        self.tx.put(keyspace.META, NEXT_QUEUE, records.encode_struct(records.NumberRecord(number)))
        return made

    def save_queue(self, record: records.QueueRecord) -> Registered:
        raw = records.encode_struct(record)
        self.tx.put(keyspace.QUEUES, keyspace.queue_row(record.tenant, record.queue), raw)
        found = registered(raw)
        self.queues.append(found)
        return found

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def finish(self) -> None:
        """Write the events. Called once, by `Core.write`."""
        if self._rows:
            self._finish_rows()
        elif self._events:
            number = self._number
            tail = b"".join(self._texts) if self._texts else b""
            row = records.encode_journal(number, self.now, self._events, tail)
            self._core.tail = Tail(self.tx.append(keyspace.JOURNAL, row), number + len(self._events), self.now)

    def _finish_rows(self) -> None:
        if self._events:
            self._close_row()
        number, commit = self._number, self._first - 1
        for events, tail in self._rows:
            commit = self.tx.append(keyspace.JOURNAL, records.encode_journal(number, self.now, events, tail))
            number += len(events)
        self._core.tail = Tail(commit, number, self.now)
