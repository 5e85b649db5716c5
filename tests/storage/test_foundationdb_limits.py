"""Transactions on FoundationDB stay below a megabyte: batches are cut, and large values are uploaded first."""

from __future__ import annotations

import random

import pytest

import tenure
from tenure.api.store import Store
from tenure.errors import KeyConflict, QueueFull, Unavailable
from tenure.model.job import NewJob
from tenure.model.lease import Settle
from tenure.storage import keyspace
from tenure.testing.conformance.world import assert_sound
from tenure.testing.fdb.cluster import Cluster
from tenure.testing.fdb.faults import Rates
from tests.storage.test_foundationdb_engine import a_cluster, engine_of, opened

MEGABYTE = 1_000_000
#: The largest allowed payload and result.
LARGE = 8 * 1024 * 1024


def drained(store: Store, name: str = "work") -> list[bytes]:
    """Claim and ack until no job is ready. Returns the payloads in order."""
    found = []
    queue = store.queue(name)
    while claim := queue.claim(limit=1_000):
        found += [delivery.payload for delivery in claim]
        assert not queue.ack_many(claim).lost
    return found


def unfinished(cluster: Cluster, store: Store) -> int:
    prefix = engine_of(store)._layout.unfinished
    return len(cluster.get_range(cluster.current_version(), prefix, prefix + b"\xff", 0))


def test_a_batch_of_10_000_jobs_is_cut():
    cluster, clock = a_cluster()
    store = opened(cluster, clock)
    payloads = [b"%d" % n for n in range(10_000)]
    ids = [job.id for job in store.queue("work").enqueue_many(payloads)]
    assert len(set(ids)) == 10_000
    before = cluster.largest
    assert drained(store) == payloads
    print(
        f"\n10,000 jobs: enqueued in at most {before:,} bytes a transaction, claimed and acked in {cluster.largest:,}"
    )
    assert cluster.largest <= MEGABYTE
    assert_sound(store)


def test_large_payloads_and_results_are_written_ahead():
    cluster, clock = a_cluster()
    store = opened(cluster, clock)
    queue = store.queue("work")
    draw = random.Random(1)
    payloads = [draw.randbytes(LARGE), draw.randbytes(300_000), b"small", draw.randbytes(70_000)]
    sent = queue.enqueue_many(payloads)
    claim = queue.claim(limit=4)
    assert [delivery.payload for delivery in claim] == payloads
    result = draw.randbytes(LARGE)
    queue.ack(claim[0], result=result)
    kept = queue.get(sent[0].id)
    assert kept is not None
    assert kept.result == result
    print(f"\n8 MiB: at most {cluster.largest:,} bytes a transaction")
    assert cluster.largest <= MEGABYTE
    assert unfinished(cluster, store) == 0
    assert_sound(store)
    queue.ack_many(list(claim)[1:])
    clock.advance(90_000)
    store.sweep()
    store.sweep()
    layout = engine_of(store)._layout
    for space in (keyspace.JOBS, keyspace.PAYLOAD, keyspace.NOTES):
        assert not cluster.get_range(cluster.current_version(), *layout.parts(space, b"", b"\xff" * 30), 0)


def test_large_payloads_survive_unknown_and_late_commits():
    cluster, clock = a_cluster(3, Rates(unknown=0.15, late=0.05, conflict=0.1))
    store = opened(cluster, clock)
    payloads = [random.Random(n).randbytes(1_200_000) for n in range(6)]
    for payload in payloads:
        store.queue("work").enqueue(payload)
    assert drained(store) == payloads
    cluster.settle_late()
    cluster.faults.on = False
    assert cluster.largest <= MEGABYTE
    assert_sound(store)


def test_uploaded_values_without_a_commit_are_removed():
    cluster, clock = a_cluster()
    store = opened(cluster, clock)
    engine = engine_of(store)

    def fail(tx):
        tx.put(keyspace.PAYLOAD, b"k" * 22, b"v" * 50_000)
        tx.put_many(keyspace.PAYLOAD, [(b"%022d" % n, b"v" * 50_000) for n in range(20)])
        if unfinished(cluster, store):
            raise ValueError("the program ends here")

    with pytest.raises(ValueError, match="ends here"):
        engine.transact(fail)
    assert unfinished(cluster, store) == 2
    store.sweep()
    assert unfinished(cluster, store) == 2, "its transaction may still commit"
    clock.advance(601)
    store.sweep()
    assert unfinished(cluster, store) == 0
    parts = engine._layout.parts(keyspace.PAYLOAD, b"", b"\xff" * 30)
    assert not cluster.get_range(cluster.current_version(), *parts, 0)


def test_uploaded_values_that_were_removed_are_uploaded_again():
    cluster, clock = a_cluster()
    store, other = opened(cluster, clock), opened(cluster, clock)
    engine = engine_of(store)
    tries: list[int] = []

    def write(tx):
        tx.put_many(keyspace.PAYLOAD, [(b"%022d" % n, b"v" * 50_000) for n in range(20)])
        tries.append(unfinished(cluster, store))
        if len(tries) == 2:  # they are uploaded: ten minutes pass before it commits
            cluster.recover()
            for _ in range(6):
                cluster.recover()
            other.sweep()

    engine.transact(write)
    assert len(tries) > 2
    assert engine.read(lambda reader: reader.get(keyspace.PAYLOAD, b"%022d" % 19)) == b"v" * 50_000
    assert unfinished(cluster, store) == 0


def test_a_lease_over_thousands_of_jobs_expires_in_pieces():
    cluster, clock = a_cluster()
    store = opened(cluster, clock)
    queue = store.queue("work")
    queue.configure(tenure.Policy(max_attempts=2))
    queue.enqueue_many([b"x"] * 2_000)
    first = len(queue.claim(limit=10_000, lease=10))
    assert 500 < first < 2_000, "as many as one transaction leases"
    queue.claim(limit=1_000, lease=10)
    clock.advance(11)
    while store.sweep().more:
        pass
    assert (queue.counts().ready, queue.counts().leased) == (2_000, 0)
    assert cluster.largest <= MEGABYTE
    assert_sound(store)


def test_purge_replay_cleanup_and_long_errors_are_cut():
    cluster, clock = a_cluster()
    store = opened(cluster, clock)
    queue = store.queue("work")
    queue.configure(tenure.Policy(max_attempts=1, retention=60))
    queue.enqueue_many([b"x" * 600] * 700)
    while claim := queue.claim(limit=500):
        items = [Settle("fail", delivery.proof, error="e" * 4_000) for delivery in claim]
        assert queue.settle_many(items) == [None] * len(items)
    assert queue.counts().dead == 700
    assert queue.replay().count == 700
    while claim := queue.claim(limit=500):
        queue.ack_many(claim)
    clock.advance(61)
    assert store.cleanup(limit=100_000) == 700
    queue.enqueue_many([b"x"] * 1_200)
    assert queue.purge("ready") == 1_200
    assert cluster.largest <= MEGABYTE
    assert_sound(store)


def test_a_batch_that_is_refused_is_refused_whole():
    cluster, clock = a_cluster()
    store = opened(cluster, clock)
    queue = store.queue("work")
    first = queue.enqueue(b"another payload", key="key 4999").id
    with pytest.raises(KeyConflict) as conflict:
        queue.enqueue_many([NewJob(b"x", key=f"key {n}") for n in range(5_000)])
    assert conflict.value.conflicts == [(4_999, first)]
    assert queue.counts().enqueued == 1
    queue.configure(tenure.Policy(max_waiting=4_000))
    with pytest.raises(QueueFull):
        queue.enqueue_many([b"x"] * 4_000)
    assert queue.counts().enqueued == 1
    assert cluster.largest <= MEGABYTE


def test_an_error_midway_says_how_many_came_before_it(monkeypatch):
    cluster, clock = a_cluster()
    store = opened(cluster, clock)
    engine, transact = engine_of(store), engine_of(store).transact

    def gone(fn):
        raise Unavailable("the cluster is gone")

    def once(fn):
        monkeypatch.setattr(engine, "transact", gone)
        return transact(fn)

    monkeypatch.setattr(engine, "transact", once)
    with pytest.raises(Unavailable) as error:
        store.queue("work").enqueue_many([b"x"] * 4_000)
    monkeypatch.undo()
    there = store.queue("work").counts().enqueued
    assert 0 < there < 4_000
    assert f"{there} of 4000 jobs were enqueued" in error.value.__notes__[0]


def test_after_a_slow_try_the_next_handles_fewer_jobs():
    cluster, clock = a_cluster()
    store = opened(cluster, clock)
    engine = engine_of(store)
    now = [0.0]
    engine._steady = lambda: now[0]
    asked: list[int] = []

    def slow(tx):
        some = tx.at_most(1_000)
        asked.append(some)
        now[0] += some * 0.005
        tx.put(keyspace.META, b"probe", b"1")
        return some

    assert engine.transact(slow) == 250
    assert asked == [1_000, 500, 250]


def test_an_indivisible_transaction_may_be_larger():
    cluster, clock = a_cluster()
    store = opened(cluster, clock)
    store.apply({f"queue-{n}": tenure.Policy() for n in range(2_500)})
    assert len(store.queues()) == 2_500
    assert MEGABYTE < cluster.largest < 10 * MEGABYTE


def test_a_chunk_of_a_staged_write_is_one_small_transaction():
    """A thousand jobs with 10 MB of payloads, and the marker that counts them: the payloads are uploaded first."""
    cluster, clock = a_cluster()
    store = opened(cluster, clock)
    write = store.staged("load-1")
    write.begin(b"")
    payloads = [b"%04d" % n * 2_500 for n in range(1_000)]
    assert write.publish(0, store.queue("work"), payloads).fresh
    assert not write.publish(0, store.queue("work"), payloads).fresh
    assert [delivery.payload for delivery in store.queue("work").claim(limit=1_000)] == payloads
    assert cluster.largest <= MEGABYTE
    assert_sound(store)


def test_restore_and_discard_are_cut():
    source = tenure.open("memory:", sweep=False)
    queue = source.queue("work")
    queue.configure(tenure.Policy(max_attempts=1))
    queue.enqueue_many([b"x"] * 300)
    claim = queue.claim(limit=300)
    queue.settle_many([Settle("fail", delivery.proof, error="e" * 8_000) for delivery in claim])
    jobs = [job for job in map(queue.get, [delivery.id for delivery in claim]) if job is not None]
    cluster, clock = a_cluster()
    store = opened(cluster, clock)
    there = store.queue("work")
    assert len(there.restore(jobs).added) == 300
    assert len(there.restore(jobs).there) == 300
    assert len(there.discard({job.id: job.token for job in jobs})) == 300
    assert cluster.largest <= MEGABYTE
    assert_sound(store)
    source.close()
