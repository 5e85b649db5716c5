"""A history on disk: files under the runs that wrote them, and a log that says which runs count.

    ROOT/_log/000000000001.json                        one entry a run, created once: the run's commit
    ROOT/bronze/run=0-5000/3f9a…/part-….parquet        what the run covers, its attempt, its files
    ROOT/silver/attempts/run=0-5000/3f9a…/…            and so on for every table

A run covers the journal's commits after `a` up to `b`. Its files lie in a folder of its own attempt, and count once its entry
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

from tenure.errors import InvalidArgument, TenureError

VERSION = 1
_LOG = "_log"
#: Tables that every run writes whole: what is open. Those of the last run count.
OPEN = ("silver/open_attempts", "silver/open_lives", "silver/carry")


class RunConflict(TenureError):
    """Another run was committed in this one's place: nothing of this one counts. Run it again to go on from there."""

    code = "run_conflict"

    def __init__(self, number: int) -> None:
        super().__init__(
            f"run {number} was committed by someone else meanwhile: nothing of this one counts, run it again"
        )


class Entry(msgspec.Struct, kw_only=True, omit_defaults=False):
    """A run's commit."""

    version: int = VERSION
    number: int
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

    @property
    def label(self) -> str:
        return f"{sum(self.start.values())}-{sum(self.end.values())}"


class Lake:
    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = local(root, "a history")

    # ── the log ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def entries(self) -> list[Entry]:
        found: list[Entry] = []
        for path in sorted((self.root / _LOG).glob("[0-9]*.json")):
            entry = msgspec.json.decode(path.read_bytes(), type=Entry)
            if entry.version > VERSION:
                raise InvalidArgument(f"{path} was written by a newer Tenure (version {entry.version})")
            if entry.number != len(found) + 1:
                raise InvalidArgument(f"{self.root / _LOG}: entry {len(found) + 1} is missing")
            found.append(entry)
        return found

    def commit(self, entry: Entry) -> None:
        """Make a run count. Raises RunConflict if its place is taken."""
        if not create_once(self.root / _LOG / f"{entry.number:012}.json", msgspec.json.encode(entry)):
            raise RunConflict(entry.number)

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def place(self, table: str, label: str, attempt: str) -> str:
        return f"{table}/run={label}/{attempt}"

    def path(self, place: str) -> str:
        return str(self.root / place)

    def read(self, spark: SparkSession, table: str, *, last: bool = False) -> DataFrame | None:
        """A table of all runs, or of the last one only (always, of what is open); None if there is no run yet."""
        entries = self.entries()
        chosen = entries[-1:] if last or table in OPEN else entries
        places = [self.path(entry.tables[table]) for entry in chosen if entry.rows.get(table)]
        if places:
            return spark.read.parquet(*places)
        named = [self.path(entry.tables[table]) for entry in entries[-1:]]
        return spark.read.parquet(*named) if named else None  # no rows, and the right columns

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
        for draft in (self.root / _LOG).glob(".*"):
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


def local(root: str | os.PathLike[str], what: str) -> Path:
    """The folder, which the driver and all executors must see under one path."""
    text = os.fspath(root)
    if "://" in text and not text.startswith("file://"):
        raise InvalidArgument(
            f"{text}: {what} lies in a folder that the driver and all executors see under one path (a disk, NFS, a mounted bucket)"
        )
    return Path(text.removeprefix("file://")).expanduser().absolute()


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
