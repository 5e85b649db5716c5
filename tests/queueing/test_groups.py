"""Groups: faults of their rows that `check` finds and repairs, and the cost of their places."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure import GroupPolicy, ManualClock, NewJob, Policy
from tenure.storage import keyspace, records
from tenure.storage.engine import Transaction
from tests.queueing.stored_rows import mended, rows, write


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "rocksdb", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[tenure.Store]:
    url = "memory:" if request.param == "memory" else f"{request.param}:{tmp_path}"
    with tenure.open(url, sweep=False, clock=clock) as opened:
        yield opened


def filled(store: tenure.Store) -> tenure.Queue:
    queue = store.queue("q")
    queue.enqueue_many([NewJob(b"%d" % n, group=f"g{n % 3}", priority=n % 2) for n in range(12)])
    return queue


@pytest.mark.parametrize("space", [keyspace.GROUPS, keyspace.GROUP_READY])
def test_rows_that_are_lost_are_made_again(store: tenure.Store, space: int) -> None:
    queue = filled(store)
    queue.claim(2, lease=3600)
    before = rows(store, space)
    write(store, lambda tx: tx.delete_many(space, [key for key, _ in before]))
    assert mended(store) <= {"groups", "index"}
    assert rows(store, space) == before
    assert len(queue.claim(100)) == 10


def test_groups_that_lost_their_turns_get_them_back(store: tenure.Store) -> None:
    queue = filled(store)
    turns = [key for key, _ in rows(store, keyspace.TURNS) if keyspace.split_group_turns(key[1:9]) is not None]
    assert len(turns) == 6  # three groups of two priorities: a row of the order each; their places are in `groups`
    write(store, lambda tx: tx.delete_many(keyspace.TURNS, turns))
    assert mended(store) == {"groups"}
    assert len(queue.claim(100)) == 12


def test_a_turn_at_another_time_than_its_place_says_is_mended(store: tenure.Store) -> None:
    queue = filled(store)
    row = next(key for key, _ in rows(store, keyspace.TURNS) if keyspace.split_group_turns(key[1:9]) is not None)
    virtual_time, group = keyspace.split_turn(row)

    def spoil(tx: Transaction) -> None:
        tx.delete(keyspace.TURNS, row)
        tx.put(keyspace.TURNS, keyspace.turn(row[1:9], virtual_time + 7, group), b"")

    write(store, spoil)
    assert mended(store) == {"groups", "index"}
    assert len(queue.claim(100)) == 12


def test_a_group_that_has_no_waiting_job_has_no_turn(store: tenure.Store) -> None:
    queue = store.queue("q")
    ids = [added.id for added in queue.enqueue_many([NewJob(b"x", group="g"), NewJob(b"y", group="g", priority=5)])]
    held = queue.claim()
    assert queue.cancel(next(job for job in ids if job != held[0].id))
    assert not [key for key, _ in rows(store, keyspace.TURNS) if keyspace.split_group_turns(key[1:9]) is not None]
    queue.nack(held[0], delay=0)
    assert queue.claim()[0].id == held[0].id


def test_stray_rows_are_removed(store: tenure.Store) -> None:
    queue = filled(store)
    (number,) = {keyspace.queue_of(key) for key, _ in rows(store, keyspace.GROUPS)}
    stray = keyspace.group_ready(number, b"\7" * 16, 9, 1, b"\1" * 16)
    order = keyspace.turn(keyspace.group_turns(number, 3), 7, b"\7" * 16)
    parked = keyspace.turn(keyspace.parked_groups(number), 7, b"\3" + b"\7" * 16)
    idle = records.encode_group(records.GroupRecord(0, 5, 0, 0, b"nobody"))

    def spoil(tx: Transaction) -> None:
        tx.put(keyspace.GROUP_READY, stray, b"")
        tx.put(keyspace.TURNS, order, b"")
        tx.put(keyspace.TURNS, parked, b"")
        tx.put(keyspace.GROUPS, keyspace.of_queue(number, b"\7" * 16), idle)

    write(store, spoil)
    assert mended(store) == {"groups", "index"}
    assert len(rows(store, keyspace.GROUPS)) == 3
    assert len(queue.claim(100)) == 12


def test_a_damaged_row_of_a_group_is_made_again(store: tenure.Store) -> None:
    queue = filled(store)
    key, value = rows(store, keyspace.GROUPS)[0]
    write(store, lambda tx: tx.put(keyspace.GROUPS, key, value[:5] + bytes((value[5] ^ 1,)) + value[6:]))
    assert mended(store) == {"damaged"}
    assert len(queue.claim(100)) == 12


def test_a_lost_state_is_made_again_with_its_group(store: tenure.Store) -> None:
    queue = store.queue("q")
    job = queue.enqueue(b"x", group="g").id
    (at,) = [key for key, _ in rows(store, keyspace.STATE)]
    write(store, lambda tx: tx.delete(keyspace.STATE, at))
    mended(store)
    found = queue.get(job)
    assert found is not None
    assert found.group == "g"
    assert [group.waiting for group in queue.groups()] == [1]
    assert queue.claim()[0].id == job


def test_no_rows_are_left_of_groups_without_jobs(store: tenure.Store) -> None:
    queue = filled(store)
    queue.enqueue_many([b"without"] * 3)
    queue.ack_many(queue.claim(100))
    assert not queue.claim()
    assert rows(store, keyspace.GROUPS) == []
    assert rows(store, keyspace.GROUP_READY) == []
    assert [key for key, _ in rows(store, keyspace.TURNS) if keyspace.split_group_turns(key[1:9]) is not None] == []


def test_a_group_at_its_limit_has_no_turn(store: tenure.Store) -> None:
    queue = store.queue("q")
    queue.configure(Policy(group=GroupPolicy(max_leased=1)))
    queue.enqueue_many([NewJob(b"x", group=f"g{n}") for n in range(5) for _ in range(2)])
    held = queue.claim(100, lease=3600)
    assert len(held) == 5

    def turns() -> int:
        return sum(keyspace.split_group_turns(key[1:9]) is not None for key, _ in rows(store, keyspace.TURNS))

    assert turns() == 0, "claims must not read groups at their limit"
    queue.ack(held[0])
    assert turns() == 1, "its row in the order"


def test_a_group_at_its_limit_with_a_later_job_has_one_turn_after_the_limit_is_lifted(
    store: tenure.Store, clock: ManualClock
) -> None:
    queue = store.queue("q")
    queue.configure(Policy(group=GroupPolicy(max_leased=1)))
    queue.enqueue_many([NewJob(b"1", group="g"), NewJob(b"2", group="g")])
    assert len(queue.claim(lease=3600)) == 1
    assert not queue.claim()
    queue.configure(Policy())  # the next claim gives the group its turn back
    queue.enqueue_many([NewJob(b"later", group="g", delay=60)])
    assert [delivery.payload for delivery in queue.claim(lease=3600)] == [b"2"]
    assert store.check().clean
    clock.advance(61)
    assert [delivery.payload for delivery in queue.claim()] == [b"later"]


def damage_group(store: tenure.Store) -> None:
    key, raw = rows(store, keyspace.GROUPS)[0]
    write(store, lambda tx: tx.put(keyspace.GROUPS, key, raw[:5] + bytes((raw[5] ^ 1,)) + raw[6:]))


def test_a_damaged_row_of_a_group_does_not_stop_the_other_queues(store: tenure.Store, clock: ManualClock) -> None:
    """Whoever claims takes over all leases that have run out, also that of a job of the group."""
    queue, other = filled(store), store.queue("other")
    other.enqueue_many([b"x", b"y"])
    leased = [*queue.claim(12, lease=5)]
    assert other.claim(1, lease=5)
    damage_group(store)
    queue.release(leased[0])
    clock.advance(10)
    store.sweep()
    assert len(other.claim(2)) == 2
    assert mended(store) == {"damaged"}
    assert len(queue.claim(100)) == 12


def test_a_damaged_row_of_a_group_does_not_stop_the_other_groups(store: tenure.Store, clock: ManualClock) -> None:
    queue = store.queue("q")
    queue.configure(Policy(group=GroupPolicy(max_leased=1)))
    queue.enqueue_many([NewJob(b"x", group=f"g{n % 3}", delay=n // 3 * 10) for n in range(6)])
    assert len(queue.claim(6, lease=3600)) == 3
    damage_group(store)
    queue.configure(Policy())
    clock.advance(11)  # its parked turn comes, too
    assert len(queue.claim(6, lease=3600)) == 2
    assert not queue.claim()
    assert mended(store) == {"damaged"}
    assert len(queue.claim(6)) == 1


def test_more_groups_come_back_at_once_than_one_transaction_takes(store: tenure.Store, clock: ManualClock) -> None:
    queue = store.queue("q")
    queue.enqueue_many([NewJob(b"x", group=f"g{n}", delay=5) for n in range(450)])
    clock.advance(5)
    assert len(queue.claim(1000)) == 450


def test_groups_that_were_emptied_otherwise_are_passed_in_steps(store: tenure.Store) -> None:
    """Cancelled jobs leave their groups' places: a claim removes more of them than one transaction may."""
    queue = store.queue("q")
    made = queue.enqueue_many([NewJob(b"x", group=f"g{n}") for n in range(1200)])
    for job in made[:-1]:
        queue.cancel(job.id)
    assert [delivery.id for delivery in queue.claim(5)] == [made[-1].id]


def test_a_claim_and_an_ack_leave_nothing_to_the_garbage_collector(store: tenure.Store) -> None:
    """Reference cycles in verbs once made the collector run every few claims."""
    queue = store.queue("q")
    queue.configure(Policy(group=GroupPolicy(max_leased=1)))
    queue.enqueue_many([NewJob(b"x", group=f"g{n}") for n in range(40)])
    queue.ack(queue.claim()[0])
    gc.collect()
    gc.disable()
    try:
        for _ in range(30):
            queue.ack(queue.claim()[0])
        assert gc.collect() < 30
    finally:
        gc.enable()
