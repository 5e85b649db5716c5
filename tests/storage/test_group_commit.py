"""Group sync: everyone is served, whoever fails or goes away."""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from typing import Any

import pytest

from tenure.errors import Unavailable
from tenure.storage.group_commit import GroupCommit


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


def applied(commits, version):
    """As an engine that has written a commit; returns what to wait for."""
    commits.applied_to = version
    return version


def committer(commits, version, told):
    def run():
        try:
            commits.wait(version)
            told.append(version)
        except BaseException as exc:
            told.append((version, type(exc)))

    applied(commits, version)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def settled(threads):
    """Until these threads sleep at the gate of the sync that is under way: nothing else tells."""
    time.sleep(0.05)
    assert all(thread.is_alive() for thread in threads)


def test_those_who_come_during_a_sync_are_served_by_the_next_one():
    told: list[Any] = []
    disk = Disk()
    commits = GroupCommit(disk.sync, grouped=True, interval=0)
    threads = [committer(commits, 1, told)]
    assert disk.begun.acquire(timeout=10)
    threads += [committer(commits, version, told) for version in range(2, 20)]
    settled(threads)
    disk.may_end.release()
    threads[0].join(10)
    assert told == [1]
    assert disk.begun.acquire(timeout=10)
    disk.may_end.release()
    for thread in threads:
        thread.join(10)
    assert sorted(told) == list(range(1, 20))
    assert commits.syncs == 2


def test_a_failed_sync_is_told_to_all_and_for_ever():
    told: list[Any] = []
    disk = Disk()
    commits = GroupCommit(disk.sync, grouped=True, interval=0)
    threads = [committer(commits, 1, told)]
    assert disk.begun.acquire(timeout=10)
    threads += [committer(commits, version, told) for version in (2, 3)]
    settled(threads)
    disk.fails = Unavailable("the disk is gone")
    disk.may_end.release()
    for thread in threads:
        thread.join(10)
    assert sorted(told) == [(1, Unavailable), (2, Unavailable), (3, Unavailable)]
    with pytest.raises(Unavailable, match="the disk is gone"):
        commits.wait(applied(commits, 4))


def test_a_leader_that_is_interrupted_promises_nothing_and_leaves_nobody_waiting():
    told: list[Any] = []
    disk = Disk()
    commits = GroupCommit(disk.sync, grouped=True, interval=0)
    threads = [committer(commits, 1, told)]
    assert disk.begun.acquire(timeout=10)
    threads += [committer(commits, 2, told)]
    settled(threads)
    disk.fails = KeyboardInterrupt()
    disk.may_end.release()
    threads[0].join(10)
    assert told == [(1, KeyboardInterrupt)]
    assert disk.begun.acquire(timeout=10)  # the other leads now
    disk.fails = None
    disk.may_end.release()
    threads[1].join(10)
    assert told[1:] == [2]
    commits.wait(1)  # covered by the second


def test_a_waiter_that_is_interrupted_keeps_nobody_from_being_served():
    told: list[Any] = []
    disk = Disk()
    commits = GroupCommit(disk.sync, grouped=True, interval=0)
    threads = [committer(commits, 1, told)]
    assert disk.begun.acquire(timeout=10)
    threads += [committer(commits, version, told) for version in (2, 3, 4)]
    settled(threads)
    for thread in threads[1:3]:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))
    disk.may_end.release(2)
    for thread in threads:
        thread.join(10)
    assert told[0] == 1
    assert sorted(told[1:], key=str) == [(2, KeyboardInterrupt), (3, KeyboardInterrupt), 4]
    disk.may_end.release()
    commits.wait(applied(commits, 5))


def test_after_a_crowd_the_next_sync_waits_for_it_and_not_for_long():
    commits = GroupCommit(lambda: time.sleep(0.001), grouped=True, interval=0)
    for version in range(1, 4):
        commits.wait(applied(commits, version))
    commits._crowd, commits._took = 10, 60.0
    began = time.monotonic()
    commits.wait(applied(commits, 4))  # nobody else comes
    assert time.monotonic() - began < 30
    assert commits._crowd == 1, "and so nobody is waited for the next time"


def test_what_is_deferred_is_told_of_once_it_is_durable():
    disk = Disk()
    commits = GroupCommit(disk.sync, grouped=True, interval=1)

    def verb(version):
        applied(commits, version)
        commits.wait(version)  # as an engine does
        return f"answer {version}"

    told: list[int] = []
    all_told = threading.Event()

    def tell(version: int) -> None:
        told.append(version)
        if version == 3:
            all_told.set()

    for version in (1, 2, 3):
        assert commits.deferring(functools.partial(verb, version)) == (f"answer {version}", version)
        commits.call_when_durable(version, functools.partial(tell, version))
        if version == 1:
            assert disk.begun.acquire(timeout=10)
    assert told == [], "the first sync has not ended"
    disk.may_end.release(2)  # the second is for all that came meanwhile
    assert all_told.wait(10)
    assert told == [1, 2, 3]
    assert commits.syncs == 2
    assert commits.deferring(lambda: "no commit") == ("no commit", 0)
    for version in (1, 2, 3):
        commits.wait(version)
    commits.stop()


def test_what_is_deferred_and_fails_is_told_of_too():
    disk = Disk()
    disk.fails = Unavailable("full")
    commits = GroupCommit(disk.sync, grouped=True, interval=1)
    applied(commits, 1)
    assert commits.deferring(lambda: commits.wait(1)) == (None, 1)
    told = threading.Event()
    commits.call_when_durable(1, told.set)
    disk.may_end.release()
    assert told.wait(10)
    with pytest.raises(Unavailable):
        commits.wait(1)
    commits.stop()


def test_the_background_sync_outlives_errors_that_may_pass():
    syncs = threading.Semaphore(0)
    tries = 0

    def sync() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError(24, "Too many open files")
        syncs.release()

    commits = GroupCommit(sync, grouped=False, interval=0.001)
    applied(commits, 1)
    assert syncs.acquire(timeout=10), "its thread has ended"
    commits.stop()


def test_one_who_fails_when_told_keeps_nobody_else_from_being_told():
    commits = GroupCommit(lambda: None, grouped=True, interval=1)
    told = threading.Event()

    def fail() -> None:
        raise OSError(24, "Too many open files")

    commits.call_when_durable(applied(commits, 1), fail)
    commits.call_when_durable(applied(commits, 2), told.set)
    assert told.wait(10)
    commits.stop()


class StallingEvent(threading.Event):
    """Whoever sets it stands still until the thread that waits for it has done its work."""

    def __init__(self, done: threading.Event) -> None:
        super().__init__()
        self._done = done

    def set(self) -> None:
        super().set()
        assert self._done.wait(60)


def test_a_caller_that_stands_still_does_not_keep_later_commits_from_being_synced():
    synced = threading.Event()
    commits = GroupCommit(synced.set, grouped=True, interval=0)
    commits._unsynced = StallingEvent(synced)
    commits._start(commits._sync_unsynced)
    for version in (1, 2, 3):
        synced.clear()
        applied(commits, version)
        commits.sync_soon()
        until = time.monotonic() + 60
        while commits._durable < version:
            assert time.monotonic() < until, "nobody syncs it"
            time.sleep(0.001)
    commits.stop()
