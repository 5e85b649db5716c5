"""One transaction of a verb: its time, its events, its counters, and whom to wake once it has committed.

A verb reads first, decides, and then hands what it writes to the transaction (`tx`) and to this. Nothing is written
before the function has returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tenure.model.ids import NO_ID
from tenure.model.lifecycle import Change, State
from tenure.model.names import QueueName
from tenure.model.retry import Policy
from tenure.queueing.edges import Edges
from tenure.queueing.groups import GroupChanges
from tenure.queueing.queue_turns import NEVER, Offer
from tenure.queueing.registry import NEXT_QUEUE, RegisteredQueue, registered
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, Transaction
from tenure.storage.records import EVENTS_A_ROW, NO_TEXT, REF_BITS, StateRecord

if TYPE_CHECKING:
    from tenure.queueing.core import Core

_pack_alike = records.pack_alike_event
_pack_queue_event = msgspec.msgpack.Encoder().encode
#: Of a queue whose priorities are not known, none is new.
ALL_PRIORITIES = frozenset(range(10))
#: Wakes every waiter of a queue, so that each plans anew.
ALL = 1 << 30


JournalEnd = tuple[int, int, int]
"""Where the journal ends: the numbers of its next commit and its next event, the time of the last row."""


class ParentEnd(NamedTuple):
    """A job that others wait for has ended, or is being removed."""

    queue: int
    job: bytes
    #: DONE or DEAD; GONE: it was removed before it was done. None: it was done before.
    outcome: State | None
    #: It is not kept: nothing of it may stay.
    gone: bool


class FlowWork:
    """What a transaction has to do for jobs that wait for jobs, once its plan has run (`flows.end_parents`)."""

    __slots__ = ("done", "edges", "ends", "links")

    def __init__(self, reader: Reader) -> None:
        self.edges = Edges(reader)
        #: Jobs with children that are done and not kept, as `keyspace.of_queue` writes them.
        self.done: list[bytes] = []
        #: Others with children that ended.
        self.ends: list[ParentEnd] = []
        #: Rows of `children` of jobs that this transaction itself settles: written if they are kept.
        self.links: list[bytes] = []


class UnitOfWork(msgspec.Struct, eq=False):
    """Made by `begin_unit`."""

    tx: Transaction
    core: Core
    #: What the next event is counted as, if none has been added yet.
    next_number: int
    #: The transaction's time: never before one that was stored.
    now: int
    #: Of the journal row that is being filled: the reference of its first event, and its events. `begin_events` makes
    #: room for those that a verb appends itself.
    _first_ref: int
    events: list[bytes] = []
    #: Whom to wake: how many waiters, by queue, and those who wait for a job that ended.
    woken: dict[QueueName, int] = {}
    ended: list[bytes] = []
    # What few transactions have is made when it is needed.
    #: Texts of the events in the journal row that is being filled, and their bytes.
    _texts: list[bytes] | None = None
    _texts_bytes: int = 0
    _meters: dict[int, int] | None = None
    _made: dict[QueueName, RegisteredQueue] | None = None
    _rows: dict[tuple[int, bytes], bytes | None] | None = None
    _groups: GroupChanges | None = None
    #: Queues that get a turn by this transaction, by number.
    offers: dict[int, Offer] | None = None
    flow_work: FlowWork | None = None

    # ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def room_for_events(self) -> int:
        """How many events the row that is being filled still takes; of a full one, how many the next will."""
        return EVENTS_A_ROW - len(self.events) or EVENTS_A_ROW

    def begin_events(self, count: int) -> int:
        """Make room for `count` events side by side (at most `EVENTS_A_ROW`); returns the first one's reference."""
        if len(self.events) + count > EVENTS_A_ROW:
            self._close_row()
        return self._first_ref + len(self.events)

    def add_event(self, event: bytes) -> int:
        """Add a whole event; returns its reference."""
        events = self.events
        if len(events) >= EVENTS_A_ROW:
            self._close_row()
            events = self.events
        ref = self._first_ref + len(events)
        events.append(event)
        return ref

    def add_events_alike(
        self, head: bytes, jobs: Sequence[bytes], middle: bytes, previous: Iterable[int], text: bytes = NO_TEXT
    ) -> None:
        """Add an event for each job, in the room that `begin_events` made: they differ in the job and the event before."""
        self.events += map(_pack_alike, repeat(head), jobs, repeat(middle), previous, repeat(text))

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
        """Add one event, described by the state it leads to; returns its reference. That state's `last_event` is ignored."""
        if len(self.events) >= EVENTS_A_ROW:
            self._close_row()
        if after is None:
            head = records.pack_event_head(change, state, 0, 0, queue)
            middle = records.pack_event_middle(0, 0, 0, at_ms, previous)
        else:
            head = records.pack_event_head(change, state or after.state, after.priority, after.reason, queue)
            middle = records.pack_event_middle(after.token, after.attempt, after.max_attempts, at_ms, previous)
        return self.add_event(head + job + lease + middle + (self.text(text) if text else NO_TEXT))

    def text(self, text: str | bytes) -> bytes:
        """Keep a text for the events of the row that is being filled; returns what refers to it."""
        raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
        at = self._texts_bytes
        if self._texts is None:
            self._texts = []
        self._texts.append(raw)
        self._texts_bytes += len(raw)
        return records.pack_event_text(at, len(raw))

    def _close_row(self) -> None:
        """Write the row that is being filled; the next event begins another."""
        self.tx.journal.append(records.encode_journal(self.next_number, self.now, self.events, self._tail()))
        self.next_number += len(self.events)
        self._first_ref = (self.tx.next_commit + len(self.tx.journal)) << REF_BITS
        self.events, self._texts, self._texts_bytes = [], None, 0

    def _tail(self) -> bytes:
        return b"".join(self._texts) if self._texts else b""

    # ── counters and wake-ups ────────────────────────────────────────────────────────────────────────────────────────

    def count(self, queue: int, counter: int, delta: int) -> None:
        if delta:
            self.tx.add(keyspace.counter(queue, counter), delta)

    def in_use(self, queue: int, priority: int) -> None:
        """Ready rows of this priority are being written: claims have to look there from now on."""
        known = self.core.priorities
        if priority not in known.used.get(queue, ALL_PRIORITIES):
            known.add(queue, priority)

    def ready(
        self, queue: RegisteredQueue, priority: int, first_ms: int, last_ms: int | None = None, count: int = 1
    ) -> None:
        """Ready rows of this priority are being written, of so many jobs, visible from `first_ms` to `last_ms` on.

        Claims look there, and waiters take the jobs or plan for them.
        """
        core, number, name, woken = self.core, queue.number, queue.name, self.woken
        priorities, turns = core.priorities, core.turns
        if priority not in priorities.used.get(number, ALL_PRIORITIES):
            priorities.add(number, priority)
        if turns.quiet or turns.offered.get(number, NEVER) > first_ms:
            self.has_work(queue, first_ms)
        if (last_ms or first_ms) > self.now:
            woken[name] = ALL
        else:
            woken[name] = woken.get(name, 0) + count if woken else count

    def has_work(self, queue: RegisteredQueue, visible_at_ms: int) -> None:
        """The queue has a job from this moment on: claims from any queue look there, in its turn."""
        known = self.core.turns
        if known.quiet:
            known.is_quiet_no_more(queue.name)
        if known.offered.get(queue.number, NEVER) > visible_at_ms:
            self.offer(Offer(queue, visible_at_ms))

    def offer(self, offer: Offer) -> None:
        """Give a queue its turn when this transaction is written."""
        if self.offers is None:
            self.offers = {}
        number = offer.queue.number
        before = self.offers.get(number)
        self.offers[number] = offer if before is None else before.besides(offer)

    def lifted(self, queue: RegisteredQueue) -> None:
        """The queue is no longer paused, or has room again."""
        if self.core.turns.may_be_blocked(queue.number):
            self.offer(Offer(queue, self.now, lifted=True, has_work=False))

    def freed(self, queue: RegisteredQueue, count: int) -> None:
        """Jobs are no longer held: claims that waited for that may go on."""
        if queue.limited:
            self.woken[queue.name] = self.woken.get(queue.name, 0) + count
            self.lifted(queue)

    def parent_ended(self, queue: int, job: bytes, outcome: State | None, *, gone: bool) -> None:
        """A job whose state has HAS_CHILDREN has ended, or is removed."""
        self.flows().ends.append(ParentEnd(queue, job, outcome, gone))

    def flows(self) -> FlowWork:
        if self.flow_work is None:
            self.flow_work = FlowWork(self.tx)
        return self.flow_work

    def numbered(self, queue: int) -> RegisteredQueue | None:
        """The queue of that number; None if it is deleted."""
        found = self.core.registry.by_number(self.tx, queue)
        return None if found is None or found.deleted else found

    def meter_of(self, queue: int) -> int:
        """The meter of a queue known by its number; 0 if it has none."""
        if self._meters is None:
            self._meters = {}
        meter = self._meters.get(queue)
        if meter is None:
            found = self.core.registry.by_number(self.tx, queue)
            meter = self._meters[queue] = 0 if found is None else found.meter
        return meter

    @property
    def groups(self) -> GroupChanges:
        """What happens to groups."""
        if self._groups is None:
            self._groups = GroupChanges(self)
        return self._groups

    # ── rows that a call may change more than once ───────────────────────────────────────────────────────────────────

    def row(self, space: int, key: bytes) -> bytes | None:
        """A row as this transaction leaves it so far: the transaction itself never reads what it wrote."""
        if self._rows is None:
            self._rows = {}
        if (space, key) not in self._rows:
            self._rows[space, key] = self.tx.get(space, key)
        return self._rows[space, key]

    def put_row(self, space: int, key: bytes, value: bytes) -> None:
        """Write a row that `row` may be asked for again."""
        if self._rows is None:
            self._rows = {}
        self._rows[space, key] = value
        self.tx.put(space, key, value)

    def counted(self, key: bytes) -> int:
        """A row of `counters`, with what this transaction adds to it so far."""
        return records.decode_count(self.row(keyspace.COUNTERS, key)) + self.tx.adds.get(key, 0)

    # ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def queue(self, name: QueueName) -> RegisteredQueue:
        """The queue of that name, made if it is not there."""
        return self.known_queue(name) or self.make_queues([name])[0]

    def known_queue(self, name: QueueName) -> RegisteredQueue | None:
        """The queue of that name, if it was there or this transaction made it."""
        found = self.core.registry.find(self.tx, name)
        return self._made.get(name) if found is None and self._made is not None else found

    def make_queues(self, names: Sequence[QueueName]) -> list[RegisteredQueue]:
        if self._made is None:
            self._made = {}
        raw = self.row(keyspace.META, NEXT_QUEUE)
        number = 1 if raw is None else records.decode_struct(records.NumberRecord, raw, "the queue counter").value
        made = []
        for name in names:
            before = self.core.registry.read(self.tx, name)
            raw = self.tx.get(keyspace.META, keyspace.quota_row(name.tenant))
            meter = 0 if raw is None else records.decode_struct(records.QuotaRecord, raw, "a quota").number
            given = number if before is None else before.number
            made.append(self.save_queue(records.QueueRecord(given, *name, Policy(), meter=meter)))
            self._made[name] = made[-1]
            self.event(Change.QUEUE_CREATED, given, text=_pack_queue_event((name.tenant, name.queue)))
            number += before is None
        self.put_row(keyspace.META, NEXT_QUEUE, records.encode_struct(records.NumberRecord(number)))
        return made

    def save_queue(self, record: records.QueueRecord) -> RegisteredQueue:
        raw = records.encode_struct(record)
        self.tx.put(keyspace.QUEUES, keyspace.queue_row(record.tenant, record.queue), raw)
        found = registered(raw)
        # Once it is written, so that two changes of one queue are learnt in their order.
        self.tx.when_written(lambda: self.core.registry.learn(found))
        return found

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def finish(self) -> None:
        """Write the journal, and the turns that queues get. Called once, by `Core.write`."""
        if self._groups is not None:
            self._groups.finish()
            self._groups = None  # it refers to this unit: left so, both would wait for the garbage collector
        if self.offers is not None:
            self.core.turns.offer(self, self.offers)
        events, tx, number = self.events, self.tx, self.next_number
        journal = tx.journal
        if events:
            tail = b"" if self._texts is None else self._tail()
            journal.append(records.encode_journal(number, self.now, events, tail))
        elif not journal:
            return
        # Not trusted before the journal itself has this end (`begin_unit`): the commit may yet be interrupted.
        self.core.journal_end = tx.next_commit + len(journal), number + len(events), self.now


def begin_unit(tx: Transaction, core: Core, now_ms: int) -> UnitOfWork:
    """The unit of work of a transaction that begins. A function, since msgspec makes the object faster than `__init__`."""
    first = tx.next_commit
    following, number, time_ms = core.journal_end
    # What this process wrote last is the end of the journal only where it alone writes, and no commit was interrupted.
    if following != first or not core.only_writer:
        number, time_ms = _read_journal_end(tx, first)
    return UnitOfWork(tx, core, number, now_ms if now_ms > time_ms else time_ms, first << REF_BITS)


def _read_journal_end(tx: Transaction, first: int) -> tuple[int, int]:
    """The number of the next event, and the time of the last row, before the row with this number."""
    raw = tx.get(keyspace.JOURNAL, keyspace.commit(first - 1)) if first > 1 else None
    if raw is None:
        return 1, 0
    header = records.decode_journal_header(raw)
    return header.first_number + header.events, header.time_ms
