"""A file of what was run: a line of JSON for each chunk of seeds, so that a run can be stopped and go on later."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from tests.simulation.batch import Tally


class Record:
    """The tallies of chunks of seeds, kept in a file if there is one.

    A line that was cut off by the end of a process is ignored: its seeds run again.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._chunks: dict[tuple[int, int], Tally] = {}
        if path is None or not path.exists():
            return
        text = path.read_text()
        for line in text.splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                first, count, values = json.loads(line)
                failures = tuple((seed, failed) for seed, failed in values.pop("failures"))
                self._chunks[first, count] = Tally(**values, failures=failures)
        if text and not text.endswith("\n"):
            with path.open("a") as file:
                file.write("\n")

    def has(self, seeds: range) -> bool:
        return (seeds.start, len(seeds)) in self._chunks

    def add(self, seeds: range, tally: Tally) -> None:
        self._chunks[seeds.start, len(seeds)] = tally
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps((seeds.start, len(seeds), tally._asdict())) + "\n")

    def total(self) -> Tally:
        """The sum of all chunks."""
        total = Tally()
        for tally in self._chunks.values():
            total = total.plus(tally)
        return total
