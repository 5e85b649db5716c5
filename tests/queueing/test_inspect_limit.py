"""`storage.inspect_limit`: one transaction of a claim skips at most so many rows, and no job is hidden by them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import Corrupt, ManualClock, NewJob, Store
from tenure.storage import keyspace
from tenure.testing.harness import engine_of

LIMIT, MANY = 5, 32


@pytest.fixture(params=["memory:", "rocksdb:", "lmdb:"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TENURE_STORAGE_INSPECT_LIMIT", str(LIMIT))
    scheme: str = request.param
    return scheme if scheme == "memory:" else f"{scheme}{tmp_path / 'data'}"


def events_a_commit(store: Store, kind: str) -> Counter[int]:
    """By commit: the number of its events of this type."""
    return Counter(event.commit for event in store.events(limit=1000) if event.type == kind)


def damage_jobs(store: Store, count: int) -> None:
    def run(tx: Any) -> None:
        for key, value in tx.scan(keyspace.STATE, b"", keyspace.LAST, count):
            tx.put(keyspace.STATE, key, value[:-1] + bytes((value[-1] ^ 1,)))

    engine_of(store).transact(run)


def test_a_claim_takes_over_no_more_leases_than_that(url: str) -> None:
    clock = ManualClock()
    with tenure.open(url, clock=clock, sweep=False) as store:
        queue = store.queue("q")
        for _ in range(MANY):
            queue.enqueue(b"x")
            queue.claim(lease=1)
        clock.advance(10)
        assert len(queue.claim()) == 1
        assert queue.counts().leased == MANY - LIMIT + 1
        assert set(events_a_commit(store, "expired").values()) == {LIMIT}


def test_expired_leases_of_other_queues_hide_no_job(url: str) -> None:
    clock = ManualClock()
    with tenure.open(url, clock=clock, sweep=False) as store:
        other, queue = store.queue("other"), store.queue("q")
        for _ in range(MANY):
            other.enqueue(b"x")
            other.claim(lease=1)
        queue.enqueue(b"mine")
        queue.claim(lease=2)
        clock.advance(10)
        assert [each.payload for each in queue.claim()] == [b"mine"]
        assert max(events_a_commit(store, "expired").values()) == LIMIT


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_jobs_past_their_ttl_are_cleared_step_by_step(url: str, limit: int) -> None:
    clock = ManualClock()
    with tenure.open(url, clock=clock, sweep=False) as store:
        queue = store.queue("q")
        for _ in range(MANY):
            queue.enqueue(b"x", ttl=1, priority=5)
        queue.enqueue_many([NewJob(b"good"), NewJob(b"better", priority=9)])
        clock.advance(10)
        found = [each.payload for each in queue.claim(limit=limit)]
        found += [each.payload for each in queue.claim(limit=limit)]
        assert sorted(found) == [b"better", b"good"]
        assert max(events_a_commit(store, "ttl_passed").values()) <= LIMIT


def test_damaged_jobs_are_passed_step_by_step(url: str) -> None:
    with tenure.open(url, clock=ManualClock(), sweep=False) as store:
        queue = store.queue("q")
        for _ in range(MANY):
            queue.enqueue(b"x", priority=5)
        damage_jobs(store, MANY)
        with pytest.raises(Corrupt):
            queue.claim()
        queue.enqueue(b"good")
        assert [each.payload for each in queue.claim(limit=3)] == [b"good"]
