"""The log of a folder that runs write into: one numbered file a run, created once, is that run's commit.

    ROOT/_log/000000000001.json           run 1's entry, created whole: from then on the files that it names count
    ROOT/_log/000000000001.removed.json   a note added to run 1 later, by its name
    ROOT/_log/.lock                       held by a run that excludes others, on a disk
    ROOT/TABLE/run=LABEL/3f9a…/           the files of one attempt of a run

Histories (`history_folder`) and archives (`tenure.spark.jobs.archive`) keep one. A staged write needs none: its log is the
store, which records the write's manifest, and each chunk in the transaction that publishes it (`tenure.bulk.publisher`).

Of two runs with one number one commits, and the other raises RunConflict with nothing done. A run that was killed leaves
files that no entry names; the next one removes them once their place in the log is taken, so that they can no longer
be committed. What lies at the log's end may be of a run that is at work, and stays.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Generic, Protocol, TypeVar

import msgspec

from tenure.analysis.root import Root
from tenure.errors import InvalidArgument, TenureError

LOG = "_log"


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

    def __init__(self, root: Root, kind: type[E], version: int = 1) -> None:
        self.root, self._kind, self._version = root, kind, version

    def entries(self) -> list[E]:
        """Every run, in order. Raises InvalidArgument for a newer format, or a log with a hole."""
        found: list[E] = []
        paths = [path for path in self.root.files(LOG) if path[len(LOG) + 1 :].removesuffix(".json").isdigit()]
        for path, content in zip(paths, self.root.read(paths), strict=True):
            entry = msgspec.json.decode(content, type=self._kind)
            if entry.version > self._version:
                raise InvalidArgument(
                    f"{self.root.address}/{path} was written by a newer Tenure (version {entry.version})"
                )
            if entry.number != len(found) + 1:
                raise InvalidArgument(f"{self.root.address}/{LOG}: entry {len(found) + 1} is missing")
            found.append(entry)
        return found

    def commit(self, entry: E) -> None:
        """Make a run count. Raises RunConflict if its number is taken."""
        if not self.root.create(_path(entry), _content(entry)):
            raise RunConflict(entry.number)

    def add_note(self, entry: E, name: str, content: object) -> None:
        """Add a note to a run; one that is there is kept."""
        self.root.create(_path(entry, name), _content(content))

    def has_note(self, entry: E, name: str) -> bool:
        return self.root.exists(_path(entry, name))

    def lock(self) -> AbstractContextManager[bool]:
        """Hold the log's lock for a block, against runs of this host and others that share the file system; False: it is held."""
        return self.root.lock(f"{LOG}/.lock")

    # ── the files of attempts ────────────────────────────────────────────────────────────────────────────────────────

    def discard(self, place: str) -> None:
        """Remove the files of one attempt, and its run's folder if no other attempt is in it."""
        self.root.remove(place)

    def vacuum(self, logged: Collection[str], taken: Callable[[str], bool]) -> int:
        """Remove attempts that are not among those `logged`, and whose run's label is `taken`; returns how many."""
        removed = 0
        for place in self.root.attempts():
            if place not in logged and taken(place.split("/")[-2].removeprefix("run=")):
                self.discard(place)
                removed += 1
        self.root.remove_drafts()
        return removed


def new_attempt() -> str:
    """A name for the folder of an attempt."""
    return uuid.uuid4().hex[:12]


def _path(entry: LogEntry, note: str = "") -> str:
    return f"{LOG}/{entry.number:012}{'.' + note if note else ''}.json"


def _content(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1)
