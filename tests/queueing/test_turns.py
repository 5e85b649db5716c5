"""Turns and lookups by id: faults that `check` finds and repairs, and the fairness of turns."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure import Backoff, Policy
from tenure.storage import keyspace
from tenure.storage.engine import Transaction
from tests.queueing.stored_rows import mended, rows, write

#: Tenants with one job each, beside one with a hundred times as many jobs.
SMALL = int(os.environ.get("FAIR_TENANTS", "200"))


@pytest.fixture(params=["memory", "rocksdb", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tenure.Store]:
    with tenure.open("memory:" if request.param == "memory" else f"{request.param}:{tmp_path}", sweep=False) as opened:
        yield opened


def test_a_queue_that_lost_its_place_gets_it_back(store: tenure.Store):
    store.queue("q", "acme").enqueue(b"x")
    every = [key for key, _ in rows(store, keyspace.TURNS)]
    write(store, lambda tx: tx.delete_many(keyspace.TURNS, every))
    assert mended(store) == {"index"}
    assert store.claim_any().queue.name == ("acme", "q")


def test_a_place_without_its_row_in_the_order_is_made_again(store: tenure.Store):
    store.queue("q", "acme").enqueue(b"x")
    order = [key for key, value in rows(store, keyspace.TURNS) if not value]
    assert len(order) == 2  # of the tenant, and of its queue
    write(store, lambda tx: tx.delete_many(keyspace.TURNS, order))
    assert mended(store) == {"index"}
    assert store.claim_any().queue.name == ("acme", "q")


def test_a_stray_row_in_the_order_is_removed(store: tenure.Store):
    store.queue("q").enqueue(b"x")
    scope = keyspace.queue_turns("default")
    write(store, lambda tx: tx.put(keyspace.TURNS, keyspace.turn(scope, 77, b"\0\0\0\7"), b""))
    assert mended(store) == {"index"}


@pytest.mark.parametrize("verb", ["nack", "release"])
@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_a_queue_that_was_full_when_the_store_was_closed_has_its_turn_again(tmp_path: Path, engine: str, verb: str):
    """The verb makes room and a ready job at once, in a process that has not seen the queue yet."""
    with tenure.open(f"{engine}:{tmp_path}", sweep=False) as store:
        queue = store.queue("q")
        queue.configure(Policy(max_leased=1, backoff=Backoff.fixed(0)))
        queue.enqueue_many([b"x"] * 2)
        (held,) = store.claim_any(lease=600)
        assert not store.claim_any()
    with tenure.open(f"{engine}:{tmp_path}", sweep=False) as store:
        getattr(store.queue("q"), verb)(held.receipt)
        assert len(store.claim_any()) == 1
        assert store.check().clean


def test_a_queue_that_no_limit_keeps_from_its_turn_gets_it_back(store: tenure.Store):
    queue = store.queue("q", "acme")
    queue.configure(Policy(max_leased=1))
    queue.enqueue_many([b"x"] * 2)
    (held,) = store.claim_any()
    assert not store.claim_any()
    full = rows(store, keyspace.TURNS)
    assert store.check().clean
    queue.ack(held)
    now = [key for key, _ in rows(store, keyspace.TURNS)]
    write(store, lambda tx: tx.delete_many(keyspace.TURNS, now))
    write(store, lambda tx: tx.put_many(keyspace.TURNS, full))
    assert mended(store) == {"index"}
    assert store.claim_any().queue.name == ("acme", "q")


def test_a_job_that_its_id_does_not_lead_to_is_found_again(store: tenure.Store):
    home, away = store.queue("home"), store.queue("away")
    job = home.get(home.enqueue(b"x").id)
    assert job is not None
    home.cancel(job.id)
    away.restore([job])
    stray = bytes.fromhex("01" * 16)

    def spoil(tx: Transaction) -> None:
        row = tx.get(keyspace.JOB_QUEUES, bytes.fromhex(job.id))
        assert row is not None
        tx.delete(keyspace.JOB_QUEUES, bytes.fromhex(job.id))
        tx.put(keyspace.JOB_QUEUES, stray, row)

    write(store, spoil)
    assert store.get(job.id) is None
    assert mended(store) == {"index", "orphan"}
    found = store.get(job.id)
    assert found is not None
    assert found.queue == "away"
    assert [key for key, _ in rows(store, keyspace.JOB_QUEUES)] == [bytes.fromhex(job.id)]


def test_small_tenants_are_served_within_twice_their_share(store: tenure.Store):
    """A tenant with very many jobs does not delay tenants with one."""
    store.queue("all", "big").enqueue_many([b"x"] * 100)
    for n in range(SMALL):
        store.queue("one", f"small{n}").enqueue(b"x")
    store.queue("all", "big").enqueue_many([b"x"] * 100 * min(SMALL, 100))
    share = SMALL + 1  # one turn of each tenant
    places = []
    for place in range(1, 2 * share + 1):
        claim = store.claim_any(lease=3600)
        if claim.queue.name.tenant != "big":
            places.append(place / share)
    assert len(places) == SMALL, "every small tenant was served within two shares"
    places.sort()
    told = ", ".join(f"p{p} {places[min(len(places) - 1, len(places) * p // 100)]:.2f}" for p in (50, 90, 99, 100))
    print(f"{SMALL} tenants with one job beside one with {100 * min(SMALL, 100):,}: claimed at {told} of a fair share")
    assert places[-1] <= 2
