"""A pool of processes, for handlers that compute. Each has its own interpreter, and is killed if its job is lost.

A slot is a thread of this process that owns one child and waits for it; so the heartbeat continues whatever a handler
does in a child, and killing a child frees its slot at once. Children are started fresh, not forked: a fork would
inherit an open store and locks held by threads that do not exist in it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from time import monotonic
from typing import IO

from tenure.errors import TenureError, Unavailable
from tenure.model.failure import packed
from tenure.worker import app_loader, log
from tenure.worker.child_channel import (
    STOP_SIGNALS,
    Assignment,
    Channel,
    Ended,
    Hello,
    Progress,
    Setup,
    StepsAnswer,
    StepsCall,
)
from tenure.worker.held_claims import HeldJob
from tenure.worker.outcomes import Outcome
from tenure.worker.pools.contract import PoolHost, run_slot, start_job, whole_payload

#: Seconds for a child to import the app, and for which a slot tries to start one before the worker gives up.
_START_SECONDS = 60.0


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Start a process with SIGINT and SIGTERM blocked, until it ignores them.

    Ctrl-C reaches the whole group, and would end a child that is still importing.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Child:
    """A running child process, as seen by the worker."""

    def __init__(self, setup: Setup) -> None:
        ours, theirs = socket.socketpair()
        with theirs, _signals_blocked():
            self._process = subprocess.Popen(  # noqa: S603 - runs this interpreter with a module of ours
                [sys.executable, "-m", "tenure.worker.child", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if _redirected() else None,
                stderr=subprocess.STDOUT if _redirected() else None,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        if self._process.stdout is not None:
            threading.Thread(target=_pass_on, args=(self._process.stdout,), daemon=True).start()
        self.channel = Channel(ours)
        ours.settimeout(_START_SECONDS)
        self.jobs = 0
        try:
            self.channel.send(setup)
            hello = self.channel.receive()
        except OSError:
            hello = None
        ours.settimeout(None)
        if not isinstance(hello, Hello):
            raise Unavailable(f"a process of the pool did not start: {self.end()}")
        if hello.error is not None:
            self.end()
            raise Unavailable(f"a process of the pool cannot import the app: {hello.error}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def end(self) -> str:
        """Close the channel, wait until the process has ended, and return how it ended."""
        self.channel.close()
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
    def __init__(self, host: PoolHost, *, recycle: int | None = None) -> None:
        self._host = host
        self._recycle = recycle
        count = host.concurrency
        self._counts = [0] * count
        self._busy = [0] * count
        self._lock = threading.Lock()
        self._ready = threading.Semaphore(0)
        self._errors: list[BaseException] = []
        self._children: list[Child | None] = [None] * count
        self._stopping = threading.Event()
        path = [entry for entry in sys.path if entry]
        self._setup = Setup(app_loader.reference_to(host.app), path, *_log_settings(), host.served, host.app.used)
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

    def end(self, job: HeldJob) -> None:
        with self._lock:
            # Under the lock: the child may have got another job by now.
            for child in self._children:
                if child is not None and job.slot is child:
                    child.kill()

    def stop(self, timeout: float) -> bool:
        until = monotonic() + timeout
        self._stopping.set()
        for _ in self._threads:
            self._host.backlog.put(None)
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
            self._children[index] = Child(self._setup)
        except BaseException as exc:  # noqa: BLE001 - `start` raises it
            self._errors.append(exc)
            return
        finally:
            self._ready.release()
        try:
            run_slot(self._host, f"process {index}", functools.partial(self._run_job, index))
        finally:
            last = self._children[index]
            if last is not None:
                last.end()

    def _run_job(self, index: int, job: HeldJob) -> None:
        if self._children[index] is None:
            self._replace(index)  # the last run ended before it could replace the child
        child = self._children[index]
        outcome: Outcome | None = None
        try:
            if child is not None:
                outcome = self._hand_over(child, job)
        finally:
            self._busy[index] += job.stop_clock()
            self._counts[index] += 1
            with self._lock:
                job.slot = None
            if outcome is None or child is None or child.jobs >= (self._recycle or sys.maxsize):
                how = "there was none" if child is None else child.end()
                self._children[index] = None
                if outcome is None:
                    outcome = Outcome("nack", None, f"the process that ran it died: {how}")
                    if job.is_running:
                        log.error("process_died", slot=index, task=job.task, id=job.delivery.id, how=how)
            self._host.job_ended(job, outcome)
        if self._children[index] is None and not self._stopping.is_set():
            self._replace(index)
        self._host.slot_freed()

    def _replace(self, index: int) -> None:
        """Start another child, retrying for a while: the machine may be short of memory or file descriptors."""
        until, pause = monotonic() + _START_SECONDS, 0.2
        while not self._stopping.is_set():
            try:
                self._children[index] = Child(self._setup)
                return
            except Exception as exc:  # noqa: BLE001 - whatever prevents it
                log.error("process_not_started", slot=index, error=str(exc))
                if monotonic() > until:
                    self._host.pool_broken(exc)
                    return
                self._stopping.wait(pause)
                pause = min(2 * pause, 5.0)

    def _hand_over(self, child: Child, job: HeldJob) -> Outcome | None:
        """Send the job to the child and wait for its outcome; None if the process died, or is to be replaced."""
        current = start_job(self._host, job)
        delivery = job.delivery
        assignment = Assignment(
            current.task, current.id, current.queue, current.tenant, current.attempt, current.max_attempts,
            current.token, current.priority, delivery.headers, job.timeout_at_ms, whole_payload(job),
        )  # fmt: skip
        child.jobs += 1
        with self._lock:
            job.slot = child
        if not job.is_running:
            child.kill()  # its time was up before it was sent
        try:
            child.channel.send(assignment)
            while True:
                message = child.channel.receive()
                if isinstance(message, Progress):
                    _report(job, message)
                elif isinstance(message, StepsCall):
                    child.channel.send(_answer(job, message))
                else:
                    return message.outcome if isinstance(message, Ended) else None
        except Exception:  # noqa: BLE001 - the child is gone, or a handler has written to the channel or closed it
            child.kill()
            return None


def _redirected() -> bool:
    """Whether this process's output goes through a live line to the terminal: then the children's must, too."""
    return sys.stdout is not sys.__stdout__ and sys.__stdout__ is not None and sys.__stdout__.isatty()


def _pass_on(stream: IO[bytes]) -> None:
    with stream:
        for line in stream:
            sys.stdout.write(line.decode(errors="replace"))


def _report(job: HeldJob, message: Progress) -> None:
    try:
        job.claim.queue.progress(job.delivery, message.fraction, message.note)
    except TenureError as exc:  # if the lease is lost, the heartbeat finds out and ends the job
        log.warning("progress_failed", task=job.task, id=job.delivery.id, error=str(exc))


def _answer(job: HeldJob, call: StepsCall) -> StepsAnswer:
    queue, delivery = job.claim.queue, job.delivery
    try:
        if call.name is None:
            return StepsAnswer(queue.steps(delivery))
        return StepsAnswer(value=queue.record_step(delivery, call.name, call.value))
    except TenureError as exc:
        return StepsAnswer(failure=packed(exc))


def _log_settings() -> tuple[str | None, str]:
    """Return the level and format of this process's log lines, if the command line configured them."""
    from tenure.telemetry import _Handler

    if not any(isinstance(handler, _Handler) for handler in logging.getLogger().handlers):
        return None, "auto"
    return logging.getLevelName(logging.getLogger("tenure").level).lower(), "auto"
