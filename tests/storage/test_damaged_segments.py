"""Segments whose rows do not fit each other: every reader reports them, and a write to one of their jobs succeeds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import NewJob, Store
from tenure.errors import Corrupt
from tenure.storage import keyspace
from tenure.storage.keyspace import JOBS, LAST, READY, SEGMENTS, STATE
from tenure.storage.records.segments import NewSegment, Segment
from tenure.testing.conformance.world import assert_sound
from tenure.testing.harness import engine_of


@pytest.fixture(params=["memory", "rocksdb"])
def store(request: Any, tmp_path: Path) -> Iterator[Store]:
    where = "memory:" if request.param == "memory" else f"rocksdb:{tmp_path / 'data'}"
    with tenure.open(where, sweep=False, durability=None if request.param == "memory" else "os") as opened:
        yield opened


def filled(store: Store, *groups: str | None) -> list[str]:
    """A segment of 50 jobs for each group. Returns the jobs' ids."""
    queue = store.queue("work")
    return [e.id for group in groups for e in queue.enqueue_many([NewJob(b"x" * 10, group=group)] * 50)]


def inner(store: Store) -> Any:
    return engine_of(store).inner


def bodies(store: Store) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = inner(store).read(lambda reader: reader.scan(SEGMENTS, b"", LAST, 100))
    return found


def forget(store: Store) -> None:
    """Drop the caches, as reopening does."""
    for each in inner(store).forgetters:
        each()


def swap_bodies(store: Store) -> None:
    (one, body), (other, second) = bodies(store)
    inner(store).transact(lambda tx: tx.put_many(SEGMENTS, [(one, second), (other, body)]))
    forget(store)


def damage(store: Store, index: int) -> None:
    key = bodies(store)[index][0]
    inner(store).transact(lambda tx: tx.put(SEGMENTS, key, b"\1" + b"nonsense" * 4))
    forget(store)


@pytest.mark.parametrize("groups", [(None, None), ("a", "b")], ids=["other jobs", "another group"])
def test_a_segment_with_the_jobs_of_another_is_reported(store: Store, groups: tuple[str | None, ...]) -> None:
    ids = filled(store, *groups)
    swap_bodies(store)
    for read in (
        lambda: store.queue("work").get(ids[3]),
        lambda: engine_of(store).read(lambda reader: reader.scan(STATE, b"", LAST, 200)),
    ):
        with pytest.raises(Corrupt):
            read()
    assert not store.check().ok
    assert store.check(repair=True).findings
    assert_sound(store)


def test_the_group_in_a_segments_state_is_that_of_its_jobs(store: Store) -> None:
    ids = filled(store, "a")
    key, body = bodies(store)[0]
    stored = Segment(body)
    other = NewSegment(stored.created_at_ms, list(stored.jobs), [b"x" * 10] * 50, b"b")
    inner(store).transact(lambda tx: tx.put(SEGMENTS, key, other.encode()))
    forget(store)
    with pytest.raises(Corrupt, match="group of a segment's jobs"):
        store.queue("work").get(ids[3])
    store.check(repair=True)
    assert_sound(store)


def test_a_walk_that_meets_a_damaged_segment_does_not_end_early(store: Store) -> None:
    filled(store, None, None)
    damage(store, 1)
    with engine_of(store).snapshot((JOBS, STATE, SEGMENTS, keyspace.SEGMENT_STATE)) as moment:
        walk = moment.walk(STATE, b"", LAST)
        with pytest.raises(Corrupt):
            walk.take(1000)
    store.check(repair=True)
    assert_sound(store)


def test_a_write_to_a_job_of_a_damaged_segment_breaks_it_up(store: Store) -> None:
    ids = filled(store, None, None)
    damage(store, 0)
    number = store.queues()[0].number
    at = keyspace.of_queue(number, bytes.fromhex(ids[3]))
    engine_of(store).transact(lambda tx: tx.delete(STATE, at))
    assert len(bodies(store)) == 1  # the damaged segment is gone, for `check` to make its jobs again from the journal
    store.check(repair=True)
    assert_sound(store)
    assert store.queue("work").get(ids[60]) is not None


def test_a_job_of_a_segment_is_found_by_its_own_index_row_only(store: Store) -> None:
    ids = filled(store, None)
    number, job = store.queues()[0].number, bytes.fromhex(ids[3])
    (key,) = engine_of(store).read(
        lambda reader: [key for key in reader.keys(READY, b"", LAST, 100) if key.endswith(job)]
    )
    visible = keyspace.split_ready(key).visible_at_ms
    get = [
        keyspace.ready(number, 0, visible, job),
        keyspace.ready(number, 0, visible + 1, job),
        keyspace.ready(number, 5, visible, job),
    ]
    assert engine_of(store).read(lambda reader: [reader.get(READY, each) for each in get]) == [b"", None, None]
    store.queue("work").claim(50)
    assert engine_of(store).read(lambda reader: reader.get(READY, key)) is None
    assert_sound(store)


def test_ranges_of_rows_that_segments_stand_for_are_not_deleted_blindly(store: Store) -> None:
    filled(store, None)
    with pytest.raises(ValueError, match="segment"):
        engine_of(store).transact(lambda tx: tx.delete_range(STATE, b"", LAST))
    with pytest.raises(ValueError, match="journal"):
        engine_of(store).transact(lambda tx: tx.append(STATE, b"row"))
    assert_sound(store)
