"""FoundationDB's engine on the simulated cluster: faults by seed, unknown commits, recoveries, clocks, contention.

Each test that draws at random names its seed when it fails; `SEED=n` runs that seed alone.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Callable

import pytest

import tenure
from tenure.api.store import Store
from tenure.backends.embedded import EmbeddedBackend
from tenure.clock import ManualClock
from tenure.errors import LeaseLost, OpenError, StoreClosed, TooLarge, Unavailable
from tenure.model.job import NewJob
from tenure.storage import keyspace
from tenure.storage.engines.foundationdb import FoundationEngine
from tenure.storage.engines.foundationdb.engine import ClaimWidth
from tenure.testing import fdb
from tenure.testing.conformance.world import all_events, assert_sound, assert_told_right
from tenure.testing.fdb.cluster import Cluster
from tenure.testing.fdb.faults import Faults, Rates
from tenure.testing.fdb.harness import follow
from tenure.testing.fdb.scheduler import Scheduler

SEEDS = int(os.environ.get("FDB_SEEDS", "1000"))
STEP = 100


def opened(cluster: Cluster, clock: ManualClock, *, grace: float = 0.0) -> Store:
    database = fdb.Database(cluster)
    if cluster.idempotency:  # the servers support it, and the client asks for it
        database.options.set_transaction_automatic_idempotency()
    # Tries are timed by the cluster's own time: a seed goes the same way on a slow machine.
    engine = FoundationEngine(
        fdb,
        database,
        grace=grace,
        retry_limit=10_000,
        timeout=3600,
        steady=lambda: cluster.time_us() / 1e6,
    )
    return Store(EmbeddedBackend(engine, "foundationdb:simulated", clock))


def engine_of(store: Store) -> FoundationEngine:
    engine = store.backend._engine  # type: ignore[attr-defined]
    assert isinstance(engine, FoundationEngine)
    return engine


def a_cluster(seed: int = 0, rates: Rates | None = None) -> tuple[Cluster, ManualClock]:
    clock = ManualClock()
    cluster = Cluster(seed, time_us=lambda: 0, faults=Faults(seed, rates))
    follow(cluster, clock)
    return cluster, clock


# ── 1,000 seeds ──────────────────────────────────────────────────────────────────────────────────────────────────────


def one_seed(seed: int) -> None:
    """Three hosts work on one queue while everything goes wrong; then nothing is lost, doubled or left over."""
    random.seed(seed)
    draw = random.Random(seed)
    rates = Rates(conflict=0.05, unknown=0.08, late=0.04, recovery=0.01, too_old=0.005)
    cluster, clock = a_cluster(seed, rates)
    cluster.idempotency = draw.random() < 0.5
    cluster.faults.on = False
    stores = [opened(cluster, clock) for _ in range(3)]
    stores[0].queue("work").configure(tenure.Policy(max_attempts=50, backoff=tenure.Backoff.fixed(0)))
    sent: list[str] = []
    done: Counter[str] = Counter()

    def host(store: Store, number: int) -> Callable[[], None]:
        queue = store.queue("work")

        def work() -> None:
            for turn in range(1 if seed % 4 else 2):
                sent.extend(e.id for e in queue.enqueue_many([b"%d-%d" % (number, turn), b""]))
                claim = queue.claim(limit=draw.choice((1, 2)), lease=30)
                for delivery in claim:
                    if draw.random() < 0.3:
                        queue.nack(delivery, "again")
                    else:
                        queue.ack(delivery)
                        done[delivery.id] += 1

        return work

    cluster.faults.on = True
    Scheduler(seed, cluster).run([host(store, number) for number, store in enumerate(stores)])
    cluster.settle_late()
    cluster.faults.on = False
    queue = stores[1].queue("work")
    while claim := queue.claim(limit=10):
        for delivery in claim:
            queue.ack(delivery)
            done[delivery.id] += 1
    counts = queue.counts()
    assert (counts.waiting, counts.leased) == (0, 0), "a lease is orphaned, or a job was not handed out"
    assert sorted(sent) == sorted(done), "a job is lost, or there is one that nobody sent"
    assert set(done.values()) == {1}, "a job was done twice"
    assert counts.enqueued == len(sent), "a job was enqueued twice"
    assert_sound(stores[0])
    for store in stores:
        store.close()


SEED = os.environ.get("SEED")


@pytest.mark.parametrize("first", [int(SEED)] if SEED else range(0, SEEDS, STEP))
def test_nothing_is_lost_or_doubled_whatever_goes_wrong(first):
    for seed in range(first, first + (1 if SEED else STEP)):
        try:
            one_seed(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed} (run it alone with SEED={seed}): {error}") from error


def test_a_seed_is_replayed_step_by_step():
    def told(seed: int) -> tuple[int, list[str]]:
        random.seed(seed)
        cluster, clock = a_cluster(seed, Rates(conflict=0.1, unknown=0.1))
        stores = [opened(cluster, clock) for _ in range(2)]
        scheduler = Scheduler(seed, cluster)
        scheduler.run([lambda s=s: s.queue("work").enqueue_many([b"x"] * 3) and None for s in stores] * 2)
        return scheduler.steps, [event.type for event in all_events(stores[0])]

    assert told(3) == told(3)


# ── unknown commits ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("idempotency", [False, True])
def test_unknown_commits_in_a_tenth_of_all_transactions(idempotency):
    cluster, clock = a_cluster(11, Rates(unknown=0.1, late=0.02))
    cluster.idempotency = idempotency
    store = opened(cluster, clock)
    queue = store.queue("work")
    sent = [queue.enqueue(b"%d" % n, key=f"k{n}").id for n in range(150)]
    claimed: list[str] = []
    while claim := queue.claim(limit=7):
        claimed += [delivery.id for delivery in claim]
        assert not queue.ack_many(claim).lost
    faults = cluster.faults.drawn
    assert faults["unknown_done"] > 5
    assert faults["unknown_not_done"] > 5
    assert sorted(claimed) == sorted(sent)
    assert queue.counts().enqueued == 150
    assert queue.counts().leased == 0
    cluster.faults.on = False
    assert_sound(store)


def test_a_transaction_that_committed_unknown_returns_what_it_returned_then():
    cluster, clock = a_cluster()
    store = opened(cluster, clock)
    engine = engine_of(store)
    runs: list[int] = []

    def write(tx):
        runs.append(len(runs))
        tx.put(keyspace.META, b"probe", b"%d" % len(runs))
        return len(runs)

    class Once(Faults):
        def of_commit(self):
            return "unknown_done" if len(runs) == 1 else ""

    cluster.faults = Once(0, Rates())
    assert engine.transact(write) == 1, "run once, and found committed by its mark"
    assert engine.read(lambda reader: reader.get(keyspace.META, b"probe")) == b"1"


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_recovery_ends_no_lease_early():
    """Versions jump by 100 million, which is 100 seconds of them: the clock says otherwise, and decides as well."""
    cluster, clock = a_cluster()
    store = opened(cluster, clock, grace=30)
    queue = store.queue("work")
    queue.enqueue_many([b"x"] * 1000)
    claims = [queue.claim(limit=100, lease=30) for _ in range(10)]
    cluster.recover()
    clock.advance(29)
    assert not queue.claim()
    assert store.sweep().leases == 0
    clock.advance(30)  # past the end, within the grace
    assert not queue.claim()
    assert queue.counts().leased == 1000
    clock.advance(2)
    while store.sweep().more:
        pass
    assert queue.counts().leased == 0
    with pytest.raises(LeaseLost):
        queue.ack(claims[0][0])


def test_a_clock_that_is_an_hour_off_takes_nothing_over_early():
    cluster, clock = a_cluster()
    right = opened(cluster, clock, grace=30)
    right.queue("work").enqueue_many([b"x"] * 20)
    mine = right.queue("work").claim(limit=20, lease=60)
    ahead = ManualClock(clock.wall_ms() + 3_600_000)
    ahead._boot = "another host"
    wrong = opened(cluster, ahead, grace=30)
    for _ in range(11):  # 55 seconds
        assert not wrong.queue("work").claim()
        assert wrong.sweep().leases == 0
        clock.advance(5)
        ahead.advance(5)
    assert right.queue("work").ack_many(list(mine)[:10]).done
    right.queue("work").extend(mine, 60)
    clock.advance(30)
    ahead.advance(30)
    assert not wrong.queue("work").claim(), "an extended lease is held by its new end"
    clock.advance(40)
    ahead.advance(40)
    assert len(wrong.queue("work").claim(limit=20)) == 10


def test_an_expired_lease_needs_its_versions_even_if_the_clock_is_right():
    """A cluster whose versions ran slowly: time has passed, and versions have not."""
    cluster, clock = a_cluster()
    store = opened(cluster, clock)
    store.queue("work").enqueue(b"x")
    store.queue("work").claim(lease=10)
    real = cluster.time_us()
    cluster.time_us = lambda: real
    clock.advance(60)
    assert not store.queue("work").claim()
    cluster.time_us = lambda: real + 10_001_000
    assert store.queue("work").claim()


# ── contention ───────────────────────────────────────────────────────────────────────────────────────────────────────


def contend(workers: int, jobs: int, spread: bool, monkeypatch: pytest.MonkeyPatch) -> float:
    """Workers on hosts of their own claim one job at a time from one queue; conflicts per claim."""
    if not spread:
        monkeypatch.setattr(ClaimWidth, "conflict", lambda self: None)
    cluster, clock = a_cluster(5)
    random.seed(5)
    stores = [opened(cluster, clock) for _ in range(workers)]
    stores[0].queue("work").enqueue_many([b"x"] * jobs)
    taken: list[str] = []
    conflicts = 0

    def worker(store: Store) -> Callable[[], None]:
        def work() -> None:
            nonlocal conflicts
            engine_of(store).retried = count
            for _ in range(jobs // workers // 2):
                taken.extend(delivery.id for delivery in store.queue("work").claim())

        return work

    def count(why: str) -> None:
        nonlocal conflicts
        conflicts += why == "conflict"

    Scheduler(5, cluster).run([worker(store) for store in stores])
    assert len(taken) == len(set(taken)) == jobs // workers // 2 * workers
    return conflicts / len(taken)


def test_32_workers_on_one_queue_rarely_conflict(monkeypatch, capsys):
    spread = contend(32, 2_560, True, monkeypatch)
    naive = contend(32, 256, False, monkeypatch)
    with capsys.disabled():
        print(f"\n32 workers, conflicts per claim: {spread:.3f}; at the head of the queue alone: {naive:.2f}")
    assert spread < 0.2
    assert naive > 1


# ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_journal_is_the_same_before_and_after_it_is_folded():
    cluster, clock = a_cluster()
    store = opened(cluster, clock)
    queue = store.queue("work")
    for n in range(5):
        queue.enqueue(b"%d" % n)
    claim = queue.claim(limit=3)
    queue.nack(claim[0], "e" * 50)
    before = all_events(store)
    lives = {delivery.id: queue.timeline(delivery.id) for delivery in claim}
    engine_of(store)._fold()
    assert all_events(store) == before
    assert {id: queue.timeline(id) for id in lives} == lives
    assert_told_right(before)


def test_a_journal_of_large_rows_is_folded_in_several_transactions():
    cluster, clock = a_cluster()
    store = opened(cluster, clock)
    queue = store.queue("work")
    queue.configure(tenure.Policy(max_attempts=1))
    for _ in range(4):
        queue.enqueue_many([b""] * 40)
        for delivery in queue.claim(limit=40):
            queue.fail(delivery, "e" * 8_000)
    before = all_events(store)
    engine_of(store).tend()
    layout = engine_of(store)._layout
    assert not cluster.get_range(cluster.current_version(), layout.inbox, layout.inbox + b"\xff", 0)
    assert all_events(store) == before
    assert_sound(store)


def test_large_values_are_kept_in_parts():
    cluster, clock = a_cluster()
    store = opened(cluster, clock)
    engine = engine_of(store)
    value = random.Random(1).randbytes(333_333)
    engine.transact(lambda tx: tx.put(keyspace.META, b"large", value))
    assert engine.read(lambda reader: reader.get(keyspace.META, b"large")) == value
    engine.transact(lambda tx: tx.delete(keyspace.META, b"large"))
    parts = engine._layout.parts(keyspace.META, b"", b"\xff")
    assert not cluster.get_range(cluster.current_version(), *parts, 0)
    queue = store.queue("work")
    queue.enqueue(b"p" * 8 * 1024 * 1024)
    assert len(queue.claim()[0].payload) == 8 * 1024 * 1024
    assert not queue.enqueue_many([NewJob(b"p" * 5_000_000), NewJob(b"p" * 5_000_000)])[1].duplicate
    with pytest.raises(TooLarge):
        engine.transact(lambda tx: tx.put_many(keyspace.META, [(b"%d" % n, b"v" * 80_000) for n in range(150)]))


def test_a_waiting_claim_is_woken_by_another_hosts_watch():
    cluster, clock = a_cluster()
    one, other = opened(cluster, clock), opened(cluster, clock)
    seen = engine_of(one).version()
    assert engine_of(one).version() == seen
    other.queue("work").enqueue(b"x")
    assert engine_of(one).version() != seen


def test_a_look_that_takes_longer_than_a_version_lives_is_told_so():
    cluster, clock = a_cluster()
    store = opened(cluster, clock)
    store.queue("work").enqueue(b"x")
    with engine_of(store).snapshot((keyspace.READY,)) as moment:
        clock.advance(6)
        with pytest.raises(Unavailable, match="five seconds"):
            moment.keys(keyspace.READY, b"", keyspace.LAST, 10)
    with engine_of(store).snapshot() as copy:
        clock.advance(6)
        assert len(copy.keys(keyspace.READY, b"", keyspace.LAST, 10)) == 1


def test_marks_without_events_are_forgotten_after_ten_minutes():
    cluster, clock = a_cluster()
    store = opened(cluster, clock)
    engine = engine_of(store)
    engine.transact(lambda tx: tx.put(keyspace.META, b"probe", b"1"))
    store.sweep()
    marks = engine._layout.mark(0)[:-8]

    def kept() -> int:
        return len(cluster.get_range(cluster.current_version(), marks, marks + b"\xff", 0))

    before = kept()
    assert before > 0
    clock.advance(601)
    store.sweep()
    assert kept() < before


def test_a_closed_store_and_a_fork_say_so(monkeypatch):
    cluster, clock = a_cluster()
    store = opened(cluster, clock)
    engine = engine_of(store)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(StoreClosed, match="fork"):
        engine.read(lambda reader: None)
    monkeypatch.undo()
    store.close()
    with pytest.raises(StoreClosed):
        engine.transact(lambda tx: None)


def test_open_takes_a_cluster_file_and_the_engines_options(monkeypatch):
    monkeypatch.setitem(sys.modules, "fdb", fdb)
    with tenure.open("foundationdb:/nowhere/a.cluster", directory="app/queue", grace=5, sweep=False) as store:
        assert store.traits.grace_ms == 5_000
        assert store.traits.scope == "cluster"
        assert store.durability == "disk"
        store.queue("work").enqueue(b"x")
    with tenure.open("foundationdb:/nowhere/a.cluster", directory="app/queue", sweep=False) as again:
        assert again.queue("work").counts().ready == 1
    assert fdb.directory.list(fdb.open("/nowhere/a.cluster"), ("app",)) == ["queue"]


def test_open_without_the_native_library_says_what_is_missing():
    real = pytest.importorskip("fdb", reason="the package foundationdb is not installed")
    try:
        real.api_version(730)
    except Exception:
        with pytest.raises(OpenError, match="libfdb_c"):
            tenure.open("foundationdb:")
    else:
        pytest.skip("it is there")
