"""Watches: a server is notified when it is worth looking again, and no watch outlives its store."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tenure import ManualClock, StoreClosed, Unavailable
from tenure.api.store import Store
from tenure.backends.embedded import EmbeddedBackend
from tenure.model.names import JobName, QueueName
from tenure.queueing.core import Core
from tenure.queueing.watches import EngineWatchSource, WatchThread
from tenure.storage.engines.memory import MemoryEngine

NAME = QueueName("default", "q")
PATIENCE = 20


class Notified:
    """Counts the calls of `notify`."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = threading.Condition()

    def __call__(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def reaches(self, count: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.count >= count, PATIENCE)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine() -> MemoryEngine:
    return MemoryEngine()


@pytest.fixture
def store(clock: ManualClock, engine: MemoryEngine) -> Iterator[Store]:
    made = Store(EmbeddedBackend(engine, "memory:", clock))
    yield made
    made.close()


def test_the_first_in_line_is_notified_when_a_job_becomes_due(store: Store, clock: ManualClock) -> None:
    store.queue("q").enqueue(b"x", delay=5)
    first, second = Notified(), Notified()
    watch = store.backend.watch([NAME], 60_000, first)
    other = store.backend.watch([NAME], 60_000, second)
    clock.advance(4.999)
    assert first.count == 0
    clock.advance(0.001)
    assert first.reaches(1)
    assert second.count == 0
    watch.close()
    assert second.reaches(1)  # it leads now, and looks again
    other.close()


def test_a_watch_is_notified_at_its_deadline_and_not_when_it_was_closed(store: Store, clock: ManualClock) -> None:
    kept, closed = Notified(), Notified()
    watch = store.backend.watch([NAME], 3_000, kept)
    gone = store.backend.watch([QueueName("default", "other")], 2_000, closed)
    assert watch.left_ms() == 3_000
    gone.close()
    gone.close()
    gone.again()
    clock.advance(3)
    assert kept.reaches(1)
    assert closed.count == 0
    assert watch.left_ms() == 0
    watch.close()


def test_an_earlier_plan_is_replaced_by_the_next(store: Store, clock: ManualClock) -> None:
    notified = Notified()
    job = store.queue("q").enqueue(b"x", delay=5)
    watch = store.backend.watch([NAME], 60_000, notified)
    store.queue("q").cancel(job.id)
    watch.again()
    before = notified.count
    clock.advance(6)
    clock.advance(53)
    assert notified.count == before
    clock.advance(1)
    assert notified.reaches(before + 1)
    watch.close()


def test_the_end_of_a_job_and_an_event_wake_their_lines(store: Store) -> None:
    job = store.queue("q").enqueue(b"x")
    ended, event = Notified(), Notified()
    watches = [
        store.backend.watch([JobName(NAME, bytes.fromhex(job.id))], 60_000, ended),
        store.backend.watch([None], 60_000, event),
    ]
    claim = store.queue("q").claim()
    assert event.reaches(1)
    assert ended.count == 0
    store.queue("q").ack(claim[0])
    assert ended.reaches(1)
    for watch in watches:
        watch.close()


def test_a_closed_store_notifies_its_watches_and_takes_no_more(store: Store) -> None:
    notified = Notified()
    watch = store.backend.watch([NAME], 60_000, notified)
    store.close()
    assert notified.reaches(1)
    with pytest.raises(StoreClosed):
        store.backend.watch([NAME], 60_000, Notified())
    with pytest.raises(StoreClosed):
        watch.again()
    watch.close()


def test_a_watch_that_cannot_be_planned_leaves_its_line(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise Unavailable("the disk is gone")

    threads = store.backend._watches  # type: ignore[attr-defined]  # it is embedded
    monkeypatch.setattr(threads.store, "next_due", fails)
    with pytest.raises(Unavailable):
        store.backend.watch([NAME], 60_000, Notified())
    assert not threads.store.waiters.lines
    assert not threads._watches


class _Elsewhere(EngineWatchSource):
    """A store that other processes write to: it is polled."""

    seen = 0
    failing = unforeseen = False

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.raised = threading.Event()

    def poll_s(self, journal: bool) -> float | None:
        return 0.001

    def version(self) -> int:
        if self.failing:
            raise Unavailable("not now")
        if self.unforeseen:
            self.raised.set()
            raise MemoryError
        return self.seen


def test_what_other_processes_commit_is_polled_for(store: Store) -> None:
    source = _Elsewhere(store.backend._core)  # type: ignore[attr-defined]  # it is embedded
    source.failing = True
    threads = WatchThread(source)
    leader, behind, event = Notified(), Notified(), Notified()
    watches = [threads.watch([NAME], 60_000, leader), threads.watch([NAME], 60_000, behind)]
    watches.append(threads.watch([None], 60_000, event))
    source.failing = False
    assert leader.reaches(1)
    assert event.reaches(1)
    seen = leader.count
    source.seen = 7
    assert leader.reaches(seen + 1)
    assert behind.count == 0
    for watch in reversed(watches):
        watch.close()
    threads.stop()


def test_an_unforeseen_error_does_not_end_the_watch_thread(store: Store, clock: ManualClock) -> None:
    source = _Elsewhere(store.backend._core)  # type: ignore[attr-defined]  # it is embedded
    source.unforeseen = True
    threads = WatchThread(source)
    notified = Notified()
    watch = threads.watch([None], 60_000, notified)
    assert source.raised.wait(60)
    source.unforeseen = False
    source.seen = 7
    assert notified.reaches(1)
    watch.close()
    threads.stop()


def test_a_timed_sync_is_polled_for_only_where_a_watch_waits_for_events(
    store: Store, engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = EngineWatchSource(store.backend._core)  # type: ignore[attr-defined]  # it is embedded
    assert source.poll_s(journal=True) is None
    monkeypatch.setattr(engine, "durable", lambda: 3)
    assert source.poll_s(journal=True) == 0.02
    assert source.poll_s(journal=False) is None
    assert source.version() == engine.version() + 3


def test_a_forked_child_has_no_watches(store: Store) -> None:
    threads = store.backend._watches  # type: ignore[attr-defined]  # it is embedded
    threads.renew_after_fork()
    with pytest.raises(StoreClosed):
        threads.watch([NAME], 1_000, Notified())


def test_a_notify_that_raises_stops_no_other_watch_and_no_verb(store: Store, clock: ManualClock) -> None:
    def fails() -> None:
        raise RuntimeError("the server's own fault")

    broken = store.backend.watch([NAME], 1_000, fails)
    other, notified = QueueName("default", "other"), Notified()
    sound = store.backend.watch([other], 2_000, notified)
    store.queue("q").enqueue(b"wakes the broken one")
    clock.advance(1.5)  # the watch thread notifies the broken one at its deadline
    clock.advance(1)
    assert notified.reaches(1), "the watch thread has ended"
    broken.close()
    sound.close()
