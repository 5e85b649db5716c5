"""The journal: every change is one event, in order and without gaps, as long as it is kept."""

from __future__ import annotations

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import InvalidArgument, JournalTrimmed
from tenure.model.event import Event
from tenure.model.lifecycle import Change
from tenure.model.retry import Policy
from tenure.testing.conformance.world import (
    KEEPING,
    PATIENCE,
    World,
    all_events,
    assert_valid_journal,
    begin,
    claimed,
    each_of,
    event_types,
    fill,
    journals,
    kill,
    must_refuse,
    result_when_due,
    still_waiting,
    sweep_all,
    together,
)

DAY = 86_400


def _busy(store: Store, queue: Queue, clock: ManualClock) -> None:
    """Produce most types of events."""
    queue.configure(Policy(max_attempts=2, retention=60))
    fill(queue, 8)
    claim = queue.claim(limit=8, lease=10, worker="w1")
    queue.extend(claim, 20)
    queue.ack(claim[0])
    queue.nack(claim[1], error="again", delay=0)
    queue.fail(claim[2], error="never")
    queue.release(claim[3])
    queue.cancel(claim[4].id)
    queue.progress(claim[5], 0.5)
    clock.advance(21)
    queue.enqueue(b"short", ttl=1, delay=0.5)
    queue.pause()
    queue.resume()
    queue.nack(claimed(queue), error="again", delay=0)
    clock.advance(5)
    sweep_all(store)
    queue.replay()
    queue.purge("ready")
    clock.advance(100)
    sweep_all(store)


def test_every_event_is_one_the_table_knows(world: World, clock: ManualClock) -> None:
    _busy(world.store, world.queue(), clock)
    events = all_events(world.store)
    assert_valid_journal(events, dense=world.store.traits.order == "strict")
    elsewhere = {
        "repaired",
        "restored",
        "queue_deleted",
        "unblocked",
        "signalled",
    }  # tested in the themes damage, restore, store_wide, flows and steps
    missing = {change.name.lower() for change in Change} - {event.type for event in events} - elsewhere
    assert not missing, f"no event of {missing}"


def test_events_are_numbered_without_a_gap_and_in_order(world: World, clock: ManualClock) -> None:
    _busy(world.store, world.queue(), clock)
    fill(world.queue("more"), 1200)
    for events in journals(world.store):
        assert [e.number for e in events] == list(range(1, len(events) + 1))
        places = [(e.commit, e.index) for e in events]
        assert places == sorted(set(places))
        assert [e.time_ms for e in events] == sorted(e.time_ms for e in events)


def test_the_journal_counts_what_the_counters_count(world: World, clock: ManualClock) -> None:
    queue = world.queue()
    _busy(world.store, queue, clock)
    fill(queue, 3)
    queue.claim(limit=2)
    kill(queue, 1)
    types = [e.type for e in all_events(world.store)]
    counts = queue.counts()
    assert counts.enqueued == types.count("enqueued")
    gone = [e for e in all_events(world.store) if e.state == "gone"]
    assert counts.removed == len(gone)


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_pages_of_any_size_have_the_same_events(store: Store, queue: Queue, size: int) -> None:
    for _ in range(3):
        fill(queue, 5)
        queue.ack_many(queue.claim(limit=3))
    whole = all_events(store)
    found: list[Event] = []
    page = store.events(limit=size)
    while page.events:
        assert len(page) <= size
        found += page
        page = store.events(after=page.cursor, limit=size)
    assert found == whole
    assert store.events(after=page.cursor).events == []


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_newest_events_are_the_last_of_all(store: Store, queue: Queue, size: int) -> None:
    assert store.backend.newest_events(size).events == []
    for _ in range(120):
        queue.enqueue(b"one by one")
    fill(queue, 3)
    queue.ack_many(queue.claim(limit=3))
    page = store.backend.newest_events(size)
    assert page.events == all_events(store)[-size:]
    assert store.events(after=page.cursor).events == []
    queue.enqueue(b"later")
    assert [event.type for event in store.events(after=page.cursor)] == ["enqueued"]


def test_a_reader_goes_on_where_it_stopped(store: Store, queue: Queue) -> None:
    cursor = store.events().cursor
    assert store.events(after=cursor).events == []
    made = fill(queue, 3)
    page = store.events(after=cursor)
    assert [e.job_id for e in page if e.type == "enqueued"] == made
    assert store.events(after=page.cursor).events == []
    queue.claim(limit=2)
    assert [e.type for e in store.events(after=page.cursor)] == ["claimed", "claimed"]


def test_a_cursor_is_good_after_reopening(world: World) -> None:
    queue = world.queue()
    fill(queue, 3)
    page = world.store.events(limit=2)
    rest = world.store.events(after=page.cursor).events
    world.reopen()
    assert world.store.events(after=page.cursor).events == rest
    more = world.queue().enqueue(b"x").id
    events = all_events(world.store)
    assert events[-1].job_id == more
    assert [e.number for e in events] == list(range(1, len(events) + 1))


def test_a_reader_may_wait_for_the_next_event(store: Store, queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"x")
    cursor = store.events().cursor
    reader = begin(lambda: store.events(after=cursor, wait=60))
    assert still_waiting(reader)
    job_id = queue.enqueue(b"y").id
    page = reader.result(PATIENCE)
    assert [e.job_id for e in page] == [job_id]
    reader = begin(lambda: store.events(after=page.cursor, wait=60))
    assert still_waiting(reader)
    clock.advance(60)
    assert result_when_due(reader, clock, 60).events == []


def test_a_foreign_event_cursor_is_refused(store: Store, queue: Queue) -> None:
    fill(queue, 2)
    bad = ["nonsense", "", "-1", "1.5", "ü", "1-2-3", 17, b"1"]
    must_refuse(store, InvalidArgument, each_of(store.events, bad))


def test_readers_see_racing_writers_in_one_order(live: World) -> None:
    queue = live.queue(policy=KEEPING)

    def write() -> None:
        for n in range(30):
            queue.enqueue(b"%d" % n)
            for delivery in queue.claim(limit=2):
                queue.ack(delivery)

    def read() -> list[int]:
        numbers: list[int] = []
        cursor = None
        while len(numbers) < 4 * 30 * 3 + 2:  # created, configured, and three events a job
            page = live.store.events(after=cursor, limit=50, wait=PATIENCE)
            assert page.events, f"the journal stopped at {len(numbers)}"
            numbers += [e.number for e in page]
            cursor = page.cursor
        return numbers

    answers = together([write, write, write, write, read, read])
    for numbers in answers[4:]:
        assert numbers == list(range(1, 4 * 30 * 3 + 3))


# ── trimming ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_journal_is_kept_for_seven_days(store: Store, queue: Queue, clock: ManualClock) -> None:
    made = fill(queue, 3)
    clock.advance(6.9 * DAY)
    sweep_all(store)
    assert [e.job_id for e in all_events(store) if e.type == "enqueued"] == made


def test_a_cursor_to_trimmed_events_is_an_error_not_a_gap(store: Store, queue: Queue, clock: ManualClock) -> None:
    for _ in range(10):
        queue.enqueue(b"old")
    early = store.events(limit=3).cursor
    last = store.events().cursor
    clock.advance(7.5 * DAY)
    new = queue.enqueue(b"new").id
    sweep_all(store)
    assert [e.job_id for e in store.events(after=last)] == [new], "a reader that had read all events has missed none"
    with pytest.raises(JournalTrimmed) as trimmed:
        store.events(after=early)
    kept = store.events(after=trimmed.value.oldest)
    assert kept.events == store.events().events, "without a cursor, from the oldest kept"
    assert kept.events[-1].job_id == new
    assert kept.events[0].number > 4
    assert queue.counts().ready == 11


def test_a_timeline_reaches_as_far_back_as_the_journal(store: Store, queue: Queue, clock: ManualClock) -> None:
    job_id = queue.enqueue(b"x").id
    for _ in range(3):
        clock.advance(1)
        queue.enqueue(b"filler", delay=900 * DAY)
    clock.advance(8 * DAY)
    queue.nack(claimed(queue), error="late", delay=0)
    sweep_all(store)
    assert event_types(queue, job_id)[-2:] == ["claimed", "retried"]


def test_nothing_a_registered_reader_has_yet_to_read_is_trimmed(store: Store, queue: Queue, clock: ManualClock) -> None:
    for _ in range(6):
        queue.enqueue(b"old")
    page = store.events(limit=3, consumer="audit")
    read = [e.number for e in page]
    # A consumer registers the position that it has read up to, with its next call.
    store.events(after=page.cursor, limit=1, consumer="audit")
    clock.advance(30 * DAY)
    queue.enqueue(b"new")
    sweep_all(store)
    page = store.events(after=page.cursor, consumer="audit")
    read += [e.number for e in page]
    assert read == list(range(1, 9))
    store.events(after=page.cursor, consumer="audit")
    clock.advance(30 * DAY)
    queue.enqueue(b"newer")
    sweep_all(store)
    assert store.events().events[0].number > 3, "events that it has read are trimmed"


def test_a_forgotten_reader_holds_nothing(store: Store, queue: Queue, clock: ManualClock) -> None:
    for _ in range(6):
        queue.enqueue(b"old")
    page = store.events(limit=2, consumer="audit")
    store.events(after=page.cursor, consumer="audit")
    assert store.forget_consumer("audit")
    assert not store.forget_consumer("audit")
    clock.advance(30 * DAY)
    queue.enqueue(b"new")
    sweep_all(store)
    with pytest.raises(JournalTrimmed):
        store.events(after=page.cursor)


def test_a_store_goes_on_after_its_journal_was_trimmed(world: World, clock: ManualClock) -> None:
    queue = world.queue()
    made = fill(queue, 3)
    clock.advance(30 * DAY)
    sweep_all(world.store)
    if world.harness.persistent:
        world.reopen()
        queue = world.queue()
    last = all_events(world.store)[-1:]
    delivery = claimed(queue)
    assert delivery.id == made[0]
    queue.ack(delivery)
    told = all_events(world.store)
    assert [e.type for e in told[-2:]] == ["claimed", "done"]
    assert told[-1].number == 6
    if last:
        assert last[0].number == 4
