"""Group sync: everyone is served, whoever fails or goes away."""

from __future__ import annotations

import functools
import threading
import time
from typing import Any

import pytest

from tenure.errors import Unavailable
from tenure.storage.group_commit import Syncer, _Waiter


class Disk:
    """A sync that waits to be let through, and may fail."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.fails: BaseException | None = None

    def sync(self) -> None:
        self.begun.release()
        self.may_end.acquire()
        if self.fails is not None:
            raise self.fails


def committer(syncer, version, told):
    def run():
        try:
            syncer.wait(version)
            told.append(version)
        except BaseException as exc:
            told.append((version, type(exc)))

    syncer.applied(version)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def settled(syncer, count):
    """Until so many stand in line."""
    while len(syncer._waiting) < count:
        threading.Event().wait(0.001)


def test_those_who_come_during_a_sync_are_served_by_the_next_one():
    told: list[Any] = []
    disk = Disk()
    syncer = Syncer(disk.sync, grouped=True, interval=0)
    threads = [committer(syncer, 1, told)]
    assert disk.begun.acquire(timeout=10)
    threads += [committer(syncer, version, told) for version in range(2, 20)]
    settled(syncer, 18)
    disk.may_end.release()
    threads[0].join(10)
    assert told == [1]
    assert disk.begun.acquire(timeout=10)
    disk.may_end.release()
    for thread in threads:
        thread.join(10)
    assert sorted(told) == list(range(1, 20))
    assert syncer.syncs == 2


def test_a_failed_sync_is_told_to_all_and_for_ever():
    told: list[Any] = []
    disk = Disk()
    syncer = Syncer(disk.sync, grouped=True, interval=0)
    threads = [committer(syncer, 1, told)]
    assert disk.begun.acquire(timeout=10)
    threads += [committer(syncer, version, told) for version in (2, 3)]
    settled(syncer, 2)
    disk.fails = Unavailable("the disk is gone")
    disk.may_end.release()
    for thread in threads:
        thread.join(10)
    assert sorted(told) == [(1, Unavailable), (2, Unavailable), (3, Unavailable)]
    with pytest.raises(Unavailable, match="the disk is gone"):
        syncer.wait(syncer.applied(4))


def test_a_leader_that_is_interrupted_promises_nothing_and_leaves_nobody_waiting():
    told: list[Any] = []
    disk = Disk()
    syncer = Syncer(disk.sync, grouped=True, interval=0)
    threads = [committer(syncer, 1, told)]
    assert disk.begun.acquire(timeout=10)
    threads += [committer(syncer, 2, told)]
    settled(syncer, 1)
    disk.fails = KeyboardInterrupt()
    disk.may_end.release()
    threads[0].join(10)
    assert told == [(1, KeyboardInterrupt)]
    assert disk.begun.acquire(timeout=10)  # the other leads now
    disk.fails = None
    disk.may_end.release()
    threads[1].join(10)
    assert told[1:] == [2]
    syncer.wait(1)  # covered by the second


class Interrupted:
    """A lock whose sleeper is interrupted at a moment of the test's choosing."""

    def __init__(self, when: threading.Event) -> None:
        self._when = when

    def acquire(self) -> bool:
        assert self._when.wait(10)
        raise KeyboardInterrupt

    def release(self) -> None:
        pass


def interrupted(version: int, when: threading.Event) -> _Waiter:
    waiter = _Waiter(version)
    waiter.lock = Interrupted(when)  # type: ignore[assignment]
    return waiter


@pytest.mark.parametrize("chosen", [True, False])
def test_a_waiter_that_is_interrupted_leaves_the_line_or_hands_the_lead_on(chosen):
    told: list[Any] = []
    disk = Disk()
    syncer = Syncer(disk.sync, grouped=True, interval=0)
    first = committer(syncer, 1, told)
    assert disk.begun.acquire(timeout=10)
    now = threading.Event()
    waiter = interrupted(2, now)
    syncer.applied(2)
    syncer._waiting.append(waiter)
    left: list[object] = []

    def sleep():
        try:
            syncer._sleep(waiter)
        except KeyboardInterrupt:
            left.append("interrupted")

    sleeper = threading.Thread(target=sleep, daemon=True)
    sleeper.start()
    last = committer(syncer, 3, told)
    settled(syncer, 2)
    if not chosen:
        now.set()
        sleeper.join(10)
    disk.may_end.release()
    first.join(10)
    if chosen:  # it was woken to lead the next sync, and never does
        now.set()
        sleeper.join(10)
    assert left == ["interrupted"]
    assert disk.begun.acquire(timeout=10)
    disk.may_end.release()
    last.join(10)
    assert told == [1, 3]


def test_a_waiter_that_is_interrupted_in_the_row_still_wakes_the_next():
    told: list[Any] = []
    disk = Disk()
    syncer = Syncer(disk.sync, grouped=True, interval=0)
    threads = [committer(syncer, 1, told)]
    assert disk.begun.acquire(timeout=10)
    threads.append(committer(syncer, 2, told))
    settled(syncer, 1)
    now = threading.Event()
    for version in (3, 4):
        syncer.applied(version)
        syncer._waiting.append(interrupted(version, now))
    fourth = syncer._waiting[2]
    sleepers = [
        threading.Thread(target=pytest.raises, args=(KeyboardInterrupt, syncer._sleep, waiter), daemon=True)
        for waiter in syncer._waiting[1:]
    ]
    for sleeper in sleepers:
        sleeper.start()
    threads += [committer(syncer, version, told) for version in (5, 6)]
    settled(syncer, 5)
    disk.may_end.release(2)
    assert disk.begun.acquire(timeout=10)  # the second leads, and serves the rest
    threads[1].join(10)
    assert sorted(told) == [1, 2], "those behind the interrupted are not reached before they pass on"
    now.set()
    for thread in (*sleepers, *threads):
        thread.join(10)
    assert sorted(told) == [1, 2, 5, 6]
    assert fourth.next is None
    assert syncer.syncs == 2


def test_after_a_crowd_the_next_sync_waits_for_it_and_not_for_long():
    syncer = Syncer(lambda: time.sleep(0.001), grouped=True, interval=0)
    for version in range(1, 4):
        syncer.wait(syncer.applied(version))
    syncer._crowd, syncer._took = 10, 60.0
    began = time.monotonic()
    syncer.wait(syncer.applied(4))  # nobody else comes
    assert time.monotonic() - began < 30
    assert syncer._crowd == 0, "and so nobody is waited for the next time"


def test_what_is_deferred_is_told_of_once_it_is_durable():
    disk = Disk()
    syncer = Syncer(disk.sync, grouped=True, interval=1)

    def verb(version):
        syncer.applied(version)
        syncer.wait(version)  # as an engine does
        return f"answer {version}"

    told: list[int] = []
    all_told = threading.Event()

    def tell(version: int) -> None:
        told.append(version)
        if version == 3:
            all_told.set()

    for version in (1, 2, 3):
        assert syncer.deferring(functools.partial(verb, version)) == (f"answer {version}", version)
        syncer.then(version, functools.partial(tell, version))
        if version == 1:
            assert disk.begun.acquire(timeout=10)
    assert told == [], "the first sync has not ended"
    disk.may_end.release(2)  # the second is for all that came meanwhile
    assert all_told.wait(10)
    assert told == [1, 2, 3]
    assert syncer.syncs == 2
    assert syncer.deferring(lambda: "no commit") == ("no commit", 0)
    for version in (1, 2, 3):
        syncer.wait(version)
    syncer.stop()


def test_what_is_deferred_and_fails_is_told_of_too():
    disk = Disk()
    disk.fails = Unavailable("full")
    syncer = Syncer(disk.sync, grouped=True, interval=1)
    syncer.applied(1)
    assert syncer.deferring(lambda: syncer.wait(1)) == (None, 1)
    told = threading.Event()
    syncer.then(1, told.set)
    disk.may_end.release()
    assert told.wait(10)
    with pytest.raises(Unavailable):
        syncer.wait(1)
    syncer.stop()


def test_the_background_sync_outlives_errors_that_may_pass():
    syncs = threading.Semaphore(0)
    tries = 0

    def sync() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError(24, "Too many open files")
        syncs.release()

    syncer = Syncer(sync, grouped=False, interval=0.001)
    syncer.applied(1)
    assert syncs.acquire(timeout=10), "its thread has ended"
    syncer.stop()


def test_one_who_fails_when_told_keeps_nobody_else_from_being_told():
    syncer = Syncer(lambda: None, grouped=True, interval=1)
    told = threading.Event()

    def fail() -> None:
        raise OSError(24, "Too many open files")

    syncer.then(syncer.applied(1), fail)
    syncer.then(syncer.applied(2), told.set)
    assert told.wait(10)
    syncer.stop()
