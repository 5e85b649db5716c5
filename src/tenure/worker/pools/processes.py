"""A pool of processes: for handlers that compute. Each has an interpreter of its own, and is ended with its job if that is lost.

A slot is a thread of this process that owns one child and waits for it; so the keeper here beats whatever a
handler does there, and killing a child frees its slot at once. Children are started fresh, not forked: a fork would inherit
an open store and locks held by threads that are not there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from time import monotonic
from typing import IO

from tenure.errors import TenureError, Unavailable
from tenure.worker import app_loader, metrics
from tenure.worker.child_channel import Assignment, Ended, Hello, Pipe, Progress, Setup
from tenure.worker.held_claims import Work
from tenure.worker.outcomes import Outcome
from tenure.worker.pools.contract import Site, begin

_START_SECONDS = 60.0


class Child:
    """A running process, at this end."""

    def __init__(self, setup: Setup) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this very interpreter, and a module of ours
                [sys.executable, "-m", "tenure.worker.child", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if _redirected() else None,
                stderr=subprocess.STDOUT if _redirected() else None,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        if self._process.stdout is not None:
            threading.Thread(target=_pass_on, args=(self._process.stdout,), daemon=True).start()
        self.pipe = Pipe(ours)
        ours.settimeout(_START_SECONDS)
        self.jobs = 0
        try:
            self.pipe.send(setup)
            hello = self.pipe.receive()
        except OSError:
            hello = None
        ours.settimeout(None)
        if not isinstance(hello, Hello):
            raise Unavailable(f"a process of the pool did not start: {self.end()}")
        if hello.error is not None:
            self.end()
            raise Unavailable(f"a process of the pool cannot import the app: {hello.error}")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def end(self) -> str:
        """Let it go, and say how it ended."""
        self.pipe.close()
        try:
            code = self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        if code >= 0:
            return f"it exited with {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        return f"it was ended by {name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")


class ProcessPool:
    def __init__(self, site: Site, *, recycle: int | None = None) -> None:
        self._site = site
        self._recycle = recycle
        count = site.concurrency
        self._counts = [0] * count
        self._busy = [0] * count
        self._lock = threading.Lock()
        self._ready = threading.Semaphore(0)
        self._errors: list[BaseException] = []
        self._children: list[Child | None] = [None] * count
        self._stopping = False
        self._setup = Setup(app_loader.reference_to(site.app), [path for path in sys.path if path], *_logging())
        self._threads = [
            threading.Thread(target=self._run, args=(index,), name=f"tenure-slot-{index}", daemon=True)
            for index in range(count)
        ]

    @property
    def finished(self) -> tuple[int, int]:
        return sum(self._counts), sum(self._busy)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            self._ready.acquire()
        if self._errors:
            self.stop(5.0)
            raise self._errors[0]

    def end(self, work: Work) -> None:
        with self._lock:
            # Under the lock: the child may have been given another job by now.
            for child in self._children:
                if child is not None and work.slot is child:
                    child.kill()

    def stop(self, timeout: float) -> bool:
        until = monotonic() + timeout
        self._stopping = True
        for _ in self._threads:
            self._site.backlog.put(None)
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def kill(self) -> None:
        with self._lock:
            for child in self._children:
                if child is not None:
                    child.kill()

    def _run(self, index: int) -> None:
        try:
            child = self._children[index] = Child(self._setup)
        except BaseException as exc:  # noqa: BLE001 - handed to whoever starts the pool
            self._errors.append(exc)
            return
        finally:
            self._ready.release()
        site = self._site
        try:
            while (work := site.backlog.get()) is not None:
                if not work.begin():
                    continue
                outcome = self._give(child, work)
                self._busy[index] += work.stop_clock()
                self._counts[index] += 1
                with self._lock:
                    work.slot = None
                if outcome is None or (self._recycle is not None and child.jobs >= self._recycle):
                    how = child.end()
                    if outcome is None:
                        outcome = Outcome("nack", None, f"the process that ran it died: {how}")
                    site.ended(work, outcome)
                    if self._stopping:
                        site.freed()
                        return
                    child = self._children[index] = Child(self._setup)
                else:
                    site.ended(work, outcome)
                site.freed()
        except BaseException as exc:  # noqa: BLE001 - a slot that dies silently is a worker that stands still
            site.broken(exc)
        finally:
            last = self._children[index]
            if last is not None:
                last.end()

    def _give(self, child: Child, work: Work) -> Outcome | None:
        """The job's outcome; None if the process died of it."""
        current = begin(self._site, work)
        delivery = work.delivery
        assignment = Assignment(
            current.task, current.id, current.queue, current.tenant, current.attempt, current.max_attempts,
            current.token, current.priority, delivery.headers, work.timeout_at_ms, delivery.payload,
        )  # fmt: skip
        child.jobs += 1
        with self._lock:
            work.slot = child
        if not work.running:
            child.kill()  # its time was up before it was handed over
        try:
            child.pipe.send(assignment)
            while True:
                said = child.pipe.receive()
                if isinstance(said, Progress):
                    _report(work, said)
                else:
                    return said.outcome if isinstance(said, Ended) else None
        except OSError:
            return None


def _redirected() -> bool:
    """Whether somebody stands between us and the terminal (a live line): what children print must go through it, too."""
    return sys.stdout is not sys.__stdout__ and sys.__stdout__ is not None and sys.__stdout__.isatty()


def _pass_on(stream: IO[bytes]) -> None:
    with stream:
        for line in stream:
            sys.stdout.write(line.decode(errors="replace"))


def _report(work: Work, said: Progress) -> None:
    try:
        work.held.queue.progress(work.delivery, said.fraction, said.note)
    except TenureError as exc:  # the keeper finds out, and ends the job if that is what it means
        metrics.warn("progress_failed", task=work.task, id=work.delivery.id, error=str(exc))


def _logging() -> tuple[str | None, str]:
    """The level and form of this process's log lines, if the command line configured them."""
    from tenure.telemetry import _Handler

    if not any(isinstance(handler, _Handler) for handler in logging.getLogger().handlers):
        return None, "auto"
    return logging.getLevelName(logging.getLogger("tenure").level).lower(), "auto"
