"""Readers of the journal report a missing row, a trimmed position and a foreign cursor; none skips events silently."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tenure
from tenure import ManualClock, Store
from tenure.errors import Corrupt, InvalidArgument, JournalTrimmed
from tenure.queueing import journal
from tenure.storage import keyspace, records
from tenure.testing.harness import backend_of, engine_of
from tests.queueing.stored_rows import rows, write

WEEK = 8 * 86_400


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Iterator[Store]:
    """Ten jobs, each enqueued in a commit of its own; the last commit of the journal is theirs."""
    with tenure.open("memory:", clock=clock, sweep=False) as opened:
        for number in range(10):
            opened.queue("work").enqueue(b"%d" % number)
        yield opened


def core_of(store: Store) -> Any:
    return backend_of(store)._core  # type: ignore[attr-defined]  # it is embedded


def commits(store: Store) -> list[int]:
    return [keyspace.split_commit(key) for key, _ in rows(store, keyspace.JOURNAL)]


def lose(store: Store, *numbers: int) -> None:
    write(store, lambda tx: tx.delete_many(keyspace.JOURNAL, [keyspace.commit(number) for number in numbers]))


def cut_stream(store: Store) -> object:
    return backend_of(store).journal_slice(None, None, 1 << 20)


READERS: dict[str, Callable[[Store], object]] = {
    "a page of events": lambda store: store.events(limit=1000),
    "rows for a stream": cut_stream,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_missing_row_is_reported_not_skipped(store: Store, reader: str) -> None:
    lost = commits(store)[4]
    lose(store, lost)
    with pytest.raises(Corrupt, match=f"journal row {lost} is missing"):
        READERS[reader](store)
    assert "journal" in {finding.rule for finding in store.check().findings}


@pytest.mark.parametrize("reader", READERS)
def test_missing_rows_before_the_durable_end_are_reported(
    store: Store, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row that is known durable is lost, and a later one is there: as if a disk had dropped a table."""
    numbers = commits(store)
    monkeypatch.setattr(engine_of(store), "durable", lambda: numbers[-2])
    lose(store, *numbers[1:-1])
    with pytest.raises(Corrupt, match=f"journal row {numbers[1]} is missing"):
        READERS[reader](store)


def test_a_slice_ends_at_its_bytes_and_continues_there(store: Store) -> None:
    backend, numbers = backend_of(store), commits(store)
    stored = [value for _, value in rows(store, keyspace.JOURNAL)]
    found: list[bytes] = []
    begin = numbers[0]
    while begin <= numbers[-1]:
        part = backend.journal_slice(begin, None, len(stored[0]) + 1)
        assert 1 <= len(part.rows) <= 2
        found += part.rows
        begin += len(part.rows)
    assert found == stored
    assert backend.journal_slice(begin, None, 1 << 20).rows == []
    assert backend.journal_slice(numbers[2], numbers[4], 1 << 20).rows == stored[2:4]


def test_a_slice_of_more_rows_than_one_scan_is_whole(store: Store) -> None:
    for _ in range(250):
        store.queue("work").enqueue(b"x")
    assert len(backend_of(store).journal_slice(None, None, 1 << 24).rows) == len(commits(store)) > 250


def test_positions_that_were_trimmed_are_refused(store: Store, clock: ManualClock) -> None:
    first = store.events(limit=1).cursor
    clock.advance(WEEK)
    assert store.sweep().events_trimmed > 5
    with pytest.raises(JournalTrimmed) as told:
        store.events(after=first)
    with pytest.raises(JournalTrimmed):
        store.events(after=first, consumer="late")  # a consumer is not registered at rows that are gone
    with pytest.raises(JournalTrimmed):
        backend_of(store).journal_slice(1, None, 1000)
    assert not store.forget_consumer("late")
    assert store.events(after=told.value.oldest).events == store.events().events


@pytest.mark.parametrize("forged", [journal._CURSOR.pack(2, 1, 0), b"", b"\1" * 12])
def test_a_foreign_cursor_is_refused(store: Store, forged: bytes) -> None:
    with pytest.raises(InvalidArgument, match="not a cursor"):
        store.events(after=base64.urlsafe_b64encode(forged).decode())


def test_a_cursor_past_the_end_is_refused(store: Store) -> None:
    end = commits(store)[-1] + 1
    assert store.events(after=journal.cursor(end, 0)).events == []
    with pytest.raises(InvalidArgument, match="past the journal's end"):
        store.events(after=journal.cursor(end + 1, 0))


def test_a_trim_that_meets_a_gap_deletes_nothing(store: Store, clock: ManualClock) -> None:
    numbers = commits(store)
    lose(store, *numbers[1:-1])
    clock.advance(WEEK)
    assert store.sweep().events_trimmed == 0
    assert commits(store) == [numbers[0], numbers[-1]]


# ── one job's events ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_timeline_with_a_lost_event_is_reported(store: Store) -> None:
    queue = store.queue("work")
    delivery = queue.claim(3)[2]
    first = queue.timeline(delivery.id)[0]
    lose(store, first.commit)
    with pytest.raises(Corrupt, match=f"journal row {first.commit} is missing"):
        queue.timeline(delivery.id)


def test_a_timeline_whose_row_has_too_few_events_is_reported(store: Store) -> None:
    queue = store.queue("work")
    (delivery,) = queue.claim()
    job = bytes.fromhex(delivery.id)
    at = keyspace.of_queue(store.queues()[0].number, job)

    def plant(tx: Any) -> None:
        state = records.decode_state(tx.get(keyspace.STATE, at), job)
        tx.put(keyspace.STATE, at, records.encode_state(state._replace(last_event=state.last_event + 5)))

    write(store, plant)
    with pytest.raises(Corrupt, match="has no event"):
        queue.timeline(delivery.id)


def test_the_timeline_of_a_removed_job_needs_the_row_of_its_time(store: Store) -> None:
    queue = store.queue("work")
    (delivery,) = queue.claim()
    queue.ack(delivery)
    assert [event.type for event in queue.timeline(delivery.id)] == ["enqueued", "claimed", "done"]
    numbers = commits(store)
    lose(store, *numbers[1:-1])
    with pytest.raises(Corrupt, match="is missing"):
        queue.timeline(delivery.id)


def test_a_store_whose_id_is_damaged_has_no_id_and_still_gives_its_rows(store: Store) -> None:
    assert backend_of(store).journal_slice(None, None, 1 << 20).store
    (key,) = [key for key, _ in rows(store, keyspace.META) if key == b"store"]
    write(store, lambda tx: tx.put(keyspace.META, key, b"\1nonsense"))
    part = backend_of(store).journal_slice(None, None, 1 << 20)
    assert part.rows
    assert part.store == ""
