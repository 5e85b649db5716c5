"""Upgrade an older on-disk format to the current one, step by step.

Each step upgrades one format to the next, and is listed here by the format it starts from. A step opens the store,
marks the folder as half upgraded, and removes the mark at its end: it can be interrupted and run again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tenure.api.store_upgrade import upgrade_to_2
from tenure.contract.backend import Progress
from tenure.errors import FormatError, OpenError
from tenure.storage.folder import NAMES, UPGRADING, Folder
from tenure.storage.keyspace import FORMAT


@dataclass(frozen=True)
class Step:
    """A step from format `start` to `start + 1`.

    If `run` is killed, the folder is half upgraded, and the next `run` continues.
    """

    start: int
    says: str
    run: Callable[[Folder, Progress], None]


STEPS: tuple[Step, ...] = (Step(1, "finding queues by the ids of their jobs", upgrade_to_2),)


def found_format(folder: Folder) -> int:
    """Return the folder's format.

    Raises OpenError if it has no store, or one of another engine or of a newer Tenure.
    """
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
    """Return the number of an older format (of a half upgraded folder: its former one); None if it is not an older
    format.
    """
    try:
        words = file.read_text("ascii", "replace").split()
    except OSError:
        return None
    if words[:1] and words[0] in NAMES and words[1:2] and words[1].isdigit() and words[2:3] == [engine]:
        if words[3:] == [UPGRADING] and int(words[1]) <= FORMAT:
            return int(words[1]) - 1
        return int(words[1]) if len(words) == 3 and int(words[1]) < FORMAT else None
    return None


def steps_from(found: int, steps: tuple[Step, ...] = STEPS, target: int = FORMAT) -> list[Step]:
    """Return the steps from a format to the current one, in order."""
    by_start = {step.start: step for step in steps}
    missing = [start for start in range(found, target) if start not in by_start]
    if missing:
        raise FormatError(f"no step leads from format {missing[0]}: this store was not written by a release of Tenure")
    return [by_start[start] for start in range(found, target)]
