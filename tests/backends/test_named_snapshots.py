"""Named snapshots: taken and expired at the same moment, by any number of processes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tenure.backends.named_snapshots import SnapshotFolder
from tenure.errors import SnapshotExpired


def copied(path: str) -> None:
    Path(path).mkdir(parents=True)


def test_a_sweep_removes_no_snapshot_that_is_taken_meanwhile(tmp_path: Path) -> None:
    folder = SnapshotFolder(tmp_path / "snapshots", copied)
    stop = threading.Event()

    def sweep() -> None:
        while not stop.is_set():
            SnapshotFolder(tmp_path / "snapshots").expire(1_000)

    sweeping = threading.Thread(target=sweep)
    sweeping.start()
    try:
        for _ in range(500):
            folder.drop(folder.renew(folder.take("s", 60_000, 1_000, 1_000).id, 1_000).id)
    finally:
        stop.set()
        sweeping.join()
    kept = folder.take("s", 60_000, 1_000, 1_000)
    assert folder.expire(60_999) == 0
    assert folder.expire(61_000) == 1
    with pytest.raises(SnapshotExpired):
        folder.renew(kept.id, 1_000)
