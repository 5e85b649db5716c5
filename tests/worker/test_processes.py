"""A pool of processes: handlers that compute, hold the interpreter, hang or die."""

from __future__ import annotations

import logging
import os
import re
import signal

import pytest

import tenure
from tenure import App, InvalidArgument, TaskFailed
from tenure.worker import app_loader
from tenure.worker.pools import processes
from tests.worker import apps
from tests.worker.conftest import until

LEASE = 0.5
#: Where it must not be lost: a machine that is busy elsewhere may let a worker wait for most of a beat or two.
KEPT = 2.5


@pytest.fixture
def app(trace):
    apps.app.use(tenure.open("memory:", sweep=False))
    yield apps.app
    store = apps.app.store
    assert store.check().clean
    store.close()
    apps.app.use("memory:")


def test_jobs_run_in_processes_of_their_own(app, trace):
    with app.worker(pool="process", concurrency=2, recycle=3) as worker:
        pids = {handle.result() for handle in apps.pid.map([()] * 12)}
        assert os.getpid() not in pids
        assert len(pids) >= 4  # renewed after three jobs each
        handle = apps.report.options(headers={"a": "b"}).delay()
        attempt, token, *rest = handle.result()
        assert (attempt, *rest) == (1, "busy", {"a": "b"}, True)
        assert token >= 1  # given back unstarted, perhaps, while a process was renewed
        job = handle.job()
        assert job is not None
        assert (job.progress, job.progress_note) == (0.4, "resizing")
        assert apps.note.delay("x").result() == "x"
        children = [child.pid for child in worker._pool._children if child is not None]
    assert worker.totals.outcomes["done"] == 14
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_handler_that_holds_the_interpreter_for_three_leases_runs_once(app, trace):
    """Two workers: if the lease were lost, the other would run it."""
    with (
        app.worker(["busy"], pool="process", concurrency=1, lease=KEPT) as one,
        app.worker(["busy"], pool="process", concurrency=1, lease=KEPT) as other,
    ):
        assert apps.hold_the_gil.delay(3 * KEPT).result(60) == 1
    assert [line[0] for line in trace()] == ["gil"]
    assert one.totals.outcomes["lost"] + other.totals.outcomes["lost"] == 0


def test_in_threads_it_stops_the_heartbeat_and_the_worker_says_so(app, trace, caplog):
    caplog.set_level(logging.WARNING, "tenure")
    with app.worker(["busy"], pool="thread", concurrency=1, lease=LEASE):
        handle = apps.hold_the_gil.options(max_attempts=1).delay(3 * LEASE)

        def told() -> list[str]:
            """By more than a lease: a slow machine may be late by less, before."""
            late = [(re.search(r"heartbeat_late.*by_seconds=([\d.]+)", str(r.msg)), str(r.msg)) for r in caplog.records]
            return [said for found, said in late if found is not None and float(found[1]) > LEASE]

        until(told)
        assert "--pool process" in told()[0]
        until(lambda: handle.status() == "dead")  # its ack came too late


def test_a_process_that_dies_costs_one_delivery(app, trace):
    with app.worker(["busy"], pool="process", concurrency=1):
        handle = apps.die_once.delay()
        assert handle.result(60) != os.getpid()
        job = handle.job()
        assert job is not None
        assert job.attempt == 2
        assert job.error == "the process that ran it died: it exited with 9"


def test_a_timeout_ends_the_process(app, trace):
    with app.worker(["busy"], pool="process", concurrency=1):
        before = apps.pid.delay().result(60)
        with pytest.raises(TaskFailed, match=r"timed out after \d+\.\d s"):
            apps.too_long.delay().result(60)
        assert apps.pid.delay().result(60) != before
        with pytest.raises(ProcessLookupError):
            os.kill(before, 0)


def test_a_lost_job_s_process_is_ended(app, trace):
    with app.worker(["busy"], pool="process", concurrency=1, lease=KEPT) as worker:
        handle = apps.sleep.delay(60)
        until(trace)
        assert handle.cancel()
        assert apps.pid.delay().result(60)  # the slot is free again
    assert worker.totals.outcomes["done"] == 1
    assert [line[0] for line in trace()] == ["sleep"]


def test_children_do_not_outlive_a_killed_worker(trace, tmp_path, monkeypatch):
    from tests.worker.test_signals import command

    monkeypatch.setenv("TEST_STORE", f"lmdb:{tmp_path / 'data'}")
    with tenure.open(f"lmdb:{tmp_path / 'data'}", sweep=False) as store:
        apps.app.use(store)
        with command("--pool", "process", "--concurrency", "2", "--queues", "busy") as process:
            pids = {apps.pid.delay().result(60) for _ in range(4)}
            apps.hold_the_gil.delay(60)
            until(trace)
            process.send_signal(signal.SIGKILL)
            process.wait(30)
            until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
        apps.app.use("memory:")


def test_an_app_that_cannot_be_imported_is_reported():
    app = App("memory:")

    @app.task
    def local() -> None: ...

    with pytest.raises(InvalidArgument, match="make it a variable of a module"):
        app.worker(pool="process").start()
    assert app_loader.reference_to(apps.app) == "tests.worker.apps:app"


def test_a_process_that_cannot_be_started_is_tried_again(app, trace, monkeypatch, caplog):
    """As where the machine is short of memory or of file handles for a moment."""
    with app.worker(["busy"], pool="process", concurrency=1) as worker:
        start, failures = processes.Child, iter(range(2))

        def short_of_handles(setup):
            if next(failures, None) is not None:
                raise OSError(24, "Too many open files")
            return start(setup)

        monkeypatch.setattr(processes, "Child", short_of_handles)
        assert apps.die_once.delay().result(60) != os.getpid()
        assert worker.health().problem is None
    said = [str(record.msg) for record in caplog.records]
    assert sum("process_not_started" in line for line in said) == 2
    assert sum("process_died" in line for line in said) == 1
