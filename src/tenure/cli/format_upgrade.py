"""Bringing an older on-disk format up to today's, one step at a time.

Each format is brought to the next by one step, named here by the format it starts from. Format 1 is the first and, so far,
the only one: the table is empty. Whoever makes format 2 adds `Step(1, "what changes", function)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tenure.contract.backend import Progress
from tenure.errors import FormatError, OpenError
from tenure.storage.folder import Folder
from tenure.storage.keyspace import FORMAT


@dataclass(frozen=True)
class Step:
    """A step from format `start` to `start + 1`. If `run` is killed, the folder is in one of the two formats."""

    start: int
    says: str
    run: Callable[[Folder, Progress], None]


STEPS: tuple[Step, ...] = ()


def found_format(folder: Folder) -> int:
    """The format of the folder. Raises OpenError if it has no store, or one of another engine or of a newer Tenure."""
    try:
        if not folder.check():
            raise OpenError(f"there is no store at {folder.path}: nothing to upgrade")
    except FormatError:
        found = _older(folder.path / "FORMAT", folder.engine)
        if found is None:
            raise
        return found
    return FORMAT


def _older(file: Path, engine: str) -> int | None:
    """The number of an older format; None if the folder was refused for another reason."""
    try:
        words = file.read_text("ascii", "replace").split()
    except OSError:
        return None
    if len(words) == 3 and words[0] == "tenure" and words[1].isdigit() and words[2] == engine:
        return int(words[1]) if int(words[1]) < FORMAT else None
    return None


def steps_from(found: int, steps: tuple[Step, ...] = STEPS, target: int = FORMAT) -> list[Step]:
    """The steps from a format to today's, in order."""
    by_start = {step.start: step for step in steps}
    missing = [start for start in range(found, target) if start not in by_start]
    if missing:
        raise FormatError(f"no step leads from format {missing[0]}: this store was not written by a release of Tenure")
    return [by_start[start] for start in range(found, target)]
