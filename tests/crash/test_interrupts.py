"""Exceptions raised anywhere inside a verb (Ctrl-C, SIGALRM, a tracing function) leave the store consistent.

Each verb is interrupted repeatedly: by a signal handler at a random time, and by a tracing function at a line of our
code, or after a bytecode at which Python handles signals. Afterwards nothing hangs, `check` finds nothing, and every enqueued job can be claimed. INTERRUPTS sets the number
for each engine and method (the long run: 3,000).
"""

from __future__ import annotations

import dis
import faulthandler
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import tenure
from tenure import ManualClock, NewJob, Policy, Queue, Store

COUNT = int(os.environ.get("INTERRUPTS", "120"))
#: The tests use SIGALRM themselves, and so must not be timed by it.
pytestmark = [
    pytest.mark.timeout(max(300, COUNT), method="thread"),
    # A handler may raise inside a callback of the garbage collector, which can only report it.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
OURS = str(Path(tenure.__file__).parent)
STORES = [("memory", "memory"), ("rocksdb", "os"), ("rocksdb", "disk"), ("lmdb", "disk")]


class Interrupted(BaseException):
    """The exception that interrupts verbs."""


@pytest.fixture(params=STORES, ids=[f"{engine}-{durability}" for engine, durability in STORES])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store, ManualClock]]:
    engine, durability = request.param
    clock = ManualClock()
    url = "memory:" if engine == "memory" else f"{engine}:{tmp_path / 'data'}"
    options: dict[str, Any] = {"listen": False} if engine == "rocksdb" else {}
    with tenure.open(url, durability=durability, clock=clock, sweep=False, **options) as opened:
        opened.queue("kept").configure(Policy(retention=3600, max_waiting=10**6))
        yield opened, clock


def verbs(queue: Queue, kept: Queue) -> list[Callable[[], object]]:
    """One call of each verb."""

    def settled(how: Callable[[Queue, Any], object], limit: int = 1, of: Queue = queue) -> None:
        claim = of.claim(limit=limit, worker="w")
        if claim:
            how(of, claim)

    def each(verb: str, **options: Any) -> Callable[[Queue, Any], None]:
        def settle(of: Queue, claim: Any) -> None:
            for delivery in claim:
                getattr(of, verb)(delivery, **options)

        return settle

    def lengthen(of: Queue, claim: Any) -> None:
        of.extend(claim, 60)
        each("progress", fraction=0.5)(of, claim)
        of.release_many(claim)

    return [
        lambda: queue.enqueue(b"one"),
        lambda: queue.enqueue(b"two", priority=5, headers={"a": "b"}, ttl=10**6),
        lambda: queue.enqueue(b"keyed", key=str(random.random())),
        lambda: queue.enqueue_many([b"%d" % n for n in range(20)]),
        lambda: settled(each("ack")),
        lambda: settled(each("ack"), 4),
        lambda: settled(lambda of, claim: of.ack_many(claim), 20),
        lambda: settled(lambda of, claim: of.release_many(claim), 20),
        lambda: settled(each("nack", error="later", delay=0), 3),
        lambda: settled(each("fail", error="never")),
        lambda: settled(lengthen, 2),
        lambda: kept.enqueue(b"kept"),
        lambda: kept.enqueue_many([NewJob(b"grouped", group=f"g{n}") for n in range(3)]),
        lambda: settled(each("nack", error="later", delay=0), 2, kept),
        lambda: settled(each("ack", result=b"result"), 2, kept),
        lambda: queue.replay(limit=3),
        lambda: queue.counts(),
        lambda: queue.list("ready", limit=5),
    ]


def settle_down(store: Store, clock: ManualClock) -> None:
    """After interrupts: the store is consistent, and each waiting or leased job can be claimed."""
    report = store.check()
    assert report.ok, report.findings[:5]
    clock.advance(120)  # leases of claims whose caller was interrupted
    for name in ("work", "kept"):
        queue = store.queue(name)
        left = queue.counts()
        held = left.waiting + left.leased
        seen: set[str] = set()
        while claim := queue.claim(limit=50):
            seen.update(d.id for d in claim)
            queue.ack_many(claim)
        after = queue.counts()
        assert (after.waiting, after.leased) == (0, 0)
        # A job whose last delivery was the interrupted one is dead; none is lost.
        assert len(seen) + after.dead - left.dead == held
    assert store.check(specification=True).ok


def in_another_thread(act: Callable[[], object]) -> None:
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            ended.append(error)
        else:
            ended.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    if not ended:
        faulthandler.dump_traceback()
    assert ended == [None], ended or "it hangs"


def test_a_signal_handler_raises_at_any_moment(store: tuple[Store, ManualClock]) -> None:
    opened, clock = store
    queue, kept = opened.queue("work"), opened.queue("kept")
    chance = random.Random(20261116)
    hits = 0
    armed = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(4 * COUNT):
            verb = chance.choice(verbs(queue, kept))
            delay = chance.choice([0.00002, 0.00005, 0.0002, 0.001]) * (0.5 + chance.random())
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, delay)
                verb()
            except Interrupted:
                hits += 1
            finally:
                armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
            if hits >= COUNT:
                break
    finally:
        signal.signal(signal.SIGALRM, before)
    print(f"{hits} signals raised inside verbs")
    assert hits > COUNT // 4
    settle_down(opened, clock)
    in_another_thread(lambda: [verb() for verb in verbs(queue, kept)])


class RaiseAtLine:
    """A tracing function that raises once, at the n-th executed line of our code."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.raised: str | None = None

    def __call__(self, frame: FrameType, event: str, argument: object) -> RaiseAtLine | None:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if self.raised is None and self.counts(frame, event):
            self.left -= 1
            if self.left < 0:
                self.raised = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise Interrupted
        return self

    def counts(self, frame: FrameType, event: str) -> bool:
        return event == "line"


class RaiseAtBytecode(RaiseAtLine):
    """A tracing function that raises once, after the n-th bytecode at which Python runs signal handlers.

    A handler runs at the begin of a function, after a call of C code, and at the end of a loop's turn: the result of the
    call is not stored yet.
    """

    _HANDLING = frozenset(
        dis.opmap[name]
        for name in ("RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD")
        if name in dis.opmap
    )

    def __init__(self, at: int) -> None:
        super().__init__(at)
        #: The bytecode before: its frame, and its place there. Not the frame itself, which holds what it works with.
        self._before = (0, 0)

    def counts(self, frame: FrameType, event: str) -> bool:
        frame.f_trace_opcodes = True
        if event != "opcode":
            return False
        (before, at), self._before = self._before, (id(frame), frame.f_lasti)
        return before == id(frame) and frame.f_code.co_code[at] in self._HANDLING


@pytest.mark.parametrize("kind", [RaiseAtLine, RaiseAtBytecode], ids=["line", "bytecode"])
def test_a_tracing_function_raises_anywhere(store: tuple[Store, ManualClock], kind: type[RaiseAtLine]) -> None:
    opened, clock = store
    queue, kept = opened.queue("work"), opened.queue("kept")
    chance = random.Random(20261116)
    hits = 0
    places = [200] * len(verbs(queue, kept))
    for turn in range(COUNT):
        number = turn % len(places)
        trace = kind(chance.randrange(places[number]))
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            verbs(queue, kept)[number]()
            places[number] = max(20, places[number] - trace.left)  # the number of lines or bytecodes of the verb
        except Interrupted:
            hits += 1
            places[number] += 10
        finally:
            sys.settrace(before)
        if turn % 40 == 39:
            report = opened.check()
            assert report.ok, (trace.raised, report.findings[:3])
    print(f"{hits} exceptions raised in code of ours")
    assert hits > COUNT // 2
    settle_down(opened, clock)
    in_another_thread(lambda: [verb() for verb in verbs(queue, kept)])  # nothing is left locked to this thread
    in_another_thread(lambda: settle_down(opened, clock))


LOOP = """
import signal, sys, tenure
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
with tenure.open("rocksdb:" + sys.argv[1]) as store:
    queue = store.queue("emails")
    print("ready", flush=True)
    while True:
        queue.enqueue(b"to ada", priority=5, headers={"lang": "en"})
        with queue.claim(limit=10, lease=30, wait=5) as claim:
            for delivery in claim:
                queue.ack(delivery)
"""


def test_ctrl_c_ends_the_loop_of_the_readme(tmp_path: Path) -> None:
    chance = random.Random(20261116)
    rounds = max(3, COUNT // 15)
    for _ in range(rounds):
        with subprocess.Popen(
            [sys.executable, "-c", LOOP, str(tmp_path / "data")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(chance.random() * 0.2)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        assert process.returncode in (1, 130, -signal.SIGINT), errors
        assert "KeyboardInterrupt" in errors, errors
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", sweep=False) as store:
        assert store.check().ok
    print(f"{rounds} loops ended by Ctrl-C")
