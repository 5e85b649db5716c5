"""`history`: the journal as tables that people ask questions of, brought up to date run by run.

    journal ──▶ bronze (events) ──▶ silver (attempts, lives) ──▶ gold (hourly partials)

Each run covers the commits since the one before. It writes files of its own and then one log entry, which is its commit
(`lake`): killed at any point it has done nothing, and run again it does the same.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark.storagelevel import StorageLevel

from tenure.analysis import attempts, metrics
from tenure.analysis.commit_log import new_attempt
from tenure.analysis.pauses import CHANGES, paused_hours
from tenure.analysis.summary import Summary, Told, quietly
from tenure.bulk import snapshot_locations
from tenure.bulk.journal_reader import At
from tenure.bulk.query import Query
from tenure.bulk.schemas import ddl
from tenure.errors import Corrupt, InvalidArgument
from tenure.spark.jobs import journal, parquet_files, root_tables
from tenure.spark.jobs.journal import SHARD
from tenure.spark.jobs.lake import Entry, Lake
from tenure.spark.jobs.parquet_files import Written
from tenure.spark.jobs.sizing import sized
from tenure.spark.lineage import traced
from tenure.spark.snapshots import snapshot
from tenure.spark.statements import run

CONSUMER = "history"
SLO = 60.0
_EVENTS_A_FILE = 250_000


@traced(reads=("url",), writes=("root",))
def history(
    spark: SparkSession,
    url: str,
    root: str,
    *,
    slo: float | None = None,
    consumer: str | None = CONSUMER,
    told: Told = quietly,
) -> Summary:
    """Bring the history at `root` up to the journal's end.

    Raises RunConflict, JournalTrimmed, and InvalidArgument if the log of `root` is of another store, or of this one before
    it was restored.

    `slo` is in seconds, and set with the first run. `consumer` is the name under which the journal is asked to keep what
    this history has yet to read; None asks for nothing. `root` is a folder, or the address of an object store.
    """
    began = time.monotonic()
    lake = Lake(root)
    lake.root.check_create()
    lake.vacuum()
    entries = lake.entries()
    last = entries[-1] if entries else None
    slo = _checked_slo(slo, last)
    told("looking at the journal")
    start, end = journal.bounds(url, None if last is None else _read_to(last), f"the log of {lake.root.address}")
    if consumer is not None and last is not None:
        journal.register(url, consumer, last.end[SHARD])
    summary = Summary(job="history", facts={"root": lake.root.address, "run": None, "commits": None})
    if start.commit == end.commit:
        summary.seconds = time.monotonic() - began
        return summary
    with snapshot(url, name="history") as snap:
        entry = _Run(spark, lake, last, start, end, slo, told).write(url, snap.id)
    told("committing")
    lake.log.commit(entry)
    lake.vacuum()
    if consumer is not None:
        journal.register(url, consumer, entry.end[SHARD])
    summary.read = entry.rows["bronze"]
    summary.written = sum(entry.rows.values())
    summary.facts |= {"run": entry.number, "commits": entry.label, "rows": entry.rows}
    summary.seconds = time.monotonic() - began
    return summary


def _checked_slo(slo: float | None, last: Entry | None) -> float:
    if last is not None and slo is not None and slo != last.slo:
        raise InvalidArgument(
            f"this history counts an SLO of {last.slo:g} s since its first run: {slo:g} s needs a history of its own"
        )
    return last.slo if last is not None else SLO if slo is None else slo


def _read_to(last: Entry) -> At:
    """The first commit after a run. A journal's times never decrease: the run's last is that of its last commit."""
    return At(last.end[SHARD] + 1, last.last_number[SHARD] + 1, last.store_id, last.end_ms)


class _Run:
    """One run's work, up to its commit."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        last: Entry | None,
        start: At,
        end: At,
        slo: float,
        told: Told,
    ) -> None:
        self._spark, self._lake, self._last, self._told = spark, lake, last, told
        self._start, self._end, self._slo = start, end, slo
        self._label = f"{start.commit - 1}-{end.commit - 1}"
        self._attempt = new_attempt()
        self._tables: dict[str, str] = {}
        self._rows: dict[str, int] = {}

    def write(self, url: str, snapshot: str) -> Entry:
        start_ms = None if self._last is None else self._last.end_ms
        bronze, files = self._bronze(url, snapshot)
        last_number, end_ms = self._whole(files)
        span = metrics.Span(start_ms, end_ms)
        with sized(self._spark, self._rows["bronze"]):
            paused = self._tell(bronze, span, start_ms, end_ms)
        return Entry(
            number=1 if self._last is None else self._last.number + 1,
            store=url,
            store_id=self._end.store,
            start={SHARD: self._start.commit - 1},
            end={SHARD: self._end.commit - 1},
            last_number=last_number,
            start_ms=start_ms,
            end_ms=end_ms,
            tables=self._tables,
            rows=self._rows,
            paused=paused,
            slo=self._slo,
        )

    def _bronze(self, url: str, snapshot: str) -> tuple[DataFrame, list[Written]]:
        """Write the events of the run's commits, and read them back."""
        self._told("bronze")
        at = snapshot_locations.find(url, snapshot)
        parts = at.events(self._start.commit, self._end.commit, _EVENTS_A_FILE)
        place = self._lake.place("bronze", self._label, self._attempt)
        # One file is quickly written here: a Spark job costs as much as a hundred thousand rows.
        spark = self._spark if len(parts) > 1 else None
        files = parquet_files.write(spark, at, Query("events"), parts, self._lake.root, place)
        self._tables["bronze"], self._rows["bronze"] = place, sum(file.rows for file in files)
        schema = StructType.fromDDL(ddl("events"))
        assert isinstance(schema, StructType)
        return self._read(place, schema), files

    def _tell(self, bronze: DataFrame, span: metrics.Span, start_ms: int | None, end_ms: int) -> dict[str, int]:
        """Write silver and gold; which queues are paused at the end."""
        carried = None if self._last is None else self._lake.read(self._spark, "silver/carry", last=True)
        self._told("silver: putting each job's events side by side")
        if carried is None:
            found = run(self._spark, attempts.CHAINS, events=bronze)
        else:
            found = run(self._spark, attempts.CHAINS_CARRIED, events=bronze, carried=carried)
        chains = found.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            tried, lives = self._silver(chains)
            self._gold(chains, tried, lives, span)
        finally:
            chains.unpersist()
        changes = [row.asDict() for row in run(self._spark, CHANGES, events=bronze).collect()]
        hours, paused = paused_hours(changes, {} if self._last is None else self._last.paused, start_ms, end_ms)
        self._put("gold/paused", self._spark.createDataFrame(hours, PAUSED), few=True)
        return paused

    def _silver(self, chains: DataFrame) -> tuple[DataFrame, DataFrame]:
        tried = run(self._spark, attempts.ATTEMPTS, chains=chains)
        told = tried.drop("carried")  # which says how runs were cut, and nothing of the attempt
        self._put("silver/attempts", told.where("ended_at IS NOT NULL"))
        self._put("silver/open_attempts", told.where("ended_at IS NULL"))
        # Lives are gathered once, and read back for what follows.
        self._told("silver: lives")
        lives = self._put("silver/lives_seen", run(self._spark, attempts.LIVES, chains=chains), kept=False)
        for name, text in (
            ("lives", attempts.CLOSED_LIVES),
            ("open_lives", attempts.OPEN_LIVES),
            ("carry", attempts.CARRY),
        ):
            self._put(f"silver/{name}", run(self._spark, text, lives=lives))
        return tried, lives

    def _gold(self, chains: DataFrame, tried: DataFrame, lives: DataFrame, span: metrics.Span) -> None:
        closed = self._read(self._tables["silver/lives"])
        tables = {"chains": chains, "attempts": tried, "lives": lives, "closed": closed}
        # Small ones, and each mostly waiting for the driver to plan it: side by side.
        with ThreadPoolExecutor(3) as threads:
            list(
                threads.map(
                    lambda item: self._put(f"gold/{item[0]}", run(self._spark, item[1], **tables), few=True),
                    metrics.partials(self._slo, span).items(),
                )
            )

    def _put(self, table: str, rows: DataFrame, *, few: bool = False, kept: bool = True) -> DataFrame:
        """Write a table of this run, and read it back; one that is not `kept` is for this run alone, and swept after it."""
        self._told(f"{table}")
        place = self._lake.place(table, self._label, self._attempt)
        options = _KEPT if kept else _PASSING
        root_tables.write(rows.coalesce(1) if few else rows, self._lake.root, place, options)
        if kept:
            self._tables[table] = place
            self._rows[table] = root_tables.row_count(self._lake.root, place)
        return self._read(place, rows.schema)

    def _read(self, place: str, schema: StructType | None = None) -> DataFrame:
        return root_tables.read(self._spark, self._lake.root, [place], schema)

    def _whole(self, files: Sequence[Written]) -> tuple[dict[str, int], int]:
        """Verify that the events follow on those before, without a gap; the last number of each shard, and the last time."""
        numbers = dict(self._last.last_number) if self._last is not None else {}
        full = [file for file in files if file.rows]
        first, last = full[0].first_number, full[-1].last_number
        assert first is not None
        assert last is not None
        count, wanted = sum(file.rows for file in full), numbers.get(SHARD, first - 1) + 1
        if first != wanted or count != last - first + 1 or full[-1].last_commit != self._end.commit - 1:
            raise Corrupt(
                f"the journal {SHARD} gave {count} events from number {first} to {last},"
                f" and not all from {wanted} on: it is damaged, or of another store than the runs before"
            )
        before = 0 if self._last is None else self._last.end_ms
        return {**numbers, SHARD: last}, max([file.last_ms or 0 for file in full] + [before])


#: No dictionary of what hardly repeats: Parquet would make one, hash by hash, and throw it away.
_KEPT = {f"parquet.enable.dictionary#{name}": "false" for name in ("job_id", "number")}
#: For what is read a moment later, and then gone, nothing is made small.
_PASSING = {"parquet.enable.dictionary": "false", "compression": "none"}

PAUSED = "hour TIMESTAMP, tenant STRING, queue STRING, paused_ms BIGINT"
