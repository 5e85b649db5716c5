"""At `disk`, an answer that depends on another caller's commit survives a power cut as that commit does: it waits for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import AlreadySettled, KeyConflict
from tenure.model.request import job_requests


@pytest.fixture
def store(tmp_path: Path):
    with tenure.open(f"rocksdb:{tmp_path / 'q'}", durability="disk", sweep=False, listen=False) as opened:
        engine(opened).group_commit.sync_soon = lambda: None  # no syncs in the background
        opened.queue("mail").enqueue(b"first")
        yield opened


def engine(store: Any) -> Any:
    return store._backend._engine.inner


def written_only(store: tenure.Store, verb: Callable[[], object]) -> None:
    """Commit `verb`, and let its caller wait: power may fail before it is durable."""
    _, commit = engine(store).group_commit.deferring(verb)
    assert commit
    assert not durable(store)


def durable(store: tenure.Store) -> bool:
    return bool(engine(store).durable() == engine(store)._next_commit - 1)


def test_a_duplicate_is_told_once_the_first_job_is_durable(store: tenure.Store) -> None:
    queue = store.queue("mail")
    written_only(store, lambda: queue.enqueue(b"x", key="order-17"))
    assert queue.enqueue(b"x", key="order-17").duplicate
    assert durable(store)


def test_a_key_conflict_is_told_once_the_first_job_is_durable(store: tenure.Store) -> None:
    queue = store.queue("mail")
    written_only(store, lambda: queue.enqueue(b"x", key="order-17"))
    with pytest.raises(KeyConflict):
        queue.enqueue(b"y", key="order-17")
    assert durable(store)


def test_a_repeated_ack_is_told_already_settled_once_the_ack_is_durable(store: tenure.Store) -> None:
    queue = store.queue("mail")
    delivery = queue.claim()[0]
    written_only(store, lambda: queue.ack(delivery, result=b"done"))
    with pytest.raises(AlreadySettled):
        queue.ack(delivery, result=b"done")
    assert durable(store)


def test_a_lost_lease_is_told_once_what_ended_it_is_durable(store: tenure.Store) -> None:
    queue = store.queue("mail")
    delivery = queue.claim()[0]
    written_only(store, lambda: queue.cancel(delivery.id))
    assert queue.ack_many([delivery]).lost == [delivery.id]
    assert durable(store)


def test_a_repeated_request_is_answered_once_it_is_durable(store: tenure.Store) -> None:
    backend: Any = store._backend
    name, jobs = store.queue("mail").name, job_requests([b"x"])
    written_only(store, lambda: backend.once(b"request").enqueue(name, jobs))
    (first,) = backend.once(b"request").enqueue(name, jobs)
    assert durable(store)
    assert store.get(first.id) is not None


def test_an_empty_claim_waits_for_nothing(store: tenure.Store) -> None:
    queue = store.queue("mail")
    queue.ack(queue.claim()[0])
    written_only(store, lambda: store.queue("other").enqueue(b"x", delay=60))
    assert not queue.claim()
    assert not store.claim_any(queues=["mail"])
    assert not durable(store)


def test_nobody_waits_where_all_is_durable(store: tenure.Store) -> None:
    queue = store.queue("mail")
    delivery = queue.claim()[0]
    queue.ack(delivery, result=b"done")
    before = engine(store).group_commit.syncs
    with pytest.raises(AlreadySettled):
        queue.ack(delivery, result=b"done")
    assert engine(store).group_commit.syncs == before


def test_answers_of_a_store_with_a_history_wait_as_well(tmp_path: Path) -> None:
    """The journal of a store that was opened before counts more commits than this process has made."""
    with tenure.open(f"rocksdb:{tmp_path / 'q'}", durability="disk", sweep=False, listen=False) as first:
        for _ in range(50):
            first.queue("mail").enqueue(b"x")
    with tenure.open(f"rocksdb:{tmp_path / 'q'}", durability="disk", sweep=False, listen=False) as store:
        engine(store).group_commit.sync_soon = lambda: None
        queue = store.queue("mail")
        written_only(store, lambda: queue.enqueue(b"x", key="order-17"))
        assert queue.enqueue(b"x", key="order-17").duplicate
        assert durable(store)
