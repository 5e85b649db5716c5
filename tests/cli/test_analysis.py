"""tenure export, audit and report: without Java."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import tenure
from tenure import bulk
from tenure.bulk.schemas import TABLES
from tenure.cli import analysis
from tenure.storage import keyspace
from tenure.testing.harness import engine_of
from tests.cli.conftest import Shell


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting Spark is a failure here."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_dead_jobs_are_exported(shell: Shell, tmp_path: Path):
    job = shell.kill("emails", "hello", "Timeout: 3 s")
    shell.enqueue("emails", "waits")
    path = tmp_path / "dead.csv"
    ran = shell.json("export", "jobs", "--state", "dead", "--columns", "id,error", "--csv", str(path))
    assert ran.object == {"table": "jobs", "rows": 1, "path": str(path), "format": "csv"}
    with path.open(newline="") as file:
        assert list(csv.DictReader(file)) == [{"id": job, "error": "Timeout: 3 s"}]
    ran = shell("export", "events", "--parquet", str(tmp_path / "e"), "--arrow", str(tmp_path / "f"))
    assert (ran.code, "one of --parquet" in ran.err) == (2, True)
    assert shell("export", "jobs", "--columns", "nope", "--csv", str(path)).code == 2
    ran = shell("export", "jobs", "--queue", "emial", "--csv", str(path))
    assert (ran.code, "has no queue 'emial': did you mean 'emails'?" in ran.err) == (1, True)
    assert shell("export", "jobs", "--queue", "emails", "--state", "done", "--csv", str(path)).code == 0
    ran = shell("export", "jobs", "--csv", str(tmp_path / "missing" / "dead.csv"))
    assert (ran.code, f"{tmp_path / 'missing' / 'dead.csv'} cannot be written" in ran.err) == (2, True)


def test_every_table_can_be_exported(shell: Shell, tmp_path: Path):
    shell("enqueue", "mail", "x")
    for table in TABLES:
        ran = shell("export", table, "--jsonl", str(tmp_path / table))
        assert (ran.code, (tmp_path / table).exists()) == (0, True), ran.err


def test_an_audit_ends_with_its_answer(shell: Shell):
    shell.kill("emails", "hello", "Timeout: 3 s")
    clean = shell("audit")
    assert (clean.code, "clean: 1 job and" in clean.out) == (0, True)
    with tenure.open(shell.url, sweep=False) as store:
        number = bulk.read(store, "queues").column("queue_number")[0].as_py()
        counter = keyspace.counter(number, keyspace.Counter.DEAD)
        engine_of(store).transact(lambda tx: tx.add(counter, 1))
    ran = shell.json("audit")
    assert ran.code == 1
    assert [violation["rule"] for violation in ran.object["violations"]] == ["counters"]
    with tenure.open(shell.url, sweep=False) as store:
        engine_of(store).transact(lambda tx: tx.add(counter, -1))


def test_a_report_is_drawn(shell: Shell, tmp_path: Path):
    shell.kill("emails", "hello", "Timeout: 3 s")
    ran = shell("report", str(tmp_path / "r.html"), "--title", "Monday")
    assert ran.code == 0, ran.err
    assert "<h1>Monday</h1>" in (tmp_path / "r.html").read_text()


def test_beyond_a_million_events_it_is_a_matter_for_spark(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shell.enqueue("emails", "hello")
    monkeypatch.setattr(analysis, "EVENTS_HERE", 1)
    ran = shell("audit")
    assert (ran.code, "Java" in ran.err) == (2, True)
    ran = shell("report", str(tmp_path / "r.html"))
    assert (ran.code, "tenure spark history" in ran.err) == (2, True)
    assert shell("audit", "--engine", "duckdb").code == 0
