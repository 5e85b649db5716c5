"""A process of a pool: `python -m tenure.worker.child FD`. Runs one job after another in its main thread.

It opens no store, unless a handler uses the app's. The worker that started it claims, extends and settles; it sends the
child one call after another, and the child answers each with its outcome. So the child can be killed at any time, and a
handler that never releases the GIL stops no heartbeat.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time

from tenure.errors import InvalidArgument, Unavailable
from tenure.model.failure import unpacked
from tenure.model.request import number
from tenure.model.step import Step
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
from tenure.worker.context import CurrentJob
from tenure.worker.outcomes import error_text
from tenure.worker.steps import JobSteps

_PR_SET_PDEATHSIG = 1


def main() -> None:
    _die_with(os.getppid())
    # The worker decides when this process ends: Ctrl-C and a service manager's SIGTERM reach the whole group.
    for blocked in STOP_SIGNALS:
        signal.signal(blocked, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    setup = channel.receive()
    assert isinstance(setup, Setup)
    sys.path[:] = setup.path
    if setup.log_level is not None:
        from tenure.worker.log import configure

        configure(setup.log_level, setup.log_format)
    try:
        from tenure.worker import execution
        from tenure.worker.app_loader import load_for_child

        app = load_for_child(setup.app)
        if setup.store is not None:
            app.use(setup.store)
    except BaseException as exc:  # noqa: BLE001 - the worker must learn of any error of the user's module
        channel.send(Hello(os.getpid(), error_text(exc)))
        sys.exit(1)
    channel.send(Hello(os.getpid()))
    while (given := channel.receive()) is not None:
        assert isinstance(given, Assignment)
        lock = threading.Lock()
        steps = JobSteps(given.id, _ChannelSteps(channel, lock), app.types)
        job = CurrentJob(
            given.task, id=given.id, queue=given.queue, tenant=given.tenant, attempt=given.attempt,
            max_attempts=given.max_attempts, token=given.token, priority=given.priority, headers=given.headers,
            deadline_ms=given.deadline_ms, report=_ProgressReport(channel, lock), served=setup.served,
            steps=steps,
        )  # fmt: skip
        outcome = execution.run(app, job, given.payload)
        with lock:  # a thread that the handler left running must not send in between
            channel.send(Ended(outcome))


class _ProgressReport:
    def __init__(self, channel: Channel, lock: threading.Lock) -> None:
        self._channel = channel
        self._lock = lock

    def __call__(self, fraction: float, note: str | None) -> None:
        # Not answered: if the lease is lost this process is killed, and an error would come too late.
        if isinstance(fraction, bool) or not 0 <= number(fraction) <= 1:
            raise InvalidArgument(f"progress {fraction!r} must be from 0 to 1")
        with self._lock:
            self._channel.send(Progress(float(fraction), note))


class _ChannelSteps:
    """The steps of a job, which the worker reads and stores, because this process has no store open."""

    def __init__(self, channel: Channel, lock: threading.Lock) -> None:
        self._channel = channel
        self._lock = lock

    def load(self) -> list[Step]:
        return self._ask(StepsCall()).steps

    def record(self, name: str, value: bytes) -> bytes:
        return self._ask(StepsCall(name, value)).value

    def _ask(self, call: StepsCall) -> StepsAnswer:
        with self._lock:
            self._channel.send(call)
            answer = self._channel.receive()
        if not isinstance(answer, StepsAnswer):
            raise Unavailable("the worker does not answer: the job is no longer this process's")
        if answer.failure is not None:
            raise unpacked(answer.failure)
        return answer


def _die_with(parent: int) -> None:
    """End this process when its parent ends, even by SIGKILL: through the kernel on Linux, elsewhere by a thread."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
