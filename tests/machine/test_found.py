"""Defects that the state machine once found, as short regression tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import KeyConflict, TenureError
from tenure.model.retry import Backoff, Policy
from tests.machine.places import DiskPlace, MemoryPlace, Place

HOUR, DAY = 3600, 86_400


class World:
    """A place, its clock, and the store that is open there."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.clock = ManualClock()
        self.store: Store = place.open(self.clock)

    @property
    def queue(self) -> Queue:
        return self.store.queue("work")

    def reopen(self) -> None:
        self.store = self.place.reopen(self.store, self.clock)

    def dead(self, key: str) -> str:
        """A job of that key, dead."""
        job_id = self.queue.enqueue(b"x", key=key).id
        self.queue.fail(self.queue.claim()[0])
        return job_id


@pytest.fixture(params=["memory", "rocksdb", "lmdb"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    options = {"durability": "os"} if request.param == "rocksdb" else {}
    place: Place = MemoryPlace() if request.param == "memory" else DiskPlace(request.param, tmp_path, **options)
    made = World(place)
    yield made
    try:
        report = made.store.check()
        assert report.clean, report.findings
    finally:
        place.destroy(made.store)


def test_enqueue_order_outlives_a_restart_in_the_same_millisecond(world: World) -> None:
    """A new process's ids of the same millisecond were not ordered after the old ones: some were claimed too early."""
    made = []
    for rebooted in (False, True) * 3:
        made += [e.id for e in world.queue.enqueue_many([b"x"] * 3)]
        if rebooted:
            world.clock.step(-HOUR)
            world.clock.reboot()
        world.reopen()
    assert [d.id for d in world.queue.claim(limit=100)] == made


def test_purge_takes_what_another_process_enqueued_in_the_same_millisecond(world: World) -> None:
    for _ in range(4):
        world.queue.enqueue_many([b"x"] * 4)
        world.reopen()
        assert world.queue.purge("ready") == 4


def test_two_jobs_of_one_key_whose_windows_end_together(world: World) -> None:
    """The sweep read the key's row after it had deleted it."""
    world.queue.configure(Policy(dedup_window=60))
    world.queue.cancel(world.queue.enqueue(b"x", key="k").id)
    world.clock.advance(DAY)
    world.queue.enqueue(b"x", key="k", ttl=1)
    world.clock.advance(DAY)
    swept = world.store.sweep()
    assert (swept.ttl_passed, swept.keys_forgotten) == (1, 1)
    assert not world.queue.enqueue(b"y", key="k").duplicate


@pytest.mark.parametrize("found_by", ["sweep", "claim"])
def test_two_leases_that_knew_the_same_job_end_together(world: World, found_by: str) -> None:
    """The second lease's jobs were read after the first lease's had been written."""
    made = [e.id for e in world.queue.enqueue_many([b"1", b"2"])]
    first = world.queue.claim(limit=2, lease=HOUR)
    world.queue.nack(first[0], delay=0)
    world.queue.claim(lease=30)
    world.clock.advance(HOUR)
    if found_by == "sweep":
        assert world.store.sweep().jobs_back == 2
    again = world.queue.claim(limit=5)
    assert sorted(d.id for d in again) == sorted(made)
    assert {d.id: d.attempt for d in again} == {made[0]: 3, made[1]: 2}


def test_a_claim_is_remembered_for_a_day_after_its_extended_lease_ended(world: World) -> None:
    """It was deleted a day after the lease's original end, although the lease was extended."""
    world.queue.enqueue_many([b"1", b"2"])
    claim = world.queue.claim(lease=30, id="c1")
    world.queue.extend(claim, 47 * HOUR)
    world.clock.advance(46 * HOUR)
    world.store.sweep()
    world.queue.ack(claim[0])
    world.store.sweep()
    world.clock.advance(20 * HOUR)
    world.store.sweep()
    assert not world.queue.claim(lease=30, id="c1"), "a repeated claim took something new"


@pytest.mark.parametrize("swept", [False, True])
def test_a_replayed_job_holds_its_key_again(world: World, swept: bool) -> None:
    """Once this depended on whether a sweep had run."""
    world.queue.configure(Policy(dedup_window=60))
    job_id = world.dead("k")
    world.clock.advance(61)
    if swept:
        world.store.sweep()
    world.queue.replay([job_id])
    again = world.queue.enqueue(b"x", key="k")
    assert (again.id, again.duplicate) == (job_id, True)


@pytest.mark.parametrize("swept", [False, True])
@pytest.mark.parametrize("first", [0, 1])
def test_the_first_replayed_of_two_jobs_takes_their_key(world: World, swept: bool, first: int) -> None:
    world.queue.configure(Policy(dedup_window=60))
    dead = []
    for _ in range(2):
        dead.append(world.dead("k"))
        world.clock.advance(61)
    if swept:
        world.store.sweep()
    order = [dead[first], dead[1 - first]]
    assert world.queue.replay(order).ids == order
    assert world.queue.enqueue(b"x", key="k").id == order[0]
    with pytest.raises(KeyConflict) as conflict:
        world.queue.enqueue(b"y", key="k")
    assert conflict.value.existing == order[0]


def test_a_replayed_job_may_live_without_its_key(world: World) -> None:
    """Another job held the key at the replay, and was removed later: that is valid, but `check` reported it."""
    world.queue.configure(Policy(dedup_window=0))
    job_id = world.dead("k")
    world.queue.configure(Policy(dedup_window=60))
    world.dead("k")
    world.clock.advance(30)
    world.queue.replay([job_id])
    world.clock.advance(30)
    world.store.sweep()
    assert world.store.check().clean


def test_a_job_comes_back_at_a_priority_nobody_has_looked_at(world: World) -> None:
    """Claims scan only priorities in use; a job that was leased before the store was opened may add one."""
    world.queue.configure(Policy(backoff=Backoff.fixed(0)))
    for priority in (9, 7, 5, 3):
        world.queue.enqueue(b"%d" % priority, priority=priority, max_attempts=1 if priority == 3 else 5)
    held = list(world.queue.claim(limit=4, lease=HOUR))
    world.reopen()
    world.queue.enqueue(b"0")
    assert [d.payload for d in world.queue.claim()] == [b"0"]  # now the priorities in use are cached
    world.queue.release(held[0])
    world.queue.nack(held[1])
    world.queue.nack(held[3])
    world.queue.replay()
    assert [d.priority for d in world.queue.claim(limit=9)] == [9, 7, 3]
    world.clock.advance(HOUR)
    assert 5 in [d.priority for d in world.queue.claim(limit=9)]


def test_an_error_that_is_kept_keeps_nothing_open(world: World) -> None:
    """An error's traceback kept the transaction and the database alive: the store could not be opened again."""
    kept: list[TenureError] = []
    world.queue.enqueue(b"x", key="k")
    claim = world.queue.claim()
    world.queue.ack(claim[0])
    for wrong in (lambda: world.queue.enqueue(b"y", key="k"), lambda: world.queue.extend(claim, 30)):
        try:
            wrong()
        except TenureError as error:
            kept.append(error)
    world.reopen()
    assert len(kept) == 2
    assert world.queue.enqueue(b"x", key="k").duplicate
