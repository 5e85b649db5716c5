"""`tenure worker` as a process: how it ends, and what is left when it does."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tests.worker import apps
from tests.worker.conftest import until

KILLS = int(os.environ.get("WORKER_KILLS", "5"))
ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def command(*options: str, output: int | None = subprocess.DEVNULL) -> Iterator[subprocess.Popen[str]]:
    """A worker of `tests.worker.apps`, ended whatever happens."""
    arguments = [sys.executable, "-X", "faulthandler", "-m", "tenure", "worker", "tests.worker.apps:app", *options]
    process = subprocess.Popen(arguments, cwd=ROOT, stdout=output, stderr=output, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(params=["lmdb", "rocksdb"])
def url(request, tmp_path, monkeypatch) -> str:
    url = f"{request.param}:{tmp_path / 'data'}"
    monkeypatch.setenv("TEST_STORE", url)
    return url


def fill(url: str, task, calls) -> list[str]:
    """Enqueue and let go of the store: RocksDB's belongs to one process."""
    with tenure.open(url, sweep=False) as store:
        apps.app.use(store)
        ids = [handle.id for handle in task.map(calls)]
        apps.app.use("memory:")
    return ids


def test_sigterm_under_load_counts_no_delivery_for_what_did_not_start(url, trace):
    ids = fill(url, apps.sleep, [0.05] * 1200)
    with command("--concurrency", "4", "--queues", "busy", output=subprocess.PIPE) as process:
        until(lambda: len(trace()) > 20)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert '"reason": "SIGTERM"' in log
    started = {line[1]: int(line[2]) for line in trace() if line[0] == "sleep"}
    ended = {line[1] for line in trace() if line[0] == "slept"}
    assert set(started) == ended  # handlers had time to finish
    assert set(started.values()) == {1}
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("busy")
        jobs = {job: queue.get(job) for job in ids}
        assert {job for job, found in jobs.items() if found is not None and found.state == "done"} == ended
        waiting = {job: found for job, found in jobs.items() if job not in ended}
        assert len(waiting) > 100
        assert {(found.state, found.attempt) for found in waiting.values() if found} == {("ready", 0)}
        assert queue.counts().leased == 0
        assert store.check().clean


def test_a_second_signal_ends_it_at_once(url, trace, tmp_path):
    (job,) = fill(url, apps.sleep, [60])
    with (
        (tmp_path / "log").open("w") as log,
        command("--queues", "busy", "--grace", "100", "--log-level", "info", output=log.fileno()) as process,
    ):
        until(trace)
        process.send_signal(signal.SIGINT)
        # Heard: of two signals that come before it is heard, one is lost.
        until(lambda: "worker_stopping" in (tmp_path / "log").read_text())
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(50) == 1  # the grace is twice that
    with tenure.open(url, sweep=False) as store:
        found = store.queue("busy").get(job)
        assert found is not None
        assert (found.state, found.attempt) == ("ready", 1)  # it had started: the delivery counts, and it is back


def test_a_store_that_is_gone_ends_it_non_zero(tmp_path, trace, monkeypatch):
    monkeypatch.setenv("TEST_STORE", f"rocksdb:{tmp_path / 'data'}")
    (tmp_path / "data").write_text("not a folder")
    with command(output=subprocess.PIPE) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "Traceback" not in said


@pytest.mark.crash
@pytest.mark.timeout(60 + 6 * KILLS)
def test_killed_again_and_again(url, trace, tmp_path):
    """Every job done at least once, none lost, and each effect, fenced by its token, applied once."""
    jobs = 60 * KILLS
    with contextlib.closing(sqlite3.connect(tmp_path / "effects.db")) as db:
        db.execute("pragma journal_mode = wal")
        db.execute("create table fence (job text primary key, token integer)")
        db.execute("create table effects (job text primary key, number integer)")
        db.commit()
    with tenure.open(url, sweep=False) as store:
        store.queue("fenced").configure(apps.app.policies["fenced"])
    fill(url, apps.effect, range(jobs))

    def begun() -> int:
        return sum(line[0] == "start" for line in trace())

    for _ in range(KILLS):
        wanted = min(begun() + 20, jobs)
        with (
            (tmp_path / "log").open("w") as log,
            command("--queues", "fenced", "--concurrency", "4", output=log.fileno()) as process,
        ):
            until(lambda wanted=wanted, process=process: begun() >= wanted or process.poll() is not None, 60)  # type: ignore[misc]
            process.send_signal(signal.SIGKILL)
            assert process.wait(30) == -signal.SIGKILL, (tmp_path / "log").read_text()  # not by itself
    with command("--queues", "fenced", "--concurrency", "8") as process:
        with contextlib.closing(sqlite3.connect(tmp_path / "effects.db")) as db:
            until(lambda: db.execute("select count(*) from effects").fetchone()[0] == jobs, 60)
        with tenure.open(url, sweep=False) as store:  # what took effect and was not acked is given out once more
            until(lambda: not (counts := store.queue("fenced").counts()).waiting + counts.leased, 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "effects.db")) as db:
        numbers = [row[0] for row in db.execute("select number from effects order by number")]
    assert numbers == list(range(jobs))
    deliveries: dict[int, list[int]] = {}
    for _, number, attempt, token in (line for line in trace() if line[0] == "start"):
        assert int(token) >= int(
            attempt
        )  # what was given back before it started took a token, and counts as no attempt
        deliveries.setdefault(int(number), []).append(int(token))
    assert all(tokens == sorted(set(tokens)) for tokens in deliveries.values())  # no token was given twice
    with tenure.open(url, sweep=False) as store:
        counts = store.queue("fenced").counts()
        assert (counts.waiting, counts.leased, counts.dead) == (0, 0, 0)
        assert counts.enqueued == jobs
        assert store.check().clean
    print(f"{KILLS} kills, {jobs} jobs, {sum(map(len, deliveries.values()))} deliveries, {len(numbers)} effects")


def test_the_log_says_what_it_did(url, trace):
    fill(url, apps.note, ["a", "b"])
    with command("--queues", "default", "--log-level", "info", output=subprocess.PIPE) as process:
        until(lambda: len(trace()) == 2)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    events = re.findall(r'"event": "(\w+)"', log)
    assert events.count("task_done") == 2
    assert events[-1] == "worker_stopped"
