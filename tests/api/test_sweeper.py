"""The sweeper's thread survives any error."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tenure import telemetry
from tenure.api.sweeper import Sweeper
from tenure.clock import SystemClock
from tenure.model.job import Swept

CODE = """
import os, resource, sys, time, tenure
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
store = tenure.open(sys.argv[1], sweep=0.02)
queue = store.queue("work")
queue.enqueue(b"x")
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
time.sleep(0.5)
for handle in taken:
    os.close(handle)
queue.claim(lease=0.05)
until = time.monotonic() + 20
while queue.counts().leased and time.monotonic() < until:
    time.sleep(0.02)
print("leased", queue.counts().leased)
store.close()
"""


@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_a_moment_without_file_handles(tmp_path: Path, engine: str) -> None:
    """Without file handles neither the sweep nor its log line works; afterwards leases expire again."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, f"{engine}:{tmp_path / 'data'}"], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "leased 0\n", done.stderr[-2000:]


def test_a_complaint_that_cannot_be_logged_is_logged_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    swept = threading.Semaphore(0)
    warn = telemetry.warn
    tries: list[str] = []

    def sweep() -> Swept:
        swept.release()
        raise OSError(24, "Too many open files")

    def failing(event: str, error: BaseException | None = None, **facts: object) -> None:
        tries.append(event)
        if len(tries) < 3:
            raise OSError(24, "Too many open files")
        warn(event, error, **facts)

    monkeypatch.setattr(telemetry, "warn", failing)
    sweeper = Sweeper(SystemClock(), 0.001)
    with caplog.at_level(logging.WARNING, "tenure"):
        sweeper.start(sweep)
        for _ in range(10):
            assert swept.acquire(timeout=10), "its thread has ended"
        sweeper.stop()
    assert tries == ["sweep_failed"] * 3, "told once, and not again within a minute"
    assert caplog.text.count("sweep_failed") == 1
