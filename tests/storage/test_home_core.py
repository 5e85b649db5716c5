"""The home core: threads that share syncs wait on one core where that is faster, and keep their own cores."""

from __future__ import annotations

import ctypes
import os
import threading
import time

import pytest

from tenure.errors import Unavailable
from tenure.storage import home_core
from tenure.storage.group_commit import _CROWD, GroupCommit
from tenure.storage.home_core import HomeCore, own_cores

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(own_cores()) < 2, reason="needs a choice of cores"
)


def trial(home, commits, seconds):
    """Make one trial, of syncs with that many commits each so many seconds. Returns the home core after it."""
    for _ in range(home_core._TRIAL):
        home.synced(commits, seconds)
    return home.core


def on_home_core(sync):
    """Group commit whose callers are to wait on the core that is returned, from now on."""
    commits = GroupCommit(sync, grouped=True, interval=0)
    commits._crowd = _CROWD
    commits._home.core = min(own_cores())
    return commits, commits._home.core


def in_thread(run):
    """The result of `run` in a thread of its own: pytest's own keeps its cores."""
    results = []
    thread = threading.Thread(target=lambda: results.append(run()))
    thread.start()
    thread.join(20)
    return results[0]


def test_a_caller_waits_on_the_home_core_and_gets_its_cores_back():
    seen = []
    commits, home = on_home_core(lambda: seen.append(os.sched_getaffinity(0)))

    def call():
        commits.applied_to = 1
        commits.wait(1)
        return os.sched_getaffinity(0)

    assert in_thread(call) == os.sched_getaffinity(0)
    assert seen == [{home}]


def test_a_caller_gets_its_cores_back_from_a_failed_sync():
    def sync():
        raise Unavailable("the disk is gone")

    commits, _ = on_home_core(sync)

    def call():
        commits.applied_to = 1
        with pytest.raises(Unavailable):
            commits.wait(1)
        return os.sched_getaffinity(0)

    assert in_thread(call) == os.sched_getaffinity(0)


def test_an_interrupted_caller_gets_its_cores_back():
    waits, may_end = threading.Event(), threading.Event()
    cores: list[set[int]] = []

    def sync():
        waits.set()
        may_end.wait(20)

    def call():
        try:
            commits.wait(1)
        except KeyboardInterrupt:
            cores.append(os.sched_getaffinity(0))

    commits, home = on_home_core(sync)
    commits.applied_to = 1
    thread = threading.Thread(target=call)
    thread.start()
    assert waits.wait(20)
    assert thread.native_id is not None
    assert thread.ident is not None
    assert os.sched_getaffinity(thread.native_id) == {home}
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))
    may_end.set()
    thread.join(20)
    assert cores == [os.sched_getaffinity(0)]


def test_a_thread_that_may_not_run_on_the_home_core_stays_on_its_own():
    seen = []
    commits, home = on_home_core(lambda: seen.append(os.sched_getaffinity(0)))
    elsewhere = set(own_cores()) - {home}

    def call():
        os.sched_setaffinity(0, elsewhere)
        commits.applied_to = 1
        commits.wait(1)
        return os.sched_getaffinity(0)

    assert in_thread(call) == elsewhere
    assert seen == [elsewhere]


def test_cores_that_a_waiting_thread_is_given_meanwhile_stay():
    """`taskset` on a running process."""
    elsewhere = {max(own_cores())}
    commits, home = on_home_core(lambda: os.sched_setaffinity(0, elsewhere))
    assert home not in elsewhere

    def call():
        commits.applied_to = 1
        commits.wait(1)
        return os.sched_getaffinity(0)

    assert in_thread(call) == elsewhere


def test_a_few_callers_wait_on_any_core():
    seen = []
    commits, _ = on_home_core(lambda: seen.append(os.sched_getaffinity(0)))
    commits._crowd = _CROWD - 1
    commits.applied_to = 1
    commits.wait(1)
    assert seen == [os.sched_getaffinity(0)]


def test_the_faster_way_is_kept_and_the_other_tried_again():
    home = HomeCore()
    assert trial(home, 8, 0.002) is not None, "the home core is tried"
    for _ in range(home_core._KEPT):
        assert trial(home, 8, 0.001) is not None, "it was faster"
    assert trial(home, 8, 0.001) is None, "the other way is tried again"
    for _ in range(home_core._KEPT):
        assert trial(home, 8, 0.0005) is None, "this time it was faster"
    assert trial(home, 8, 0.0005) is not None


def test_pauses_of_the_callers_do_not_count():
    home = HomeCore()
    assert trial(home, 8, 60.0) is None, "no trial has ended"
    trial(home, 8, 0.001)
    home.synced(8, 60.0)
    assert trial(home, 8, 0.002) is None, "without a home core commits were twice as fast, if the pause is not counted"


def test_eight_threads_try_both_ways_and_keep_their_cores():
    seen, after = set(), set()

    def sync():
        seen.add(len(os.sched_getaffinity(0)))
        time.sleep(0.0005)

    commits = GroupCommit(sync, grouped=True, interval=0)
    lock = threading.Lock()
    until = time.monotonic() + 20

    def run():
        while len(seen) < 2 and time.monotonic() < until:
            with lock:
                commits.applied_to = version = commits.applied_to + 1
            commits.wait(version)
            after.add(frozenset(os.sched_getaffinity(0)))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == {1, len(own_cores())}
    assert after == {frozenset(os.sched_getaffinity(0))}
