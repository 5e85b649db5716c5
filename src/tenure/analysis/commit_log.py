"""The log of a folder that runs write into: one numbered file a run, created once, is that run's commit.

    ROOT/_log/000000000001.json           run 1's entry, created whole: from then on the files that it names count
    ROOT/_log/000000000001.removed.json   a note added to run 1 later, by its name
    ROOT/_log/.lock                       held by a run that excludes others
    ROOT/TABLE/run=LABEL/3f9a…/           the files of one attempt of a run

Histories (`history_folder`) and archives (`tenure.spark.jobs.archive`) keep one. A staged write needs none: its log is the
store, which records the write's manifest, and each chunk in the transaction that publishes it (`tenure.bulk.publisher`).

Of two runs with one number one commits, and the other raises RunConflict with nothing done. A run that was killed leaves
files that no entry names; the next one removes them once their place in the log is taken, so that they can no longer
be committed. What lies at the log's end may be of a run that is at work, and stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from tenure.errors import InvalidArgument, TenureError

LOG = "_log"
#: Drafts of entries that are older, in seconds, were left by a run that was killed.
_DRAFT_SECONDS = 3600


class LogEntry(Protocol):
    """A msgspec struct: a run's number, from 1, and the version of its format."""

    version: int
    number: int


E = TypeVar("E", bound=LogEntry)


class RunConflict(TenureError):
    """Another run was committed in this one's place: nothing of this one counts. Run it again to go on from there."""

    code = "run_conflict"

    def __init__(self, number: int) -> None:
        super().__init__(
            f"run {number} was committed by someone else meanwhile: nothing of this one counts, run it again"
        )


class CommitLog(Generic[E]):
    """The log of the runs in the folder `root`, whose entries are of type `kind`, of version `version` or older."""

    def __init__(self, root: Path, kind: type[E], version: int = 1) -> None:
        self.root = root
        self._log, self._kind, self._version = root / LOG, kind, version

    def entries(self) -> list[E]:
        """Every run, in order. Raises InvalidArgument for a newer format, or a log with a hole."""
        found: list[E] = []
        for path in sorted(self._log.glob("[0-9]*[0-9].json")):
            entry = msgspec.json.decode(path.read_bytes(), type=self._kind)
            if entry.version > self._version:
                raise InvalidArgument(f"{path} was written by a newer Tenure (version {entry.version})")
            if entry.number != len(found) + 1:
                raise InvalidArgument(f"{self._log}: entry {len(found) + 1} is missing")
            found.append(entry)
        return found

    def commit(self, entry: E) -> None:
        """Make a run count. Raises RunConflict if its number is taken."""
        if not _create_once(self._path(entry), msgspec.json.encode(entry)):
            raise RunConflict(entry.number)

    def add_note(self, entry: E, name: str, content: object) -> None:
        """Add a note to a run; one that is there is kept."""
        _create_once(self._path(entry, name), msgspec.json.encode(content))

    def has_note(self, entry: E, name: str) -> bool:
        return self._path(entry, name).exists()

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Hold the log's lock for a block, against runs of this host and others that share the file system; False: it is held."""
        self._log.mkdir(parents=True, exist_ok=True)
        with (self._log / ".lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    # ── the files of attempts ────────────────────────────────────────────────────────────────────────────────────────

    def discard(self, place: str) -> None:
        """Remove the files of one attempt, and its run's folder if no other attempt is in it."""
        path = self.root / place
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()

    def vacuum(self, logged: Collection[str], taken: Callable[[str], bool]) -> int:
        """Remove attempts that are not among those `logged`, and whose run's label is `taken`; returns how many."""
        removed = 0
        for path in [*self.root.glob("*/run=*/*"), *self.root.glob("*/*/run=*/*")]:
            place = path.relative_to(self.root).as_posix()
            if path.is_dir() and place not in logged and taken(path.parent.name.removeprefix("run=")):
                self.discard(place)
                removed += 1
        for draft in self._log.glob(".draft-*"):
            with contextlib.suppress(FileNotFoundError):
                if draft.stat().st_mtime < time.time() - _DRAFT_SECONDS:
                    draft.unlink()
        return removed

    def _path(self, entry: E, note: str = "") -> Path:
        return self._log / f"{entry.number:012}{'.' + note if note else ''}.json"


def new_attempt() -> str:
    """A name for the folder of an attempt."""
    return uuid.uuid4().hex[:12]


def _create_once(path: Path, content: bytes) -> bool:
    """Make a file that was not there, whole and durable; False if it is there already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.parent / f".draft-{uuid.uuid4().hex}"
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
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True
