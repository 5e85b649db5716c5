"""Group commit: every caller gets its answer, also if other callers fail or are interrupted."""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from typing import Any

import pytest

from tenure.errors import KeyConflict, Unavailable
from tenure.storage.group_commit import GroupCommit


class Disk:
    """A sync that blocks until the test releases it, and may fail."""

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
    """Imitates an engine that has written a commit. Returns the version to wait for."""
    commits.applied_to = version
    return version


def committer(commits, version, answers):
    def run():
        try:
            commits.wait(version)
            answers.append(version)
        except BaseException as exc:
            answers.append((version, type(exc)))

    applied(commits, version)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def settled(threads):
    """Wait until these threads block at the running sync's lock; there is no event for it."""
    time.sleep(0.05)
    assert all(thread.is_alive() for thread in threads)


def test_commits_during_a_sync_are_covered_by_the_next():
    answers: list[Any] = []
    disk = Disk()
    commits = GroupCommit(disk.sync, grouped=True, interval=0)
    threads = [committer(commits, 1, answers)]
    assert disk.begun.acquire(timeout=10)
    threads += [committer(commits, version, answers) for version in range(2, 20)]
    settled(threads)
    disk.may_end.release()
    threads[0].join(10)
    assert answers == [1]
    assert disk.begun.acquire(timeout=10)
    disk.may_end.release()
    for thread in threads:
        thread.join(10)
    assert sorted(answers) == list(range(1, 20))
    assert commits.syncs == 2


def test_all_waiting_and_later_callers_get_the_error_of_a_failed_sync():
    answers: list[Any] = []
    disk = Disk()
    commits = GroupCommit(disk.sync, grouped=True, interval=0)
    threads = [committer(commits, 1, answers)]
    assert disk.begun.acquire(timeout=10)
    threads += [committer(commits, version, answers) for version in (2, 3)]
    settled(threads)
    disk.fails = Unavailable("the disk is gone")
    disk.may_end.release()
    for thread in threads:
        thread.join(10)
    assert sorted(answers) == [(1, Unavailable), (2, Unavailable), (3, Unavailable)]
    with pytest.raises(Unavailable, match="the disk is gone"):
        commits.wait(applied(commits, 4))


def test_an_interrupted_leader_leaves_no_caller_waiting():
    answers: list[Any] = []
    disk = Disk()
    commits = GroupCommit(disk.sync, grouped=True, interval=0)
    threads = [committer(commits, 1, answers)]
    assert disk.begun.acquire(timeout=10)
    threads += [committer(commits, 2, answers)]
    settled(threads)
    disk.fails = KeyboardInterrupt()
    disk.may_end.release()
    threads[0].join(10)
    assert answers == [(1, KeyboardInterrupt)]
    assert disk.begun.acquire(timeout=10)  # the other leads now
    disk.fails = None
    disk.may_end.release()
    threads[1].join(10)
    assert answers[1:] == [2]
    commits.wait(1)  # the second sync covers it


def test_an_interrupted_waiter_does_not_block_others():
    answers: list[Any] = []
    disk = Disk()
    commits = GroupCommit(disk.sync, grouped=True, interval=0)
    threads = [committer(commits, 1, answers)]
    assert disk.begun.acquire(timeout=10)
    threads += [committer(commits, version, answers) for version in (2, 3, 4)]
    settled(threads)
    for thread in threads[1:3]:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))
    disk.may_end.release(2)
    for thread in threads:
        thread.join(10)
    assert answers[0] == 1
    assert sorted(answers[1:], key=str) == [(2, KeyboardInterrupt), (3, KeyboardInterrupt), 4]
    disk.may_end.release()
    commits.wait(applied(commits, 5))


def test_after_many_commits_the_next_sync_waits_briefly_for_their_callers():
    commits = GroupCommit(lambda: time.sleep(0.001), grouped=True, interval=0)
    for version in range(1, 4):
        commits.wait(applied(commits, version))
    commits._crowd, commits._took = 10, 60.0
    began = time.monotonic()
    commits.wait(applied(commits, 4))  # no other caller comes
    assert time.monotonic() - began < 30
    assert commits._crowd == 1, "so the next sync does not wait for others"


def test_a_sync_begins_before_it_is_checked_unless_it_waits_for_other_callers():
    steps: list[str] = []

    def step(name):
        return lambda: steps.append(name)

    commits = GroupCommit(step("sync"), grouped=True, interval=0, check=step("check"), begin=step("begin"))
    commits.wait(applied(commits, 1))
    commits._crowd = 10
    commits.wait(applied(commits, 2))
    assert steps == ["begin", "check", "sync", "check", "sync"]


def test_a_callback_runs_once_its_commit_is_durable():
    disk = Disk()
    commits = GroupCommit(disk.sync, grouped=True, interval=1)

    def verb(version):
        applied(commits, version)
        commits.wait(version)  # as an engine does
        return f"answer {version}"

    answers: list[int] = []
    all_called = threading.Event()

    def tell(version: int) -> None:
        answers.append(version)
        if version == 3:
            all_called.set()

    for version in (1, 2, 3):
        assert commits.deferring(functools.partial(verb, version)) == (f"answer {version}", version)
        commits.call_when_durable(version, functools.partial(tell, version))
        if version == 1:
            assert disk.begun.acquire(timeout=10)
    assert answers == [], "the first sync has not ended"
    disk.may_end.release(2)  # the second sync covers all that came meanwhile
    assert all_called.wait(10)
    assert answers == [1, 2, 3]
    assert commits.syncs == 2
    assert commits.deferring(lambda: "no commit") == ("no commit", 0)
    assert commits.deferring(functools.partial(verb, 3)) == ("answer 3", 0), "it is durable"
    for version in (1, 2, 3):
        commits.wait(version)
    commits.stop()


def test_an_error_waits_for_the_commits_that_it_depends_on():
    commits = GroupCommit(lambda: None, grouped=True, interval=1)

    def refused():
        commits.wait(applied(commits, 1))  # as an engine does before it raises
        raise KeyConflict(0, "key", "there")

    with pytest.raises(KeyConflict):
        commits.deferring(refused)
    assert commits.syncs == 1
    commits.wait(applied(commits, 2))
    assert commits.syncs == 2, "the thread waits for its commits again"


def test_a_callback_runs_also_if_its_sync_fails():
    disk = Disk()
    disk.fails = Unavailable("full")
    commits = GroupCommit(disk.sync, grouped=True, interval=1)
    applied(commits, 1)
    assert commits.deferring(lambda: commits.wait(1)) == (None, 1)
    answers = threading.Event()
    commits.call_when_durable(1, answers.set)
    disk.may_end.release()
    assert answers.wait(10)
    with pytest.raises(Unavailable):
        commits.wait(1)
    commits.stop()


def test_the_background_sync_continues_after_errors():
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


def test_a_callback_that_raises_does_not_block_others():
    commits = GroupCommit(lambda: None, grouped=True, interval=1)
    answers = threading.Event()

    def fail() -> None:
        raise OSError(24, "Too many open files")

    commits.call_when_durable(applied(commits, 1), fail)
    commits.call_when_durable(applied(commits, 2), answers.set)
    assert answers.wait(10)
    commits.stop()


class StallingEvent(threading.Event):
    """`set` blocks its caller until the waiting thread has done its work."""

    def __init__(self, done: threading.Event) -> None:
        super().__init__()
        self._done = done

    def set(self) -> None:
        super().set()
        assert self._done.wait(60)


def test_a_stalled_caller_does_not_block_the_sync_of_later_commits():
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
            assert time.monotonic() < until, "it is not synced"
            time.sleep(0.001)
    commits.stop()
