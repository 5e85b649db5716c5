"""A history that is stopped at any point and run again is the history of an undisturbed run."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tenure
from tenure import ManualClock
from tenure.analysis import metrics
from tenure.analysis.history_folder import HistoryFolder
from tenure.analysis.report.facts import Facts
from tenure.analysis.report.job import facts_of as local_facts
from tenure.errors import InvalidArgument, OpenError
from tenure.spark.jobs import report as spark_report
from tenure.spark.jobs.history import history
from tenure.spark.jobs.lake import Entry, Lake, RunConflict
from tenure.spark.jobs.report import facts_of as spark_facts
from tenure.spark.jobs.report import report
from tenure.spark.statements import run
from tests.spark.made import live, small_plans

pytestmark = pytest.mark.timeout(400)  # a busy machine: the shared JVM may have to compile all of it first
KILLS = int(os.environ.get("HISTORY_KILLS", "0"))


@pytest.fixture(scope="module", autouse=True)
def _quick(spark: SparkSession) -> Iterator[None]:
    with small_plans(spark):
        yield


class Stopped(Exception):
    """Stands for a kill: nothing of ours runs after it."""


def stop_at(step: str) -> Any:
    def told(said: str) -> None:
        if said.startswith(step):
            raise Stopped(said)

    return told


def facts(spark: SparkSession, root: str) -> dict[str, Any]:
    """Everything a reader sees, but what percentiles are estimated from."""
    lake = Lake(root)
    found = {}
    for table in lake.entries()[-1].tables:
        if table == "silver/carry":
            continue
        rows = lake.read(spark, table)
        assert rows is not None
        if table.startswith("gold/") and table != "gold/paused":
            rows = run(spark, metrics.merged(table.removeprefix("gold/")), partials=rows)
        elif table == "gold/paused":
            rows = rows.groupBy("hour", "tenant", "queue").sum("paused_ms")
        names = sorted(name for name in rows.columns if "sketch" not in name)
        found[table] = sorted((tuple(row) for row in rows.select(*names).collect()), key=repr)
    return found


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A store, and a history of it that was stopped at its worst moments while the store went on."""
    place = tmp_path_factory.mktemp("history")
    url, root = f"rocksdb:{place / 'data'}", str(place / "stopped")
    clock = ManualClock()
    steps = (
        ("silver/lives", "gold/ready", "committing") if "CRASH_ROUNDS" in os.environ else ("gold/ready", "committing")
    )
    for number, step in enumerate(steps):
        with tenure.open(url, clock=clock, sweep=False, durability="os") as store:
            live(store, clock, rounds=25, seed=number, jobs=8)
        if step == "committing":
            assert history(spark, url, root).facts["run"] == 1
            with tenure.open(url, clock=clock, sweep=False, durability="os") as store:
                live(store, clock, rounds=10, seed=number, jobs=8)
        with pytest.raises(Stopped):
            history(spark, url, root, told=stop_at(step))
    return url, root


def test_stopped_anywhere_it_is_the_same_history(spark: SparkSession, world: tuple[str, str], tmp_path: Path) -> None:
    url, root = world
    assert list(Path(root).glob("bronze/run=*/*")), "files of the run that was stopped are there"
    summary = history(spark, url, root)
    assert (summary.facts["run"], summary.read > 0) == (2, True)
    again = history(spark, url, root)
    assert (again.facts["run"], again.read) == (None, 0), "nothing happened since"
    undisturbed = str(tmp_path / "undisturbed")
    assert history(spark, url, undisturbed, consumer=None).facts["run"] == 1
    stopped, whole = facts(spark, root), facts(spark, undisturbed)
    for table, rows in whole.items():
        assert stopped[table] == rows, table
    bronze = Lake(root).read(spark, "bronze")
    assert bronze is not None
    assert bronze.select("shard", "commit", "index").distinct().count() == len(whole["bronze"])
    logged = {place for entry in Lake(root).entries() for place in entry.tables.values()}
    left = {str(path.relative_to(root)) for path in (*Path(root).glob("*/run=*/*"), *Path(root).glob("*/*/run=*/*"))}
    assert left == logged, "what stopped runs left is gone"


def test_on_an_object_store_it_is_the_same_history(spark: SparkSession, world: tuple[str, str], bucket: str) -> None:
    """Stopped once, and in two runs; Spark has no jar for S3: its Python reads and writes."""
    url, root = world
    there = f"{bucket}/history"
    with pytest.raises(Stopped):
        history(spark, url, there, consumer=None, told=stop_at("silver: putting"))
    stopped = Lake(there).root.attempts()
    assert stopped
    assert Lake(there).entries() == []
    assert history(spark, url, there, consumer=None).facts["run"] == 1
    assert not set(stopped) & set(Lake(there).root.attempts()), "what the stopped run left is gone"
    history(spark, url, root)
    for table in ("bronze", "silver/attempts", "silver/lives", "silver/open_lives"):
        assert read_here(there, table) == read_here(root, table), table
    bronze = Lake(there).read(spark, "bronze")
    assert bronze is not None
    assert bronze.count() == len(read_here(root, "bronze"))
    assert asdict(local_facts(there))["totals"] == asdict(local_facts(root))["totals"]


def read_here(root: str, table: str) -> list[str]:
    """The rows of a table as Arrow reads them, without Spark; times in microseconds, as both kinds of files have them."""
    rows = HistoryFolder(root).dataset(table).to_table()
    fields = [(f.name, pa.timestamp("us", tz="UTC") if pa.types.is_timestamp(f.type) else f.type) for f in rows.schema]
    return sorted(repr(sorted(row.items())) for row in rows.cast(pa.schema(fields)).to_pylist())


def test_of_two_runs_from_one_place_one_counts(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    entry = Entry(
        number=1, store="rocksdb:x", start={"0": 0}, end={"0": 5}, last_number={"0": 9}, start_ms=None, end_ms=1, tables={},
        rows={}, paused={}, slo=60,
    )  # fmt: skip
    lake.log.commit(entry)
    with pytest.raises(RunConflict):
        lake.log.commit(entry)
    assert lake.entries() == [entry]


def test_the_journal_is_kept_for_it(world: tuple[str, str]) -> None:
    url, _ = world
    with tenure.open(url, sweep=False) as store:
        assert store.forget_consumer("history")


def test_what_is_refused(spark: SparkSession, world: tuple[str, str], tmp_path: Path) -> None:
    url, root = world
    with pytest.raises(InvalidArgument, match="SLO of 60 s"):
        history(spark, url, root, slo=10)
    with pytest.raises(OpenError, match="no store"):
        history(spark, f"rocksdb:{tmp_path / 'nothing'}", root)
    with pytest.raises(InvalidArgument, match="no history"):
        report(spark, str(tmp_path), str(tmp_path / "r.html"))
    with tenure.open(f"rocksdb:{tmp_path / 'other'}", sweep=False) as store:
        store.queue("q").enqueue(b"x")
    with pytest.raises(InvalidArgument, match="another store"):
        history(spark, f"rocksdb:{tmp_path / 'other'}", root)


class Read(NamedTuple):
    """A history of one run, and its store: five commits of one event each, and copies after the third and the fifth."""

    url: str
    third: Path
    fifth: Path
    root: str


@pytest.fixture(scope="module")
def read_once(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Read:
    place = tmp_path_factory.mktemp("read_once")
    made = Read(f"rocksdb:{place / 'data'}", place / "third", place / "fifth", str(place / "history"))
    clock = ManualClock()
    add(made.url, 3, clock)
    with tenure.open(made.url, clock=clock, sweep=False) as store:
        store.snapshot(made.third)
    add(made.url, 2, clock)
    with tenure.open(made.url, clock=clock, sweep=False) as store:
        store.snapshot(made.fifth)
    assert history(spark, made.url, made.root).facts["commits"] == "0-5"
    return made


def add(url: str, events: int, clock: ManualClock) -> None:
    with tenure.open(url, clock=clock, sweep=False) as store:
        for _ in range(events):
            clock.advance(1)
            store.queue("q").enqueue(b"x")


def test_another_store_is_refused(spark: SparkSession, read_once: Read, tmp_path: Path) -> None:
    """One with as many commits and events, and with more, which a run would add to the first one's."""
    url = f"rocksdb:{tmp_path / 'other'}"
    for events in (5, 2):
        add(url, events, ManualClock())
        with pytest.raises(InvalidArgument, match=r"another store lies there now\. Give this one another ROOT"):
            history(spark, url, read_once.root)
    assert len(Lake(read_once.root).entries()) == 1
    with tenure.open(url, sweep=False) as store:
        assert not store.forget_consumer("history"), "the refused run asks nothing of the other store"


def test_a_store_that_was_restored_and_went_on_is_refused(spark: SparkSession, read_once: Read, tmp_path: Path) -> None:
    """Its id and its numbers are those of the store that was read; the time of the last commit that was read is not."""
    restored = tmp_path / "restored"
    shutil.copytree(read_once.third, restored)
    url, clock = f"rocksdb:{restored}", ManualClock()
    clock.advance(60)
    with pytest.raises(InvalidArgument, match=r"past the end .* Give this one another ROOT"):
        history(spark, url, read_once.root)
    for events in (2, 2):
        add(url, events, clock)
        with pytest.raises(InvalidArgument, match=r"commit 5 of .* was written at .* Give this one another ROOT"):
            history(spark, url, read_once.root)
    assert len(Lake(read_once.root).entries()) == 1


def test_a_copy_that_did_not_go_on_and_older_entries_are_accepted(
    spark: SparkSession, read_once: Read, tmp_path: Path
) -> None:
    moved, root = f"rocksdb:{tmp_path / 'moved'}", tmp_path / "history"
    shutil.copytree(read_once.fifth, tmp_path / "moved")
    shutil.copytree(read_once.root, root)
    assert history(spark, moved, str(root)).facts["run"] is None
    log = root / "_log" / "000000000001.json"
    entry = msgspec.json.decode(log.read_bytes())
    assert entry.pop("store_id")
    log.write_bytes(msgspec.json.encode(entry))  # as a Tenure wrote it that compared no ids
    clock = ManualClock()
    clock.advance(60)
    add(moved, 2, clock)
    summary = history(spark, moved, str(root))
    assert (summary.facts["commits"], summary.read) == ("5-7", 2)
    assert [bool(entry.store_id) for entry in Lake(root).entries()] == [False, True]


class Page(HTMLParser):
    """Its open tags, and everything that would ask the network for something."""

    EMPTY = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.asks: list[str] = []
        self.seen: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        if tag not in self.EMPTY:
            self.open.append(tag)
        self.asks += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset", "action", "data")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def on_spark(spark: SparkSession, world: tuple[str, str]) -> Facts:
    """What the report shows, gathered once: it takes some forty queries."""
    return spark_facts(spark, world[1], title="A <week> of it")


def test_the_report_is_one_page_that_needs_nothing(
    spark: SparkSession, world: tuple[str, str], on_spark: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, root = world
    monkeypatch.setattr(spark_report, "facts_of", lambda *args, **options: on_spark)
    target = tmp_path / "report.html"
    summary = report(spark, root, str(target), title="A <week> of it")
    text = target.read_text()
    assert summary.facts["path"] == str(target)
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.asks == []
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttp", text)
    assert page.seen["svg"] > 6
    for part in (
        "A &lt;week&gt; of it",
        "default/emails",
        "acme/emails",
        "MailboxFull",
        "Throughput",
        "Slowest jobs",
        "p95",
    ):
        assert part in text, part
    assert "DOES NOT ADD UP" not in text
    assert list(tmp_path.iterdir()) == [target], "no draft is left"


def test_the_report_says_the_same_without_java(world: tuple[str, str], on_spark: Facts) -> None:
    """From the hourly numbers of two runs on Spark, and from all events in this process."""
    _, root = world
    there, here = asdict(on_spark), asdict(local_facts(root, title="A <week> of it"))
    assert (there.pop("exact"), here.pop("exact")) == (False, True)
    for facts in (there, here):
        for name in ("waits", "run_times", "heat", "life_p50", "life_p95"):
            del facts[name]  # percentiles: of sketches, and of every value
        for row in (facts["totals"], *facts["tenants"], *facts["queues"]):
            for name in ("wait_p50", "wait_p95", "run_p50", "run_p95"):
                del row[name]
    for name, value in here.items():
        assert there[name] == value, name
    assert len(here["slowest"]) == 15
    assert here["workers"]


def test_delta_tables_are_added_once(spark: SparkSession, world: tuple[str, str]) -> None:
    deltalake = pytest.importorskip("deltalake")
    from tenure.spark.jobs.delta import publish

    _, root = world
    lake = Lake(root)
    first = publish(root)
    assert publish(root) == first, "nothing was added twice"
    rows = deltalake.DeltaTable(f"{root}/delta/bronze").to_pyarrow_table().num_rows
    assert rows == sum(entry.rows["bronze"] for entry in lake.entries())
    still = deltalake.DeltaTable(f"{root}/delta/silver/open_lives").to_pyarrow_table().num_rows
    assert still == lake.entries()[-1].rows["silver/open_lives"]


def test_iceberg_tables_are_added_once(world: tuple[str, str]) -> None:
    pytest.importorskip("pyiceberg")
    from pyiceberg.table import StaticTable

    from tenure.spark.jobs.iceberg import publish

    _, root = world
    first = publish(root)
    assert publish(root) == first, "nothing was added twice"
    rows = StaticTable.from_metadata(first["bronze"]).scan().to_arrow().num_rows
    assert rows == sum(entry.rows["bronze"] for entry in Lake(root).entries())
    still = StaticTable.from_metadata(first["silver/open_lives"]).scan().to_arrow().num_rows
    assert still == Lake(root).entries()[-1].rows["silver/open_lives"]


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not KILLS, reason="HISTORY_KILLS=10 kills a driver that many times")
def test_killed_at_random_it_is_the_same_history(spark: SparkSession, tmp_path: Path) -> None:
    url, root = f"rocksdb:{tmp_path / 'data'}", str(tmp_path / "killed")
    clock = ManualClock()
    with tenure.open(url, clock=clock, sweep=False, durability="os") as store:
        live(store, clock, rounds=60)
    chance = random.Random(7)
    program = (
        "import sys, tenure.spark\nfrom tenure.spark.jobs.history import history\n"
        "spark = tenure.spark.session(master='local[2]', conf={'spark.log.level': 'ERROR'})\n"
        "print('ready', flush=True)\nhistory(spark, sys.argv[1], sys.argv[2])\nprint('done', flush=True)\n"
    )
    killed = 0
    while killed < KILLS:
        driver = subprocess.Popen(
            [sys.executable, "-c", program, url, root], stdout=subprocess.PIPE, start_new_session=True
        )
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"ready\n"
        try:
            driver.wait(chance.uniform(0.1, 12))
        except subprocess.TimeoutExpired:
            killed += 1
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        driver.stdout.close()
        if driver.returncode == 0:  # it was done: give it something to do
            with tenure.open(url, clock=clock, sweep=False, durability="os") as store:
                live(store, clock, rounds=20, seed=killed)
        time.sleep(0.1)
    history(spark, url, root)
    history(spark, url, str(tmp_path / "undisturbed"), consumer=None)
    assert facts(spark, root) == facts(spark, str(tmp_path / "undisturbed"))
