"""Claims at `disk` wait until their jobs are durable, but not for their own sync; no token is given twice."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.model.tokens import first_token, next_token


@pytest.fixture
def store(tmp_path: Path):
    with tenure.open(f"rocksdb:{tmp_path / 'q'}", durability="disk", sweep=False, listen=False) as opened:
        yield opened


def syncs(store: tenure.Store) -> int:
    """The number of syncs so far, by callers and in the background."""
    return int(engine(store).group_commit.syncs)


def engine(store: Any) -> Any:
    return store._backend._engine.inner


def quiet(store: tenure.Store) -> None:
    """Stop syncs in the background."""
    engine(store).group_commit.sync_soon = lambda: None


def test_a_claim_does_not_wait_for_its_own_sync(store: tenure.Store) -> None:
    quiet(store)
    queue = store.queue("mail")
    queue.enqueue(b"one")
    queue.enqueue_many([b"many"] * 50)
    before = syncs(store)
    claims = [queue.claim(), queue.claim(limit=50)]
    assert [len(claim) for claim in claims] == [1, 50]
    assert syncs(store) == before
    queue.ack(claims[0][0])
    assert syncs(store) == before + 1, "an ack does"


@pytest.mark.parametrize("jobs", [1, 50])
def test_a_claim_waits_for_jobs_that_are_not_durable(store: tenure.Store, jobs: int) -> None:
    quiet(store)
    queue, backend = store.queue("mail"), store._backend
    queue.enqueue(b"first")
    queue.ack(queue.claim()[0])
    _, commit = engine(store).group_commit.deferring(lambda: queue.enqueue_many([b"x"] * jobs))
    assert commit, "it is written and not synced"
    before = syncs(store)
    assert len(queue.claim(limit=jobs)) == jobs
    assert syncs(store) == before + 1
    assert backend.traits.durability == "disk"


def test_a_claim_that_nobody_waits_for_is_on_disk_soon(store: tenure.Store) -> None:
    queue = store.queue("mail")
    for _ in range(3):  # its thread is started once, and woken each time
        queue.enqueue(b"x")
        queue.claim()
        written = engine(store)._next_commit - 1
        until = time.monotonic() + 60
        while engine(store).durable() < written:
            assert time.monotonic() < until, "never synced"
            time.sleep(0.01)


def test_tokens_grow_from_one_opening_to_the_next(tmp_path: Path) -> None:
    tokens: list[set[int]] = []
    for _ in range(3):
        with tenure.open(f"rocksdb:{tmp_path / 'q'}", durability="os", sweep=False, listen=False) as store:
            queue = store.queue("mail")
            if not tokens:
                queue.enqueue(b"x")
                queue.enqueue_many([b"y"] * 20)
            for claim in (queue.claim(), queue.claim(limit=20)):
                tokens.append({delivery.token for delivery in claim})
                queue.release_many(claim)
            assert store.check(specification=True).clean
    assert tokens == [{1}, {1}, {(1 << 32) + 2}, {(1 << 32) + 2}, {(2 << 32) + 3}, {(2 << 32) + 3}]


def test_a_token_of_a_later_epoch_is_kept() -> None:
    assert next_token(0, first_token(0)) == 1
    assert next_token(7, first_token(2)) == (2 << 32) + 8
    assert next_token((5 << 32) + 7, first_token(2)) == (5 << 32) + 8
