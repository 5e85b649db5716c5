"""Unreadable rows do not block others: they are skipped, counted and logged."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tenure
from tenure import Corrupt, InvalidArgument, ManualClock, NewJob, Store
from tenure.storage import keyspace
from tenure.testing.harness import engine_of
from tests.queueing.stored_rows import mended

MANY = 450  # more than two pages of a sweep


def damage(store: Store, space: int, prefix: bytes = b"") -> int:
    """Make every row of a space with this prefix unreadable."""

    def run(tx: Any) -> int:
        rows = tx.scan(space, prefix, prefix + b"\xff" * 20, 10_000)
        for key, value in rows:
            tx.put(space, key, value[:-1] + bytes((value[-1] ^ 1,)))
        return len(rows)

    found: int = engine_of(store).transact(run)
    return found


@pytest.fixture(params=["memory", "rocksdb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else f"rocksdb:{tmp_path / 'data'}"


def test_unreadable_leases_keep_no_other_lease_from_expiring(url: str, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    with tenure.open(url, clock=clock, sweep=False, durability=None if url != "memory:" else "memory") as store:
        bad, good = store.queue("bad"), store.queue("good")
        for _ in range(MANY):
            bad.enqueue(b"x")
            bad.claim(lease=1)
        good.enqueue(b"sound")
        good.claim(lease=2)
        assert damage(store, keyspace.LEASES, keyspace.queue_prefix(1)) == MANY
        clock.advance(10)
        with caplog.at_level(logging.WARNING, "tenure"):
            assert store.sweep().leases == 1
        assert [d.payload for d in good.claim()] == [b"sound"]
        assert str(MANY) in caplog.text


def test_unreadable_leases_keep_no_claim_from_its_jobs(url: str) -> None:
    clock = ManualClock()
    with tenure.open(url, clock=clock, sweep=False, durability=None if url != "memory:" else "memory") as store:
        bad, good = store.queue("bad"), store.queue("good")
        for _ in range(MANY):
            bad.enqueue(b"x")
            bad.claim(lease=1)
        good.enqueue(b"sound")
        good.claim(lease=2)
        damage(store, keyspace.LEASES, keyspace.queue_prefix(1))
        clock.advance(10)
        assert [d.payload for d in good.claim()] == [b"sound"]


#: Rows that are read because a job of the expired lease dies: its queue's counters, what its child waits for.
BESIDE = {
    "the counter": (keyspace.COUNTERS, keyspace.counter(1, keyspace.Counter.LEASED)),
    "what the child waits for": (keyspace.BLOCKED, b""),
}


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("swept", [False, True])
def test_damage_beside_an_expired_lease_stops_no_other_queue(url: str, beside: str, swept: bool) -> None:
    """Each claim takes over the expired leases of all queues; what their jobs' end needs is read at the end."""
    clock = ManualClock()
    with tenure.open(url, clock=clock, sweep=False, durability=None if url != "memory:" else "memory") as store:
        bad, good = store.queue("bad"), store.queue("good")
        bad.enqueue_many([NewJob(b"parent", name="p", max_attempts=1), NewJob(b"child", after=["#p"])])
        assert bad.claim(lease=1)
        good.enqueue_many([b"leased", b"ready"])
        assert good.claim(lease=2)
        assert damage(store, *BESIDE[beside]) == 1
        clock.advance(10)
        if swept:
            assert store.sweep().leases == 1
        else:
            assert {d.payload for d in store.claim_any(2)} == {b"leased", b"ready"}
            store.queue("good").enqueue(b"later")
        assert good.claim()
        assert mended(store)
        store.sweep()
        assert bad.counts().dead == 1


@pytest.mark.parametrize("swept", [False, True])
def test_damage_beside_a_job_past_its_ttl_stops_no_other_queue(url: str, swept: bool) -> None:
    clock = ManualClock()
    with tenure.open(url, clock=clock, sweep=False, durability=None if url != "memory:" else "memory") as store:
        bad, good = store.queue("bad"), store.queue("good")
        bad.enqueue_many([NewJob(b"parent", name="p", ttl=1), NewJob(b"child", after=["#p"], on_parent_dead="run")])
        good.enqueue(b"late", ttl=2)
        good.enqueue(b"ready")
        assert damage(store, keyspace.BLOCKED) == 1
        clock.advance(10)
        if swept:
            assert store.sweep().ttl_passed == 1
        assert [d.payload for d in store.claim_any(2)] == [b"ready"]
        assert not store.claim_any()  # it takes the place of `good` away
        with pytest.raises(Corrupt):
            store.claim_any()
        assert mended(store)
        assert not store.claim_any()  # what the child wants of a dead parent is lost: it is cancelled
        assert bad.counts().enqueued == bad.counts().removed == 2


def test_a_damaged_queue_row_hides_no_other_queue(tmp_path: Path) -> None:
    clock = ManualClock()
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", clock=clock, sweep=False) as store:
        for name in ("a-damaged", "b-sound"):
            store.queue(name).enqueue(b"x")
            store.queue(name).claim(lease=1)
        assert damage(store, keyspace.QUEUES, keyspace.queue_row("default", "a-damaged")) == 1
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", clock=clock, sweep=False) as store:
        clock.advance(10)
        assert store.sweep().leases == 1
        assert store.queue("b-sound").counts().ready == 1


def test_unreadable_jobs_keep_no_other_from_its_ttl(url: str) -> None:
    clock = ManualClock()
    with tenure.open(url, clock=clock, sweep=False, durability=None if url != "memory:" else "memory") as store:
        for n in range(MANY):
            store.queue("bad").enqueue(b"%d" % n, ttl=1)
        store.queue("good").enqueue(b"sound", ttl=2)
        assert damage(store, keyspace.STATE, keyspace.queue_prefix(1)) == MANY
        clock.advance(10)
        assert store.sweep().ttl_passed == 1
        assert store.queue("good").counts().waiting == 0


@pytest.mark.parametrize("change", [{"id": "0" * 32}, {"attempt": 2**32 - 1}, {"token": 2**63 - 1}])
def test_restored_jobs_are_checked(change: dict[str, Any]) -> None:
    with tenure.open("memory:", durability="memory") as store:
        queue = store.queue("work")
        job = queue.get(queue.enqueue(b"x").id)
        assert job is not None
        with pytest.raises(InvalidArgument):
            store.queue("other").restore([msgspec.structs.replace(job, **change)])
        assert store.check().ok
