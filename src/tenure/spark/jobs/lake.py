"""Writing a history (`tenure.analysis.history_folder`): a run's files, its commit, and the removal of what was left behind.

A run's files lie in a folder of its own attempt, and count once its entry
is in the log; readers use logged files only. An entry is created exclusively, with its content, so of two runs that began at
the same place one wins, and the other has done nothing. A run that was killed leaves files that no entry names: the
next run starts where the log ends, and removes them once they can no longer be committed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tenure.analysis.history_folder import LOG, OPEN, Entry, HistoryFolder, local
from tenure.errors import TenureError

__all__ = ["OPEN", "Entry", "Lake", "RunConflict", "create_once", "local", "new_attempt", "rows_in"]


class RunConflict(TenureError):
    """Another run was committed in this one's place: nothing of this one counts. Run it again to go on from there."""

    code = "run_conflict"

    def __init__(self, number: int) -> None:
        super().__init__(
            f"run {number} was committed by someone else meanwhile: nothing of this one counts, run it again"
        )


class Lake(HistoryFolder):
    """A history for the jobs that write it."""

    # ── the log ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def commit(self, entry: Entry) -> None:
        """Make a run count. Raises RunConflict if its place is taken."""
        if not create_once(self.root / LOG / f"{entry.number:012}.json", msgspec.json.encode(entry)):
            raise RunConflict(entry.number)

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def place(self, table: str, label: str, attempt: str) -> str:
        return f"{table}/run={label}/{attempt}"

    def read(self, spark: SparkSession, table: str, *, last: bool = False) -> DataFrame | None:
        """A table of all runs, or of the last one only (always, of what is open); None if there is no run yet."""
        paths = self.paths(table, last=last)
        return spark.read.parquet(*paths) if paths else None

    def vacuum(self) -> int:
        """Remove folders that no entry names and none can name any more; returns how many."""
        entries = self.entries()
        # Of what is open the last run tells; the one before is left to those who are reading it.
        logged = {
            place
            for entry in entries
            for table, place in entry.tables.items()
            if table not in OPEN or entry.number >= len(entries) - 1
        }
        end = sum(entries[-1].end.values()) if entries else 0
        removed = 0
        for folder in self.root.glob("*/run=*/*"), self.root.glob("*/*/run=*/*"):
            for path in folder:
                begin = path.parent.name.removeprefix("run=").partition("-")[0]
                if not path.is_dir() or not begin.isdigit() or path.relative_to(self.root).as_posix() in logged:
                    continue
                # One that begins at the log's end may be of a run that is at work.
                if int(begin) < end:
                    shutil.rmtree(path, ignore_errors=True)
                    with contextlib.suppress(OSError):
                        path.parent.rmdir()
                    removed += 1
        for draft in (self.root / LOG).glob(".*"):
            draft.unlink(missing_ok=True)
        return removed


def create_once(path: Path, content: bytes) -> bool:
    """Make a file that was not there, whole and durable; False if it is there already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.parent / f".{uuid.uuid4().hex}"
    with draft.open("xb") as file:
        file.write(msgspec.json.format(content, indent=1))
        file.flush()
        os.fsync(file.fileno())
    try:
        # A link appears with its content or not at all, and never in the place of another.
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    _sync(path.parent)
    return True


def new_attempt() -> str:
    return uuid.uuid4().hex[:12]


def rows_in(folder: str) -> int:
    """How many rows its Parquet files have, by what they say of themselves."""
    return sum(pq.read_metadata(path).num_rows for path in Path(folder).glob("*.parquet"))


def _sync(folder: Path) -> None:
    at = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(at)
    finally:
        os.close(at)
