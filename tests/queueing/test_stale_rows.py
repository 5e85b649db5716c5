"""Rows that another caller or a crash left behind: sweeps and claims drop them, and they hide no job."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

import tenure
from tenure import ManualClock, NewJob, Policy, Store
from tenure.errors import Corrupt, LeaseLost, QueueNotEmpty
from tenure.model.lease import Proof, Settle
from tenure.queueing import admin, sweep
from tenure.queueing.checking import look
from tenure.storage import keyspace, records
from tenure.storage.keyspace import CLAIMS, DUE, JOBS, LEASE_JOBS, LEASES, READY, REQUESTS, STATE, TURNS, Due
from tenure.testing.conformance.world import assert_sound
from tenure.testing.harness import backend_of
from tests.queueing.stored_rows import mended, rows, write

NOBODY = bytes(range(16))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Iterator[Store]:
    with tenure.open("memory:", clock=clock, sweep=False) as opened:
        opened.queue("work").configure(Policy(max_attempts=3))
        yield opened


def core_of(store: Store) -> Any:
    return backend_of(store)._core  # type: ignore[attr-defined]  # it is embedded


def number_of(store: Store, queue: str = "work") -> int:
    return next(info.number for info in store.queues() if info.queue == queue)


def put(store: Store, space: int, key: bytes, value: bytes = b"") -> None:
    write(store, lambda tx: tx.put(space, key, value))


def delete(store: Store, space: int, key: bytes) -> None:
    assert key in {stored for stored, _ in rows(store, space)}
    write(store, lambda tx: tx.delete(space, key))


# ── sweeps ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [Due.LEASE, Due.TTL, Due.RETENTION, Due.DEDUP, Due.CLAIM, Due.WRITE])
def test_a_due_row_of_nothing_is_deleted_and_counts_as_nothing(store: Store, clock: ManualClock, kind: Due) -> None:
    queue = store.queue("work")
    queue.enqueue(b"x", ttl=5)
    put(store, DUE, keyspace.due(kind, 1, number_of(store), NOBODY))
    put(store, DUE, keyspace.due(kind, 2, 77, NOBODY))
    clock.advance(10)
    swept = store.sweep()
    assert swept.ttl_passed == 1
    assert (swept.retired, swept.keys_forgotten, swept.claims_forgotten, swept.jobs_back) == (0, 0, 0, 0)
    assert not [key for key, _ in rows(store, DUE) if NOBODY in key]
    assert_sound(store)


def test_the_due_row_of_a_lease_that_was_extended_ends_nothing(store: Store, clock: ManualClock) -> None:
    queue = store.queue("work")
    queue.enqueue(b"x")
    claim = queue.claim(lease=10)
    put(store, DUE, keyspace.due(Due.LEASE, 5, number_of(store), claim.lease))
    clock.advance(6)
    assert store.sweep().jobs_back == 0
    queue.ack(claim[0])
    assert_sound(store)


def test_more_leases_than_one_transaction_handles_expire_in_several(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_JOBS", 5)
    queue = store.queue("work")
    queue.enqueue_many([b"x"] * 12)
    for _ in range(4):
        queue.claim(3, lease=1)
    clock.advance(5)
    first = store.sweep()
    assert 5 <= first.jobs_back < 12
    assert first.more
    back = first.jobs_back
    while back < 12:
        swept = store.sweep()
        assert swept.jobs_back
        back += swept.jobs_back
    assert back == 12
    assert queue.counts().ready == 12
    assert_sound(store)


def test_unreadable_rows_are_told_once_and_again_when_they_are_more(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    queue = store.queue("work")
    ids = [queue.enqueue(b"x", ttl=1).id for _ in range(3)]
    at = [keyspace.of_queue(number_of(store), bytes.fromhex(job)) for job in ids]
    good = dict(rows(store, STATE))
    put(store, STATE, at[0], b"\1nonsense")
    put(store, STATE, at[1], b"\1nonsense")
    clock.advance(5)
    with caplog.at_level(logging.WARNING, "tenure"):
        assert store.sweep().ttl_passed == 1
        store.sweep()
        assert caplog.text.count("due_rows_unreadable") == 1
    put(store, STATE, at[0], good[at[0]])
    put(store, STATE, at[1], good[at[1]])
    caplog.clear()
    with caplog.at_level(logging.WARNING, "tenure"):
        assert store.sweep().ttl_passed == 2  # none is left that could be told
    assert "due_rows_unreadable" not in caplog.text
    assert_sound(store)


def test_a_sweep_reads_a_bounded_number_of_pages(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_PAGES", 2)
    monkeypatch.setattr(sweep, "BATCH", 4)
    queue = store.queue("work")
    for _ in range(20):
        queue.enqueue(b"x", ttl=1)
    for key, _ in rows(store, STATE):
        put(store, STATE, key, b"\1nonsense")
    clock.advance(5)
    store.sweep()
    assert core_of(store).unreadable_due[Due.TTL] == 8


def test_a_claim_that_still_holds_its_lease_is_remembered_longer(store: Store, clock: ManualClock) -> None:
    queue = store.queue("work")
    queue.enqueue(b"x")
    claim = queue.claim(lease=3 * 86_400, id="claim-1")
    clock.advance(2 * 86_400)
    (key,) = [key for key, _ in rows(store, CLAIMS)]
    put(store, DUE, keyspace.due(Due.CLAIM, 1, number_of(store), key[4:]))
    assert store.sweep().claims_forgotten == 0
    again = queue.claim(lease=3 * 86_400, id="claim-1")
    assert [d.id for d in again] == [d.id for d in claim]


# ── claims ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_repeated_claim_whose_payload_is_lost_is_reported(store: Store) -> None:
    queue = store.queue("work")
    queue.enqueue(b"x")
    (delivery,) = queue.claim(id="claim-1")
    delete(store, JOBS, keyspace.of_queue(number_of(store), bytes.fromhex(delivery.id)))
    with pytest.raises(Corrupt, match="its payload is missing") as told:
        queue.claim(id="claim-1")
    assert told.value.job_id == delivery.id
    mended(store)


def test_a_lease_whose_jobs_are_lost_is_reported_and_ends_by_repair(store: Store) -> None:
    queue = store.queue("work")
    queue.enqueue_many([b"x"] * 2)
    claim = queue.claim(2, id="claim-1")
    delete(store, LEASE_JOBS, keyspace.of_queue(number_of(store), claim.lease))
    with pytest.raises(Corrupt, match=r"the jobs of lease .* are missing"):
        queue.claim(2, id="claim-1")
    mended(store)
    assert len(queue.claim(2)) == 2


@pytest.mark.parametrize("stale", [False, True], ids=["damaged only", "with a stale row before it"])
def test_damage_alone_is_raised_and_what_was_cleared_stays_cleared(store: Store, stale: bool) -> None:
    queue = store.queue("work")
    job = queue.enqueue(b"x").id
    number = number_of(store)
    if stale:
        put(store, READY, keyspace.ready(number, 0, 1, NOBODY))
    put(store, STATE, keyspace.of_queue(number, bytes.fromhex(job)), b"\1nonsense")
    with pytest.raises(Corrupt):
        queue.claim()
    assert len(rows(store, READY)) == 1
    mended(store)
    assert [d.id for d in queue.claim()] == [job]


def test_a_damaged_queue_among_several_is_raised_only_if_no_other_has_a_job(store: Store) -> None:
    bad, good = store.queue("work"), store.queue("good")
    job = bad.enqueue(b"x").id
    good.enqueue(b"y")
    put(store, STATE, keyspace.of_queue(number_of(store), bytes.fromhex(job)), b"\1nonsense")
    assert [d.payload for d in store.claim(["work", "good"])] == [b"y"]
    with pytest.raises(Corrupt):
        store.claim(["work", "good"])
    good.enqueue(b"z")
    assert [d.payload for d in store.claim_any()] == [b"z"]
    assert not store.claim_any()  # the empty queue loses its turn, which has to be committed
    with pytest.raises(Corrupt):
        store.claim_any()
    mended(store)


@pytest.mark.parametrize("lost", ["the tenant's place", "the queue's place", "the queue"])
def test_turns_without_a_place_or_a_queue_keep_no_other_from_its_turn(store: Store, lost: str) -> None:
    other = store.queue("work", tenant="acme")
    store.queue("work").enqueue(b"lost")
    other.enqueue(b"sound")
    scope = keyspace.queue_turns("default")
    if lost == "the tenant's place":
        delete(store, TURNS, keyspace.turn_place(keyspace.TENANT_TURNS, scope))
    elif lost == "the queue's place":
        number = next(q.number for q in store.queues() if q.tenant == "default")
        delete(store, TURNS, keyspace.turn_place(scope, number.to_bytes(4, "big")))
    else:
        delete(store, keyspace.QUEUES, keyspace.queue_row("default", "work"))
        core_of(store).registry.forget()
    assert [d.payload for d in store.claim_any(limit=5)] == [b"sound"]
    mended(store)
    assert [d.payload for d in store.claim_any(limit=5)] == [b"lost"]


def test_a_claim_of_any_queue_reads_on_past_a_row_without_a_job(store: Store) -> None:
    queue = store.queue("work")
    queue.enqueue(b"later", delay=50)
    queue.enqueue(b"x")
    (delivery,) = queue.claim()
    queue.ack(delivery)
    put(store, READY, keyspace.ready(number_of(store), 0, 1, NOBODY))
    queue.enqueue(b"y", priority=0)
    assert [d.payload for d in store.claim_any()] == [b"y"]
    put(store, READY, keyspace.ready(number_of(store), 0, 1, NOBODY))
    assert not store.claim_any()
    assert not [key for key, _ in rows(store, READY) if NOBODY in key]


# ── deletion ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def enqueue_behind_purges(store: Store, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Another caller enqueues a job after each purge of the first tries."""
    purge, left = admin.purge, [times]

    def racing(core: Any, name: Any, state: str, *arguments: Any) -> int:
        removed: int = purge(core, name, state, *arguments)
        if state == "dead" and left[0]:
            left[0] -= 1
            store.queue("work").enqueue(b"late")
        return removed

    monkeypatch.setattr(admin, "purge", racing)


def test_a_queue_that_gets_jobs_while_it_is_deleted_is_deleted_all_the_same(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.queue("work").enqueue(b"x")
    enqueue_behind_purges(store, monkeypatch, 3)
    assert store.delete_queue("work", force=True)
    assert store.queues() == []
    assert_sound(store)


def test_a_queue_that_keeps_getting_jobs_is_not_deleted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue_behind_purges(store, monkeypatch, 1000)
    with pytest.raises(QueueNotEmpty):
        store.delete_queue("work", force=True)
    assert store.queue("work").counts().ready == 1
    assert_sound(store)


def test_a_job_that_is_done_while_its_queue_is_deleted_keeps_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = store.queue("work")
    queue.configure(Policy(retention=100))
    purge = admin.purge

    def racing(core: Any, name: Any, state: str, *arguments: Any) -> int:
        removed: int = purge(core, name, state, *arguments)
        queue.enqueue(b"x")
        queue.ack(queue.claim()[0])
        return removed

    monkeypatch.setattr(admin, "purge", racing)
    with pytest.raises(QueueNotEmpty) as told:
        store.delete_queue("work")
    assert "1 done" in str(told.value)
    assert_sound(store)


def test_proofs_of_a_queue_that_is_gone_are_lost(store: Store) -> None:
    queue = store.queue("work")
    queue.enqueue(b"x")
    (delivery,) = queue.claim()
    queue.ack(delivery)
    store.delete_queue("work")
    for call in (
        lambda: queue.ack(delivery),
        lambda: queue.progress(delivery, 0.5),
        lambda: queue.record_step(delivery, "charge", b"1"),
    ):
        with pytest.raises(LeaseLost):
            call()


def test_a_cleanup_stops_at_its_limit_and_tells_its_progress(store: Store, clock: ManualClock) -> None:
    seen: list[tuple[int, int | None]] = []
    for name in ("a", "b"):
        queue = store.queue(name)
        queue.configure(Policy(retention=10))
        queue.enqueue_many([b"x"] * 4)
        queue.ack_many(list(queue.claim(4)))
    clock.advance(5)
    backend = backend_of(store)
    assert backend.cleanup(backend.now_ms() + 1, 6, lambda done, of: seen.append((done, of))) == 6
    assert seen
    clock.advance(6)
    seen.clear()
    assert backend.cleanup(None, 100, lambda done, of: seen.append((done, of))) == 2
    assert seen[-1] == (2, 100)
    assert_sound(store)


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_repeated_request_whose_answer_lost_a_part_is_reported_and_not_done_again(store: Store) -> None:
    queue = store.queue("work")
    queue.enqueue(b"x")
    (delivery,) = queue.claim()
    lost = [Settle("ack", Proof(NOBODY, NOBODY, 1))] * 800
    items = [Settle("ack", Proof(bytes.fromhex(delivery.id), delivery.lease, delivery.token)), *lost]
    backend = backend_of(store)
    first = backend.once(b"large").settle(queue.name, items)
    assert list(map(str, backend.once(b"large").settle(queue.name, items))) == list(map(str, first))
    delete(store, REQUESTS, keyspace.request(keyspace.digest(b"large"), 1))
    events = len(store.events().events)
    with pytest.raises(Corrupt, match="a part of a request's outcome is missing"):
        backend.once(b"large").settle(queue.name, items)
    assert len(store.events().events) == events
    mended(store)


def test_a_lost_due_row_of_a_lease_is_told(store: Store) -> None:
    store.queue("work").enqueue(b"x")
    claim = store.queue("work").claim(lease=60)
    assert claim.lease is not None
    record = records.decode_lease(dict(rows(store, LEASES))[keyspace.of_queue(1, claim.lease)], claim.lease)
    delete(store, DUE, keyspace.due(Due.LEASE, record.expires_at_ms, 1, claim.lease))
    assert [fault.mend for fault in look(core_of(store)).faults] == ["put_row"]
    assert mended(store) == {"due"}


def test_a_job_past_its_ttl_keeps_no_job_behind_it(store: Store, clock: ManualClock) -> None:
    queue = store.queue("work")
    queue.enqueue_many([NewJob(b"%d" % n, ttl=5) for n in range(3)])
    queue.enqueue(b"sound")
    clock.advance(6)
    assert [d.payload for d in queue.claim()] == [b"sound"]
    assert_sound(store)
