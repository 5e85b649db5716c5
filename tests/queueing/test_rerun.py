"""A transaction's function may run again: the whole conformance suite on engines that make it, each test on one of them.

`TwiceEngine` throws the first run of every transaction away and wants the same answer from the second; `StaleEngine` lets the
first run see the store as it was a commit ago, as when another process came between. (`tests/machine` runs both, too;
ALL_COMBINATIONS=1 runs each test on both.)
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from tenure import NewJob
from tenure.api.store import Store
from tenure.api.sweeper import Sweeper
from tenure.backends.embedded import EmbeddedBackend
from tenure.clock import Clock, ManualClock, SystemClock
from tenure.errors import TenureError
from tenure.storage import keyspace
from tenure.storage.engine import Transaction
from tenure.storage.engines.memory import MemoryEngine, ReadOwnWrite
from tenure.testing.conformance import *  # noqa: F403 - the tests
from tenure.testing.harness import EngineHarness, engine_of
from tests.combinations import ALL_COMBINATIONS, in_turn
from tests.conformance.selection import TESTS
from tests.machine.places import MemoryPlace
from tests.machine.rerun import StaleEngine, TwiceEngine

Rerunning = type[TwiceEngine | StaleEngine]


class RerunHarness(EngineHarness):
    race_jobs = 600

    def __init__(self, engine: Rerunning) -> None:
        super().__init__("memory")
        self._engine = engine

    def open(self, *, clock: Clock | None = None, sweep: bool = False, quick: bool = False) -> Store:
        clock = SystemClock() if clock is None else clock
        backend = EmbeddedBackend(self._engine(), "memory:", clock)
        return Store(backend, sweeper=Sweeper(clock, 1.0) if sweep else None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "rerunning" in metafunc.fixturenames:
        test, engines = metafunc.function.__name__, [TwiceEngine, StaleEngine]
        chosen = [in_turn(test, engines)] if test in TESTS and not ALL_COMBINATIONS else engines
        metafunc.parametrize("rerunning", chosen, indirect=True)


@pytest.fixture
def rerunning(request: pytest.FixtureRequest) -> Rerunning:
    engine: Rerunning = request.param
    return engine


@pytest.fixture
def harness(rerunning: Rerunning) -> RerunHarness:
    return RerunHarness(rerunning)


# ── the engines are what they say ────────────────────────────────────────────────────────────────────────────────────


def test_every_transaction_runs_twice(rerunning: Rerunning) -> None:
    runs: list[int] = []
    engine = rerunning()
    for _ in range(3):
        engine.transact(lambda tx: runs.append(tx.append(keyspace.JOURNAL, b"row")))
    if rerunning is TwiceEngine:
        assert runs == [1, 1, 2, 2, 3, 3], "the first run left something behind"
    else:
        assert runs == [1, 1, 1, 2, 2, 3], "the first run did not see the store as it was before"
    assert engine.reruns == 3


def test_what_an_engine_may_not_keep_is_not_kept(rerunning: Rerunning) -> None:
    assert rerunning.traits.scope == "host"
    engine = rerunning()
    with pytest.raises(TenureError):
        engine.transact(_put_and_raise)
    assert engine.read(lambda reader: reader.get(keyspace.META, b"x")) is None


def _put_and_raise(tx) -> None:
    tx.put(keyspace.META, b"x", b"y")
    raise TenureError("after it wrote")


# ── the memory engine is the strict one ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "write",
    [
        lambda tx: tx.put(keyspace.COUNTERS, b"k", b"v"),
        lambda tx: tx.put_many(keyspace.COUNTERS, [(b"k", b"v")]),
        lambda tx: tx.delete(keyspace.COUNTERS, b"k"),
        lambda tx: tx.delete_many(keyspace.COUNTERS, [b"k"]),
        lambda tx: tx.delete_range(keyspace.COUNTERS, b"a", b"z"),
        lambda tx: tx.add(b"k", 1),
    ],
    ids=["put", "put_many", "delete", "delete_many", "delete_range", "add"],
)
@pytest.mark.parametrize(
    "read",
    [
        lambda tx: tx.get(keyspace.COUNTERS, b"k"),
        lambda tx: tx.get_many(keyspace.COUNTERS, [b"a", b"k"]),
        lambda tx: tx.scan(keyspace.COUNTERS, b"", b"z", 10),
        lambda tx: tx.keys(keyspace.COUNTERS, b"k", b"k\0", 1, reverse=True),
    ],
    ids=["get", "get_many", "scan", "keys"],
)
@pytest.mark.parametrize("engine", [MemoryEngine, TwiceEngine, StaleEngine])
def test_reading_what_was_written_is_refused(engine, write, read) -> None:
    def write_then_read(tx) -> None:
        write(tx)
        read(tx)

    with pytest.raises(ReadOwnWrite):
        engine().transact(write_then_read)


def test_reading_beside_what_was_written_is_fine() -> None:
    def run(tx: Transaction) -> list[bytes]:
        tx.put(keyspace.META, b"k", b"v")
        assert tx.get(keyspace.META, b"j") is None
        assert tx.get(keyspace.QUEUES, b"k") is None
        return tx.keys(keyspace.META, b"k\0", b"z", 10)

    assert MemoryEngine().transact(run) == []


# ── what was met in a run that was thrown away ───────────────────────────────────────────────────────────────────────


def test_a_queues_number_from_a_run_thrown_away_is_not_believed() -> None:
    """The first run for `second` gives it the number that `first` has; a lease of `first` still ends as its own."""
    clock = ManualClock()
    store = MemoryPlace(StaleEngine).open(clock)
    first, second = store.queue("first"), store.queue("second")
    job_id = first.enqueue(b"1").id
    second.enqueue(b"2")
    first.claim(lease=1)
    clock.advance(1.001)
    assert store.sweep().jobs_back == 1
    assert [d.id for d in first.claim()] == [job_id]
    assert [d.payload for d in second.claim()] == [b"2"]
    assert store.check().clean


def test_event_numbers_have_no_gap_after_a_run_thrown_away() -> None:
    store = MemoryPlace(StaleEngine).open(ManualClock())
    queue = store.queue("work")
    for size in (1, 5, 2, 1, 3):
        queue.enqueue_many([b"x"] * size)
        queue.ack_many(queue.claim(limit=size - 1 or 1))
    numbers = [event.number for event in store.events()]
    assert all(after == before + 1 for before, after in pairwise(numbers))
    assert store.check().clean


def test_the_time_does_not_go_back_with_a_run_thrown_away() -> None:
    clock = ManualClock()
    store = MemoryPlace(StaleEngine).open(clock)
    queue = store.queue("work")
    for step in (0.0, 5.0, 0.001):
        clock.advance(step)
        clock.step(-3600)
        queue.enqueue_many([b"x"] * 3)
    times = [event.time_ms for event in store.events()]
    assert times == sorted(times)


def test_a_duplicate_that_would_be_a_queues_first_job_with_a_group() -> None:
    """Found by the simulation (seed 171): the transaction read the queue's row, which it had marked as one with groups."""
    store = MemoryPlace(TwiceEngine).open(ManualClock())
    queue = store.queue("work")
    first = queue.enqueue(b"x", key="k")
    again = queue.enqueue(NewJob(b"x", key="k", group="g"))
    assert (again.id, again.duplicate) == (first.id, True)
    assert store.check().clean


def test_reruns_are_real() -> None:
    """A guard for this file: the stores above do run on the rerunning engines."""
    store = RerunHarness(TwiceEngine).open(clock=ManualClock())
    store.queue("work").enqueue(b"x")
    assert engine_of(store).reruns >= 2
    store.close()
