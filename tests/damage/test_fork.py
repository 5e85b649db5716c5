"""Forks: the child's copy of a store answers StoreClosed, whatever its parent was doing, and the parent goes on."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tenure
from tenure.api.store import Store
from tenure.backends.owner.event_loop import EventLoop
from tenure.errors import OpenError, StoreClosed
from tenure.testing.conformance.world import assert_sound
from tenure.testing.harness import driver_of

PATIENCE = 50.0
engines = pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
# Python warns of every fork beside threads: that is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


@pytest.fixture
def store(engine: str, tmp_path: Path) -> Iterator[Store]:
    with tenure.open(f"{engine}:{tmp_path / 'data'}", sweep=False) as opened:
        yield opened
        assert_sound(opened)


def in_child(work: Callable[[], None]) -> int:
    """Run it in a fork; the exit code (0 if it returned), or minus the signal it was ended with for hanging."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            faulthandler.dump_traceback_later(PATIENCE - 3, exit=False)
            work()
            code = 0
        finally:
            os._exit(code)
    until = time.monotonic() + PATIENCE
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return -signal.SIGKILL
        time.sleep(0.002)


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(StoreClosed, match="fork"):
        call()


def everything_refused(store: Store) -> None:
    queue = store.queue("work")
    for call in (
        lambda: queue.enqueue(b"child"),
        lambda: queue.claim(),
        lambda: queue.get("0" * 32),
        lambda: queue.counts(),
        lambda: queue.list("ready"),
        lambda: store.events(),
        lambda: store.queues(),
        lambda: store.check(),
        lambda: store.sweep(),
    ):
        refused(call)
    store.close()  # harms nobody


@engines
def test_a_child_is_refused_and_the_parent_goes_on(store: Store) -> None:
    queue = store.queue("work")
    made = queue.enqueue(b"before").id
    assert in_child(lambda: everything_refused(store)) == 0
    queue.ack(queue.claim()[0])
    assert queue.get(made) is None
    queue.enqueue(b"after")


@engines
def test_forked_while_threads_are_at_work(store: Store) -> None:
    """Whatever lock a thread held at that moment, the child has no thread that would let go of it."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        queue = store.queue(f"work-{number % 2}")
        try:
            while not stop.is_set():
                queue.enqueue(b"x" * 200)
                for delivery in queue.claim(limit=3):
                    queue.ack(delivery)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        codes = [in_child(lambda: everything_refused(store)) for _ in range(25)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert codes == [0] * 25
    assert failures == []


def test_forked_while_a_thread_is_in_the_gate_of_lmdb(tmp_path: Path) -> None:
    """No verb of the child waits for that thread, which is not there."""
    with tenure.open(f"lmdb:{tmp_path / 'data'}", sweep=False) as store:
        inside, leave = threading.Event(), threading.Event()

        def hold() -> None:
            with driver_of(store)._gate._lock:
                inside.set()
                leave.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait()
        try:
            assert in_child(lambda: everything_refused(store)) == 0
        finally:
            leave.set()
            thread.join()


@engines
def test_a_child_that_drops_the_store_harms_nothing(store: Store) -> None:
    """It ends like any program, and the driver's objects it inherited are taken down."""
    queue = store.queue("work")
    made = [queue.enqueue(b"%d" % n).id for n in range(50)]

    def drop() -> None:
        store.__dict__.clear()
        queue.__dict__.clear()
        gc.collect()

    assert in_child(drop) == 0
    made += [queue.enqueue(b"%d" % n).id for n in range(50)]
    assert [d.id for d in queue.claim(limit=100)] == made


@engines
def test_the_lock_ends_with_its_owner_though_a_child_lives(engine: str, tmp_path: Path) -> None:
    """A child that outlives its parent must not keep the store from the next process."""
    url = f"{engine}:{tmp_path / 'data'}"
    code = (
        "import os, sys, time, tenure\n"
        "store = tenure.open(sys.argv[1], sweep=False)\n"
        "store.queue('work').enqueue(b'kept')\n"
        "if os.fork() == 0:\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(60)\n"
        "os._exit(0)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        owner.wait(PATIENCE)
    try:
        os.kill(child, 0)  # it lives
        with tenure.open(url, sweep=False) as store:
            assert store.queue("work").counts().ready == 1
            assert_sound(store)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_child_of_a_process_that_used_rocksdb_opens_none(tmp_path: Path) -> None:
    """RocksDB's background threads are not there: its first flush would wait for ever. Nothing is made or changed."""
    url = f"rocksdb:{tmp_path / 'data'}"
    with tenure.open(url, sweep=False) as store:
        store.queue("work").enqueue(b"kept")

    def refused() -> None:
        for path in ("data", "new"):
            with pytest.raises(OpenError, match="spawn"):
                tenure.open(f"rocksdb:{tmp_path / path}", sweep=False)
        assert not (tmp_path / "new").exists()
        with tenure.open(f"lmdb:{tmp_path / 'lmdb'}", sweep=False) as other:
            other.queue("work").enqueue(b"another engine")

    assert in_child(refused) == 0
    with tenure.open(url, sweep=False) as store:
        assert store.queue("work").counts().ready == 1

    def joined() -> None:
        with tenure.open(url, sweep=False) as other:
            other.queue("work").enqueue(b"by the owner's socket")

    with tenure.open(url, sweep=False) as store:
        assert in_child(joined) == 0
        assert store.queue("work").counts().ready == 2


def test_a_child_leaves_the_handles_alone_that_a_closed_store_had() -> None:
    """By then they are somebody else's: here, those of pipes."""
    loop = EventLoop(lambda requests: [])
    loop.stop()
    pipes = [os.pipe() for _ in range(8)]

    def use() -> None:
        loop.disown()  # what a listener that is still referred to does after a fork
        for reading, writing in pipes:
            os.write(writing, b"x")
            assert os.read(reading, 1) == b"x"

    assert in_child(use) == 0
    for handle in (handle for pipe in pipes for handle in pipe):
        os.close(handle)


@engines
@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_a_child_ends_like_any_process(engine: str, tmp_path: Path, closed: bool) -> None:
    """By `sys.exit`, so that all that runs when a process ends is run: its exit code is its own."""
    code = (
        "import os, sys, tenure\n"
        "store = tenure.open(sys.argv[1])\n"
        "queue = store.queue('work')\n"
        "queue.enqueue_many([b'x'] * 50)\n"
        "queue.ack(queue.claim()[0])\n"
        "if sys.argv[2] == 'True':\n"
        "    store.close()\n"
        "codes = []\n"
        "for number in range(20):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        print('child', number)\n"
        "        sys.exit(number)\n"
        "    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
        "print(*codes)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, f"{engine}:{tmp_path / 'data'}", str(closed)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    *said, codes = done.stdout.splitlines()
    assert codes.split() == [str(number) for number in range(20)]
    assert said == [f"child {number}" for number in range(20)], "what it printed is written out"
