"""Every snapshot has `Walk.runs` and `segments`, with and without stored segments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tenure
from tenure.storage.engine import Row, Run
from tenure.storage.keyspace import JOBS, LAST, STATE
from tenure.testing.harness import engine_of

SOURCE = Path(tenure.__file__).parent


def rows_of(run: Run) -> list[Row]:
    return run if isinstance(run, list) else run.rows()


@pytest.mark.parametrize("engine", ["memory", "rocksdb", "lmdb"])
def test_runs_are_the_rows_of_a_scan(tmp_path: Path, engine: str) -> None:
    url = "memory:" if engine == "memory" else f"{engine}:{tmp_path / 'data'}"
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("q")
        for turn in range(3):
            queue.enqueue_many([b"x" * turn] * 60)
            queue.enqueue(b"alone")
        with engine_of(store).snapshot() as snapshot:
            for space in (JOBS, STATE):
                walk, found = snapshot.walk(space, b"", LAST), list[Row]()
                while runs := walk.runs(50):
                    taken = [row for run in runs for row in rows_of(run)]
                    assert [len(run) for run in runs] == [len(rows_of(run)) for run in runs]
                    found += taken
                assert found == snapshot.scan(space, b"", LAST, 1000)
                assert len(found) == 183
            together = [segment for _, segment in snapshot.segments(b"", 100)]
            assert bool(together) == bool(snapshot.segment_spaces) == (engine != "lmdb")


def test_only_the_segments_know_their_types() -> None:
    """Other code uses the interface of `storage.engine`, and does not check for types of the segment layer."""
    checks = [
        str(path)
        for path in SOURCE.rglob("*.py")
        if re.search(r"isinstance\([^)]*Segmented", path.read_text()) and path.parent.name != "segments"
    ]
    assert checks == []
