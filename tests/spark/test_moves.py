"""load, replay, migrate, archive and restore, on real stores; and what their commands say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import tenure
from tenure import Policy
from tenure.analysis.commit_log import RunConflict
from tenure.api import migration
from tenure.cli import spark_session
from tenure.cli.main import cli
from tenure.errors import InvalidArgument, SettingsError
from tenure.model.job_checksum import Checksum
from tenure.spark.jobs.archive import Archive, ArchiveBusy, archive, restore
from tenure.spark.jobs.load import load
from tenure.spark.jobs.migrate import migrate
from tenure.spark.jobs.replay import replay
from tenure.spark.pipelines.job_mapping import as_jobs, parse_mapping
from tests.moving import flows
from tests.moving.filled import fill
from tests.spark.made import small_plans
from tests.spark.test_history import Stopped, stop_at

pytestmark = pytest.mark.timeout(400)  # a busy machine: the shared JVM may have to compile all of it first
LATER = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture(scope="module", autouse=True)
def _quick(spark: SparkSession) -> Iterator[None]:
    with small_plans(spark):
        yield


def filled(url: str, jobs: int = 400) -> Checksum:
    with tenure.open(url, sweep=False) as store:
        fill(store, jobs)
    return summed(url)


def summed(url: str) -> Checksum:
    with tenure.open(url, sweep=False) as store:
        assert store.check().clean
        return migration.checksum(store, [(info.queue, info.tenant) for info in store.queues()])


def run(*args: str) -> tuple[int, str]:
    ran = CliRunner().invoke(cli, list(args))
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    return ran.exit_code, ran.stdout + ran.stderr


def test_migrate_there_and_back(spark: SparkSession, tmp_path: Path) -> None:
    urls = [f"rocksdb:{tmp_path / 'a'}", f"lmdb:{tmp_path / 'b'}", f"rocksdb:{tmp_path / 'c'}"]
    first = filled(urls[0])
    there = migrate(spark, urls[0], urls[1])
    assert (there.written, there.facts["verified"], there.facts["source"]) == (400, True, str(first))
    again = migrate(spark, urls[0], urls[1])
    assert (again.written, again.facts["there"], again.facts["verified"]) == (0, 400, True)
    code, said = run("spark", "migrate", urls[1], urls[2], "--json")
    assert code == 0, said
    assert json.loads(said.splitlines()[-1])["verified"] is True
    assert summed(urls[2]) == first
    with tenure.open(urls[2], sweep=False) as store:
        assert [info.paused for info in store.queues()] == [False, False, True]
    with pytest.raises(InvalidArgument, match="one store"):
        migrate(spark, urls[0], urls[0])


def test_flows_and_steps_are_migrated_archived_and_restored(spark: SparkSession, tmp_path: Path) -> None:
    urls, root = [f"rocksdb:{tmp_path / 'a'}", f"rocksdb:{tmp_path / 'b'}"], str(tmp_path / "archive")
    with tenure.open(urls[0], sweep=False) as store:
        flows.make(store)
        store.queue("reports").enqueue(b"has nothing attached")
        queue = store.queue("stepped")
        stepped = queue.enqueue(b"x").id
        delivery = queue.claim()[0]
        queue.record_step(delivery, "first", b"1")
        queue.signal(stepped, "second", b"2")
        queue.fail(delivery, error="no")
        before = [flows.told(store.queue(name)) for name in ("site", "reports")]
        schedules, steps = store.schedules(), queue.steps(stepped)
    first = summed(urls[0])
    moved = migrate(spark, urls[0], urls[1])
    assert (moved.facts["verified"], moved.facts["source"], moved.written) == (True, str(first), first.jobs)
    assert summed(urls[1]) == first
    with tenure.open(urls[1], sweep=False) as store:
        assert [flows.told(store.queue(name)) for name in ("site", "reports")] == before
        assert store.schedules() == schedules
    archived = archive(spark, urls[1], root, LATER, states=("dead",), queue="stepped")
    assert archived.written == 1
    with tenure.open(urls[1], sweep=False) as store:
        assert store.queue("stepped").steps(stepped) == []
    assert restore(spark, urls[1], root).written == 1
    with tenure.open(urls[1], sweep=False) as store:
        assert store.queue("stepped").steps(stepped) == steps
        assert store.check().clean


def test_archive_and_restore(spark: SparkSession, tmp_path: Path) -> None:
    url, root = f"rocksdb:{tmp_path / 'a'}", str(tmp_path / "an archive, 100%")
    first = filled(url)
    with tenure.open(url, sweep=False) as store:
        ended = sum(info.counts.done + info.counts.dead for info in store.queues())
    for step in ("verifying", "committing", "removed"):  # before its commit, at it, and in the middle of removing
        with pytest.raises(Stopped):
            archive(spark, url, root, LATER, told=stop_at(step))
        if step != "removed":
            assert summed(url) == first, "nothing has left the store"
    assert [entry.jobs for entry in Archive(root).entries()] == [ended]
    code, said = run("spark", "archive", root, "--older-than", LATER.isoformat(), "--store", url)
    assert code == 0, said
    assert [entry.jobs for entry in Archive(root).entries()] == [ended], "nothing is archived twice"
    with tenure.open(url, sweep=False) as store:
        assert sum(info.counts.done + info.counts.dead for info in store.queues()) == 0
        assert store.check().clean
    assert len(list((Path(root) / "jobs").glob("run=*/*"))) == 1, "what stopped runs left is gone"
    dead = Archive(root).find(spark, "state = 'dead'")
    assert dead is not None
    read = dead._jdf.queryExecution().executedPlan().toString()
    assert "state" in read
    assert "payload" not in read, "Spark chooses, and its Java holds no payload: 300 of 7.5 MiB never came to an end"
    back = restore(spark, url, root, "state = 'dead'")
    assert 0 < back.written < ended
    rest = restore(spark, url, root)
    assert (back.written + rest.written, rest.facts["there"]) == (ended, back.written)
    assert summed(url) == first
    assert archive(spark, url, root, LATER).written == ended
    again = restore(spark, url, root)
    assert (again.read, again.written) == (ended, ended), "archived by two runs, a job is read once"
    assert summed(url) == first


def ended(url: str, count: int) -> None:
    """More jobs that are done."""
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("q")
        queue.configure(Policy(retention=86_400))
        queue.enqueue_many([b"%d" % n for n in range(count)])
        queue.ack_many(list(queue.claim(limit=count)))


def test_two_runs_on_one_root(spark: SparkSession, tmp_path: Path) -> None:
    """One begins while another is at work: it is kept out, and removes nothing of the other's.

    The run that found nothing removed the folder of its number with all attempts in it: 500 jobs were out of the store, and
    no file of them was left.
    """
    url, root = f"rocksdb:{tmp_path / 'a'}", str(tmp_path / "archive")
    ended(url, 50)
    before = summed(url)
    tried: list[str] = []

    def second(step: str) -> None:
        tried.append(step)
        with pytest.raises(ArchiveBusy):
            archive(spark, url, root, LATER)
        # Where the lock does not hold, a run that finds nothing still removes its own attempt only.
        kept = Archive(root)
        place = f"jobs/run=1/{len(tried):012}"
        (Path(root) / place).mkdir(parents=True)
        kept.log.discard(place)

    summary = archive(spark, url, root, LATER, told=second)
    assert (summary.written, summary.facts["removed"]) == (50, 50)
    assert len(tried) >= 3
    empty = archive(spark, url, root, LATER)
    assert empty.written == 0
    assert [path.name for path in (Path(root) / "jobs").iterdir()] == ["run=1"], "an empty run leaves no folder"
    assert restore(spark, url, root).written == 50
    assert summed(url) == before


def test_an_archive_on_an_object_store(spark: SparkSession, tmp_path: Path, bucket: str) -> None:
    """There are no locks: of two runs with one number one commits, and the other has removed nothing."""
    url, root = f"rocksdb:{tmp_path / 'a'}", f"{bucket}/an archive, 100%"
    ended(url, 50)
    before = summed(url)

    def overtaken(step: str) -> None:
        if step.startswith("committing") and not Archive(root).entries():
            with pytest.raises(Stopped):
                archive(spark, url, root, LATER, told=stop_at("removed"))

    with pytest.raises(RunConflict):
        archive(spark, url, root, LATER, told=overtaken)
    assert [entry.jobs for entry in Archive(root).entries()] == [50]
    summary = archive(spark, url, root, LATER)
    assert (summary.written, summary.facts["finished_before"]) == (0, 0), "the run that was stopped had removed all"
    with tenure.open(url, sweep=False) as store:
        assert store.queue("q").counts().done == 0
    assert [place.split("/")[1] for place in Archive(root).root.attempts()] == ["run=1"], "what others left is gone"
    assert restore(spark, url, root, "payload = '7'").written == 1
    rest = restore(spark, url, root)
    assert (rest.written, rest.facts["there"]) == (49, 1)
    assert summed(url) == before


def test_a_run_is_finished_only_in_its_own_store(spark: SparkSession, tmp_path: Path) -> None:
    """A run that was stopped before it had removed its jobs: another store, or a restored copy in which a job with the
    same token ended differently, would be taken for the store whose jobs are in the archive."""
    url, restored, other = (f"rocksdb:{tmp_path / name}" for name in ("a", "restored", "other"))
    root = str(tmp_path / "archive")
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("q")
        queue.configure(Policy(retention=86_400))
        queue.enqueue(b"x")
        claimed = queue.claim()
        store.snapshot(tmp_path / "restored")
        queue.ack(claimed[0], result=b"first")
    with pytest.raises(Stopped):
        archive(spark, url, root, LATER, told=stop_at("removed"))
    with tenure.open(restored, sweep=False) as store:
        store.queue("q").ack(claimed[0], result=b"second")
    ended(other, 1)
    for where, said in ((restored, "was written at"), (other, "another store lies there now")):
        with pytest.raises(InvalidArgument, match=rf"{said}.* Give this one another ROOT"):
            archive(spark, where, root, LATER)
        with tenure.open(where, sweep=False) as store:
            assert store.queue("q").counts().done == 1, "nothing was removed"
    (entry,) = Archive(root).entries()
    assert not Archive(root).removed(entry)
    assert archive(spark, url, root, LATER).written == 0
    assert Archive(root).removed(entry)
    assert archive(spark, other, root, LATER).facts["removed"] == 1, "a root whose runs are finished takes other stores"
    log = Path(root) / "_log" / "000000000001.json"
    older = json.loads(log.read_text())
    assert older.pop("journal_end")
    log.write_text(json.dumps(older))
    assert [entry.journal_end is None for entry in Archive(root).entries()] == [True, False], "older entries are read"


@pytest.mark.crash
def test_two_runs_at_once_that_are_stopped(spark: SparkSession, tmp_path: Path) -> None:
    """Two pairs of runs, each stopped at some step (`test_archive_kill` kills processes): each job is archived once."""
    url, root = f"rocksdb:{tmp_path / 'a'}", str(tmp_path / "archive")
    for steps in (("verifying", "writing"), ("removed", "committing")):
        ended(url, 20)
        with ThreadPoolExecutor(2) as pool:
            runs = [pool.submit(archive, spark, url, root, LATER, told=stop_at(step)) for step in steps]
        for ran in runs:
            assert isinstance(ran.exception(), Stopped | ArchiveBusy | None)
    archive(spark, url, root, LATER)
    with tenure.open(url, sweep=False) as store:
        assert store.queue("q").counts().done == 0
    entries = Archive(root).entries()
    rows = spark.read.parquet(*[str(Path(root) / entry.place) for entry in entries])
    assert (rows.count(), rows.select("id").distinct().count()) == (40, 40)


def test_what_changed_since_is_not_removed(spark: SparkSession, tmp_path: Path) -> None:
    url, root = f"rocksdb:{tmp_path / 'a'}", str(tmp_path / "archive")
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("q")
        queue.enqueue_many([b"1", b"2"])
        for delivery in queue.claim(limit=2):
            queue.fail(delivery, error="no")
        job = queue.list("dead").jobs[0].id
    with pytest.raises(Stopped):
        archive(spark, url, root, LATER, told=stop_at("removed"))
    with tenure.open(url, sweep=False) as store:
        assert store.queue("q").counts().dead == 0
        restore_later = Archive(root).entries()[0]
    restore(spark, url, root)
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("q")
        queue.replay(ids=[job])
        queue.fail(queue.claim()[0], error="again")
    summary = archive(spark, url, root, LATER - timedelta(days=30))
    assert summary.facts["finished_before"] == 1, "the one that died again stays"
    with tenure.open(url, sweep=False) as store:
        assert [dead.id for dead in store.queue("q").list("dead")] == [job]
    assert restore_later.jobs == 2


def test_replay_by_a_predicate(spark: SparkSession, tmp_path: Path) -> None:
    url = f"rocksdb:{tmp_path / 'a'}"
    with tenure.open(url, sweep=False) as store:
        for name in ("a", "b"):
            queue = store.queue(name)
            queue.configure(Policy(max_attempts=1))
            queue.enqueue_many([json.dumps({"n": n}).encode() for n in range(6)])
            for delivery in queue.claim(limit=6):
                queue.fail(delivery, error="Timeout: x" if json.loads(delivery.payload)["n"] % 2 else "Other")
    where = "error LIKE 'Timeout%' AND get_json_object(string(payload), '$.n') > 1"
    plan = replay(spark, url, where, dry_run=True)
    assert (plan.read, plan.written, plan.facts["queues"]) == (4, 0, {"default/a": 2, "default/b": 2})
    code, said = run("spark", "replay", where, "--queue", "a", "--rate", "0.01", "--store", url)
    assert code == 0, said
    assert "default/a: 2 dead jobs" in said
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("a")
        # The second falls due 100 s after the first: listed in this order, it may be met twice but never missed.
        back = {job.id: job for state in ("scheduled", "ready") for job in queue.list(state)}.values()
        assert sorted(json.loads(job.payload)["n"] for job in back) == [3, 5]
        times = sorted(job.visible_at_ms for job in back)
        assert 0 < times[1] - times[0] <= 100_000  # spaced from when the replay began; the first is not put in the past
        assert store.queue("b").counts().dead == 6
    code, said = run("spark", "replay", "no_such_column = 1", "--store", url)
    assert code == 2
    assert "no_such_column" in said


def test_load_with_a_mapping_and_a_quarantine(spark: SparkSession, tmp_path: Path) -> None:
    url, aside = f"rocksdb:{tmp_path / 'a'}", tmp_path / "aside"
    rows = tmp_path / "rows.csv"
    rows.write_text("id,urgency,name\n1,5,ada\n2,99,bob\n3,1,\n")
    args = ("spark", "load", "people", str(rows), "--store", url, "-m", "priority=urgency", "-m", "key=concat('p-', id)",
            "-m", "headers.name=name", "--quarantine", str(aside), "--write-id", "monday", "--json")  # fmt: skip
    code, said = run(*args)
    assert code == 0, said
    answer = json.loads(said.splitlines()[-1])
    assert (answer["read"], answer["written"], answer["rejected"]) == (3, 2, 1)
    assert [path for path in aside.rglob("*") if path.is_file()], "the rejected row is kept, with its reason"
    with tenure.open(url, sweep=False) as store:
        store.queue("people").enqueue(b"by another producer")
    again = json.loads(run(*args)[1].splitlines()[-1])
    assert (again["read"], again["written"], again["rejected"]) == (3, 0, 1), "the same write again adds nothing"
    assert again["repeated"] is True
    with tenure.open(url, sweep=False) as store:
        first, second, _ = store.queue("people").list("ready")
    assert (json.loads(first.payload), first.key, first.headers) == (
        {"id": 1, "urgency": 5, "name": "ada"}, "p-1", {"name": "ada"},
    )  # fmt: skip
    assert second.headers == {}
    bad = tmp_path / "bad.json"
    bad.write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(InvalidArgument, match=r"1 rows .* cannot be read"):
        load(spark, url, "people", path=str(bad))
    for written in (1, 0):
        summary = load(spark, url, "people", path=str(bad), quarantine=str(aside / "json"), write_id="json")
        assert (summary.read, summary.written, summary.rejected) == (2, written, 1)
    assert spark.read.json(str(aside / "json" / "unreadable")).count() == 1
    query = load(spark, url, "numbers", sql="SELECT id AS n FROM range(5)", mapping={"payload": "string(n)"})
    assert (query.read, query.written) == (5, 5)


def test_mappings_that_make_no_sense(spark: SparkSession) -> None:
    rows = spark.range(1)
    for mapping in ({"colour": "id"}, {"headers": "map('a', 'b')", "headers.x": "id"}, {"headers.": "id"}):
        with pytest.raises(InvalidArgument):
            as_jobs(rows, mapping)
    for pairs in (("priority",), ("=id",), ("key=",), ("key=id", "key=id")):
        with pytest.raises(InvalidArgument):
            parse_mapping(pairs)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    code, said = run("spark", "audit", "--store", "rocksdb:./nowhere")
    assert code == 2
    assert "Java 17" in said
    assert "apt-get install openjdk-17" in said
    monkeypatch.setitem(__import__("sys").modules, "pyspark", None)
    with pytest.raises(SettingsError, match=r"tenure\[spark\]"):
        spark_session.require()


def test_a_wrong_setting_of_spark_is_said(spark: SparkSession, tmp_path: Path) -> None:
    said: Any = run("spark", "audit", "--store", f"rocksdb:{tmp_path}", "--conf", "oops")
    assert said[0] == 2
    assert "NAME=VALUE" in said[1]
