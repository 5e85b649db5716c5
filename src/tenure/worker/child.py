"""A process of a pool: `python -m tenure.worker.child FD`. Runs one job after another in its main thread.

It opens no store. The worker that started it holds the lease, keeps it, and settles; this end is given a call and says
what came of it. So it can be killed at any moment, and a handler that never lets go of the interpreter stops no heartbeat.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time

from tenure.errors import InvalidArgument
from tenure.model.request import number
from tenure.worker.child_channel import Assignment, Ended, Hello, Pipe, Progress, Setup
from tenure.worker.context import CurrentJob
from tenure.worker.outcomes import told

_PR_SET_PDEATHSIG = 1


def main() -> None:
    _die_with(os.getppid())
    # The worker decides when this process ends: Ctrl-C and a service manager's SIGTERM reach the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pipe = Pipe(socket.socket(fileno=int(sys.argv[1])))
    setup = pipe.receive()
    assert isinstance(setup, Setup)
    sys.path[:] = setup.path
    if setup.log_level is not None:
        from tenure.telemetry import configure_logging

        configure_logging(setup.log_level, setup.log_format)
    try:
        from tenure.worker import execution
        from tenure.worker.app_loader import load_for_child

        app = load_for_child(setup.app)
    except BaseException as exc:  # noqa: BLE001 - whatever the user's module raised, the worker has to know it
        pipe.send(Hello(os.getpid(), told(exc)))
        sys.exit(1)
    pipe.send(Hello(os.getpid()))
    while (given := pipe.receive()) is not None:
        assert isinstance(given, Assignment)
        job = CurrentJob(
            given.task, id=given.id, queue=given.queue, tenant=given.tenant, attempt=given.attempt,
            max_attempts=given.max_attempts, token=given.token, priority=given.priority, headers=given.headers,
            deadline_ms=given.deadline_ms, report=_Report(pipe),
        )  # fmt: skip
        pipe.send(Ended(execution.run(app, job, given.payload)))


class _Report:
    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def __call__(self, fraction: float, note: str | None) -> None:
        # Not answered: if the lease is lost this process is ended, and an error would come too late.
        if isinstance(fraction, bool) or not 0 <= number(fraction) <= 1:
            raise InvalidArgument(f"progress {fraction!r} must be from 0 to 1")
        with self._lock:
            self._pipe.send(Progress(float(fraction), note))


def _die_with(parent: int) -> None:
    """Whoever kills the worker has killed its handlers: the kernel sees to it, elsewhere a thread."""
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
