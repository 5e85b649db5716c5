"""A history: files under the runs that wrote them, and a log that says which runs count (`commit_log`).

    ROOT/_log/000000000001.json                        one entry a run, created once: the run's commit
    ROOT/bronze/run=0-5000/3f9a…/part-….parquet        what the run covers, its attempt, its files
    ROOT/silver/attempts/run=0-5000/3f9a…/…            and so on for every table

A run covers the journal's commits after `a` up to `b`. Readers use only files that the log names.
"""

from __future__ import annotations

import os

import msgspec
import pyarrow.dataset as ds

from tenure.analysis.commit_log import CommitLog
from tenure.analysis.root import open_root
from tenure.errors import InvalidArgument

VERSION = 1
#: Tables that every run writes whole: what is open. Those of the last run count.
OPEN = ("silver/open_attempts", "silver/open_lives", "silver/carry")


class Entry(msgspec.Struct, kw_only=True, omit_defaults=False):
    """A run's commit."""

    version: int = VERSION
    number: int
    #: The store's address.
    store: str
    #: Shard → the last commit before the run, and the last of it.
    start: dict[str, int]
    end: dict[str, int]
    #: The number of each shard's last event.
    last_number: dict[str, int]
    start_ms: int | None
    end_ms: int
    #: Table → its folders, under the root.
    tables: dict[str, str]
    rows: dict[str, int]
    #: "tenant/queue" → since when it has been paused.
    paused: dict[str, int]
    slo: float
    #: The store's id, which its copies share; empty: not known (entries of older versions have none).
    store_id: str = ""

    @property
    def label(self) -> str:
        return f"{sum(self.start.values())}-{sum(self.end.values())}"


class HistoryFolder:
    """The log, and the files that it names: for readers. `root` is a path, or the address of an object store."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = open_root(root)
        self.log = CommitLog(self.root, Entry, VERSION)

    def entries(self) -> list[Entry]:
        return self.log.entries()

    def places(self, table: str, *, last: bool = False) -> list[str]:
        """The folders, below the root, of a table with rows: of all runs or of the last one only (always, of what is open).

        With no rows, one that has the right columns; none if there is no run yet.
        """
        entries = self.entries()
        chosen = entries[-1:] if last or table in OPEN else entries
        full = [entry.tables[table] for entry in chosen if entry.rows.get(table)]
        return full or [entry.tables[table] for entry in entries[-1:]]

    def dataset(self, table: str) -> ds.Dataset:
        """A table of all runs (of the last one, of what is open) for DuckDB, polars, pandas and Arrow.

        Raises InvalidArgument if there is no run yet.
        """
        places = self.places(table)
        if not places:
            raise InvalidArgument(f"there is no history at {self.root.address}")
        return self.root.dataset(places)
