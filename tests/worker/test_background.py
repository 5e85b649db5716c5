"""The worker's own threads outlive any exception, also one in their logging, and say so when they can."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tenure import App, current_job, telemetry
from tenure.errors import InvalidArgument
from tenure.worker import log
from tenure.worker.background import BackgroundThread
from tenure.worker.runner import NO_STORE
from tests.worker.conftest import until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def app():
    with App("memory:", sweep=False) as made:
        yield made
        assert made.store.check().clean


def no_handles(*args: object, **kwargs: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def failing(times: int, function, error: type[BaseException] = OSError):
    """The function, raising `error` the first times it is called."""
    left = iter(range(times))

    def called(*args, **kwargs):
        if next(left, None) is not None:
            raise error("for a moment")
        return function(*args, **kwargs)

    return called


def test_a_thread_goes_on_after_any_exception(caplog):
    errors = iter([ValueError("one"), SystemExit(2), GeneratorExit(), MemoryError(), RecursionError()])
    done = threading.Event()

    def step() -> bool:
        error = next(errors, None)
        if error is not None:
            raise error
        done.set()
        return True

    thread = BackgroundThread("test", step)
    thread.start()
    assert done.wait(60)
    thread.join(60)
    assert not thread.is_alive()
    lines = [record for record in caplog.records if "thread_failed thread=tenure-test" in str(record.msg)]
    assert len(lines) == 5
    assert lines[0].exc_info is not None
    assert isinstance(lines[0].exc_info[1], ValueError)


def test_a_line_that_cannot_be_written_is_written_with_the_next_one(caplog, monkeypatch):
    good = telemetry._logger
    monkeypatch.setattr(telemetry, "_logger", no_handles)
    log.error("first_line", number=1)
    log.warning("second_line")
    assert caplog.records == []
    monkeypatch.setattr(telemetry, "_logger", good)
    log.warning("third_line")
    assert [str(record.msg).partition(" ")[0] for record in caplog.records] == [
        "third_line", "first_line", "second_line",
    ]  # fmt: skip


@pytest.mark.parametrize("verb", ["claim", "settle", "extend"])
@pytest.mark.parametrize("error", [OSError, RecursionError])
@pytest.mark.parametrize("can_log", [True, False], ids=["logged", "silent"])
def test_a_store_that_raises_anything_ends_no_thread(app, monkeypatch, verb, error, can_log):
    started = threading.Event()

    @app.task
    def job(seconds: float) -> int:
        started.set()
        threading.Event().wait(seconds)
        return current_job().attempt

    good = telemetry._logger()
    backend = app.store._backend
    # Only what is about extending needs a short lease: on a busy machine a short one runs out before its job begins.
    with app.worker(lease=0.6 if verb == "extend" else 30, concurrency=2) as worker:
        assert job.delay(0).result(60) >= 1
        if not can_log:
            monkeypatch.setattr(telemetry, "_logger", no_handles)
        started.clear()
        monkeypatch.setattr(backend, verb, failing(2, getattr(backend, verb), error))
        handle = job.delay(0.5 if verb == "extend" else 0)
        assert started.wait(60)
        assert handle.result(60) >= 1
        assert job.delay(0).result(60) >= 1
        monkeypatch.setattr(telemetry, "_logger", lambda: good)
        assert all(thread.is_alive() for thread in worker._threads())
    assert worker.totals.outcomes["done"] >= 3


def test_an_outcome_the_store_refuses_does_not_hold_up_the_others(app, monkeypatch, caplog):
    """One of a batch is poisoned: it alone is not settled, and its lease runs out."""
    gate = threading.Event()

    @app.task
    def job(number: int) -> int:
        gate.wait(60)
        return number

    settle = app.store._backend.settle

    def refuse(name, settles):
        if any(one.result == b"3" for one in settles):
            raise InvalidArgument("poison")
        return settle(name, settles)

    monkeypatch.setattr(app.store._backend, "settle", refuse)
    handles = job.map(range(8))
    with app.worker(concurrency=8, lease=30) as worker:
        until(lambda: worker.running == 8)
        gate.set()
        assert [handle.result(60) for handle in handles if handle is not handles[3]] == [0, 1, 2, 4, 5, 6, 7]
        until(lambda: worker.totals.outcomes["lost"] == 1)
        until(lambda: not worker._held_claims.jobs())  # nothing extends the poisoned one's lease
    assert sum("not_settled" in str(record.msg) for record in caplog.records) == 1


def test_a_ticker_outlives_any_exception(monkeypatch):
    from tenure.worker.periodic import Ticker

    calls: list[int] = []
    with App("memory:", sweep=False) as app:

        @app.periodic("* * * * *")
        def tick() -> None: ...

        def fail(self: Ticker) -> None:
            calls.append(1)
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(Ticker, "prepare", fail)
        monkeypatch.setattr(app.clock, "wait", lambda signal, seconds, poll=None: signal.wait(0.01), raising=False)
        with app.worker() as worker:
            until(lambda: len(calls) > 2)
            assert worker.health().problem is None


def test_health_names_a_thread_that_fails(app, monkeypatch):
    @app.task
    def job() -> int:
        return 1

    with app.worker() as worker:
        monkeypatch.setattr(worker._held_claims, "claims", no_handles)
        worker._heartbeat._woken.set()
        until(lambda: "tenure-heartbeat fails: OSError" in (worker.health().problem or ""))
        monkeypatch.undo()
        until(lambda: worker.health().problem is None)
        assert job.delay().result() == 1


def test_an_exception_of_the_main_thread_ends_the_worker_in_good_order(app, monkeypatch):
    @app.task
    def job() -> None: ...

    worker = app.worker(grace=5)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "_check_parts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        worker.run()
    assert worker.stopping
    assert not any(thread.is_alive() for thread in worker._threads())


def test_a_claim_that_always_fails_still_ends_the_worker(app, monkeypatch):
    @app.task
    def job() -> None: ...

    worker = app.worker(patience=0.3)
    monkeypatch.setattr(app.store._backend, "claim", no_handles)
    assert worker.run() == NO_STORE
    assert "Too many open files" in worker.reason


HANDLES = """
import logging, os, resource, sys, time
from tenure import App, current_job, Retry
from tests.worker.conftest import until

logging.basicConfig(level=logging.INFO, filename=sys.argv[2])
app = App("rocksdb:" + sys.argv[1])

@app.task(max_attempts=50)
def job(number: int) -> int:
    return number

with app, app.worker(lease=2, concurrency=2) as worker:
    assert job.delay(1).result(60) == 1
    free = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, 4096))
    while True:
        try:
            free.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            break
    time.sleep(2.5)  # heartbeats, claims and sweeps without a handle
    for one in free:
        os.close(one)
    assert job.delay(2).result(60) == 2
    assert all(thread.is_alive() for thread in worker._threads()), worker.health()
    assert worker.health().problem is None, worker.health()
print("ok")
"""


def test_a_moment_without_file_handles(tmp_path):
    """Real ones, on a real store."""
    ran = subprocess.run(
        [sys.executable, "-c", HANDLES, str(tmp_path / "data"), str(tmp_path / "log")],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert ran.stdout.strip() == "ok", ran.stderr + (tmp_path / "log").read_text()
