"""The fixtures of every test (a store on a clock, closed and checked at the end), and helper functions."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import TypeVar

import pytest

from tenure.api.claim import Claim
from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.api.trace_check import specification_findings
from tenure.clock import ManualClock
from tenure.errors import TenureError
from tenure.model.event import Event
from tenure.model.job import Job, QueueInfo
from tenure.model.lease import Delivery
from tenure.model.retry import Backoff, Policy
from tenure.model.specification import departure
from tenure.testing.conformance.approximate import WHY as APPROXIMATE
from tenure.testing.harness import Harness

T = TypeVar("T")

#: The timeout, in real seconds, for something that must happen.
PATIENCE = 60.0
#: How long to wait, in real seconds, for something that must not happen.
MOMENT = 0.06

PROMPT = Policy(backoff=Backoff.fixed(0))
"""A failed job is ready again at once."""

KEEPING = Policy(retention=3600, backoff=Backoff.fixed(0))
"""Done jobs stay for an hour."""


class World:
    """A harness, the clock of its stores (None: the machine's), and the store that is open now."""

    def __init__(self, harness: Harness, clock: ManualClock | None, *, quick: bool) -> None:
        self.harness = harness
        self.clock = clock
        self._quick = quick
        self.store = self._open()

    def _open(self, sweep: bool = False) -> Store:
        return self.harness.open(clock=self.clock, sweep=sweep, quick=self._quick)

    def queue(self, name: str = "work", tenant: str = "default", policy: Policy | None = None) -> Queue:
        queue = self.store.queue(name, tenant=tenant)
        if policy is not None:
            queue.configure(policy)
        return queue

    def reopen(self, *, sweep: bool = False) -> Store:
        """Close the store and open its data again; skips the test if the store is not persistent."""
        self.close()
        self.store = self._open(sweep)
        return self.store

    def close(self) -> None:
        """Close the store until `reopen`; skips the test if the store is not persistent."""
        if not self.harness.persistent:
            pytest.skip("this store keeps nothing")
        self.store.close()

    def finish(self) -> None:
        """The end of every test: the invariants hold, and no job was lost or invented."""
        try:
            assert_sound(self.store)
        finally:
            self.store.close()


@pytest.fixture
def world(harness: Harness, request: pytest.FixtureRequest) -> Iterator[World]:
    """A store on a manual clock if it takes one, at a fast durability."""
    yield from _for_a_test(World(harness, ManualClock() if harness.manual_clock else None, quick=True), request)


@pytest.fixture
def live(harness: Harness, request: pytest.FixtureRequest) -> Iterator[World]:
    """A store on the machine's clock, at its default durability, for races of threads and processes."""
    yield from _for_a_test(World(harness, None, quick=False), request)


def _for_a_test(made: World, request: pytest.FixtureRequest) -> Iterator[World]:
    why = APPROXIMATE.get(request.function.__name__)
    split = made.store.traits.order != "strict" and made.store.traits.journal == "queue"
    if why is not None and split:
        made.store.close()
        pytest.skip(why)
    yield made
    made.finish()
    made.harness.destroy()


@pytest.fixture
def store(world: World) -> Store:
    return world.store


@pytest.fixture
def queue(world: World) -> Queue:
    return world.queue()


@pytest.fixture
def clock(world: World) -> ManualClock:
    if world.clock is None:
        pytest.skip("this store takes no manual clock")
    return world.clock


def assert_sound(store: Store) -> None:
    report = store.check()
    assert report.clean, "check() found:\n" + "\n".join(
        f"  {f.rule}: {f.detail} (queue {f.queue}, job {f.job_id})" for f in report.findings
    )
    for info in store.queues():
        n = info.counts
        assert n.enqueued == n.waiting + n.blocked + n.leased + n.done + n.dead + n.removed, f"{info.queue}: {n}"
        assert min(n.ready, n.scheduled, n.leased, n.done, n.dead, n.enqueued, n.removed) >= 0, f"{info.queue}: {n}"
    if report.events <= 5_000:  # covers almost every test, and stays fast
        departed = specification_findings(store.backend)
        assert not departed, f"the journal departs from the specification: {departed[0].detail}"


def journals(store: Store) -> list[list[Event]]:
    """The events of each journal: one of the whole store, or one of each queue."""
    told = all_events(store)
    if store.traits.journal == "store":
        return [told]
    queues: dict[tuple[str, str], list[Event]] = {}
    for event in told:
        queues.setdefault((event.tenant, event.queue), []).append(event)
    return list(queues.values())


def assert_valid_journal(events: Sequence[Event], *, dense: bool = True) -> None:
    """Assert that the specification allows the journal: no gap, and every event may follow the one before it.

    `dense`: it is one journal; a partitioned queue has several, each with its own numbers.
    """
    departed = departure(events, dense=dense)
    assert departed is None, f"the journal departs from the specification: {departed}"


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def all_events(store: Store) -> list[Event]:
    """The journal from the oldest event kept."""
    found: list[Event] = []
    page = store.events(limit=500)
    while page.events:
        found += page.events
        page = store.events(after=page.cursor, limit=500)
    return found


def job_events(queue: Queue, job_id: str) -> list[Event]:
    """A job's events, oldest first."""
    told: list[Event] = queue.timeline(job_id)
    return told


def event_types(queue: Queue, job_id: str) -> list[str]:
    """The types of a job's events, oldest first."""
    return [event.type for event in job_events(queue, job_id)]


def seen(queue: Queue, job_id: str) -> Job:
    """The job, which must exist."""
    job = queue.get(job_id)
    assert job is not None, f"job {job_id} is not there"
    return job


def footprint(store: Store) -> tuple[list[Event], list[QueueInfo]]:
    """Everything that a write changes: the journal, and every queue's settings and counts."""
    return all_events(store), store.queues()


@contextlib.contextmanager
def nothing_written(store: Store) -> Iterator[None]:
    before = footprint(store)
    yield
    assert footprint(store) == before


def each_of(call: Callable[..., object], values: Iterable[object]) -> list[Callable[[], object]]:
    """One call with each of these values, for `must_refuse`."""
    return [partial(call, value) for value in values]


def must_refuse(store: Store, error: type[TenureError], calls: Iterable[Callable[[], object]]) -> None:
    """Assert that each call raises the error and writes nothing. Reports all that do not, by their index."""
    wrong: list[str] = []
    with nothing_written(store):
        for place, call in enumerate(calls):
            try:
                answer = call()
            except error:
                continue
            except Exception as other:
                wrong.append(f"call {place} raised {other!r}")
            else:
                wrong.append(f"call {place} returned {answer!r}")
    assert not wrong, f"instead of {error.__name__}: " + "; ".join(wrong)


# ── doing ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def fill(queue: Queue, count: int) -> list[str]:
    """Enqueue that many jobs in one batch. Returns their ids in order."""
    return [e.id for e in queue.enqueue_many([b"%d" % n for n in range(count)])]


def ids(deliveries: Iterable[Delivery]) -> list[str]:
    return [delivery.id for delivery in deliveries]


def claim_all(queue: Queue, limit: int) -> list[Delivery]:
    """Claim up to `limit` jobs: in one claim, or several if a transaction is limited to fewer."""
    found: list[Delivery] = []
    while len(found) < limit and (claim := queue.claim(limit=limit - len(found))):
        found += claim
    return found


def claimed(queue: Queue, lease: float | None = None, worker: str = "") -> Delivery:
    """Claim one job, which must exist."""
    claim = queue.claim(lease=lease, worker=worker)
    assert len(claim) == 1, f"expected a job to claim, got {len(claim)}"
    return claim[0]


def kill(queue: Queue, count: int, error: str = "broken") -> list[str]:
    """Enqueue that many jobs and fail each. Returns their ids."""
    fill(queue, count)
    dead: list[str] = []
    while claim := queue.claim(limit=1000):
        for delivery in claim:
            queue.fail(delivery, error)
            dead.append(delivery.id)
    return dead


def sweep_all(store: Store) -> None:
    """Sweep until nothing is due."""
    for _ in range(1000):
        if not store.sweep().more:
            return
    raise AssertionError("sweep() always says there is more")


# ── at the same time ─────────────────────────────────────────────────────────────────────────────────────────────────


def begin(work: Callable[[], T]) -> Future[T]:
    """Run in a daemon thread, which cannot keep the test run from ending."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def together(works: Sequence[Callable[[], T]]) -> list[T]:
    """Run all at the same time, started by one signal. Returns their results in order."""
    barrier = threading.Barrier(len(works))

    def started(work: Callable[[], T]) -> Callable[[], T]:
        def run() -> T:
            barrier.wait(PATIENCE)
            return work()

        return run

    futures = [begin(started(work)) for work in works]
    return [future.result(PATIENCE * 4) for future in futures]


def waiting(queue: Queue, seconds: float = 60, limit: int = 1, lease: float = 30) -> Future[Claim]:
    """A claim in another thread that has begun to wait."""
    future = begin(lambda: queue.claim(limit=limit, lease=lease, wait=seconds))
    time.sleep(MOMENT)
    return future


def still_waiting(future: Future[T]) -> bool:
    """Whether the future is not done after `MOMENT`."""
    time.sleep(MOMENT)
    return not future.done()


def result_when_due(future: Future[T], clock: ManualClock, seconds: float) -> T:
    """Move the clock and return the future's result; move it again if the future began to wait only after that."""
    for _ in range(int(PATIENCE)):
        if wait([future], 1).done:
            break
        clock.advance(seconds)
    return future.result(0)


def eventually(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Whether the condition becomes true within `seconds` of real time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
