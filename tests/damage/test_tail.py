"""The end of the log: a store opens after losing unsynced commits, and is refused after losing durable ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tenure
from tenure.errors import Corrupt
from tenure.testing.conformance.world import assert_sound

ROOT = Path(__file__).parents[2]
CODE = """
import os, sys, tenure
store = tenure.open(sys.argv[1], durability=sys.argv[2], sweep=False, sync_interval=3600)  # at os: not before the end
queue = store.queue("work")
for n in range(int(sys.argv[3])):
    print(queue.enqueue(b"%d;" % n * 50).id, flush=True)
if sys.argv[4] == "progress":
    (delivery,) = queue.claim(lease=1e6)
    queue.progress(delivery, 0.25, "a quarter")
    queue.progress(delivery, 0.75, "nearly")
os._exit(0)
"""


def leave(folder: Path, durability: str = "disk", jobs: int = 40, then: str = "") -> list[str]:
    """Run a process that ends without closing: all its commits are in the log."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, f"rocksdb:{folder}", durability, str(jobs), then],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


def log_of(folder: Path) -> Path:
    return max((folder / "db").glob("*.log"), key=lambda path: path.stat().st_size)


def end_of(log: Path) -> int:
    """The end of the last record: at `disk` zeros follow it."""
    return len(log.read_bytes().rstrip(b"\0"))


def ready(folder: Path) -> list[str]:
    with tenure.open(f"rocksdb:{folder}", sweep=False) as store:
        assert_sound(store)
        return [job.id for job in store.queue("work").list("ready", limit=1000)]


@pytest.mark.parametrize("zeros", [1, 7, 100, 4096, 40_000])
def test_zeros_after_the_last_record_are_no_damage(tmp_path: Path, zeros: int) -> None:
    """A file system may have extended the file before the power loss."""
    made = leave(tmp_path)
    with log_of(tmp_path).open("ab") as log:
        log.write(bytes(zeros))
    assert ready(tmp_path) == made
    assert ready(tmp_path) == made


@pytest.mark.parametrize("lost", [1, 30, 2000])
def test_a_power_cut_takes_the_unsynced_end_and_nothing_else(tmp_path: Path, lost: int) -> None:
    """At `os` a power loss may replace the end of the log by zeros; the machine then has a new boot id."""
    made = leave(tmp_path, "os")
    log = log_of(tmp_path)
    size = log.stat().st_size
    os.truncate(log, size - lost)
    os.truncate(log, size)  # the rest reads as zeros
    # DURABLE was never synced: this boot's record was lost with the machine's memory.
    (tmp_path / "DURABLE").write_bytes(bytes(64))
    left = ready(tmp_path)
    assert left == made[: len(left)], "not a prefix"
    assert 0 < len(left) < len(made)
    assert len(made) - len(left) <= 1 + lost // 50
    with tenure.open(f"rocksdb:{tmp_path}", sweep=False) as store:
        store.queue("work").enqueue(b"goes on")
        assert_sound(store)


@pytest.mark.parametrize("durability", ["disk", "os"])
@pytest.mark.parametrize("lost", [1, 30, 2000])
@pytest.mark.parametrize("filled", [False, True], ids=["cut", "zeros"])
def test_a_lost_end_that_was_written_is_refused(tmp_path: Path, durability: str, lost: int, filled: bool) -> None:
    """Commits that were synced, or written in this boot of the machine, cannot be missing without damage."""
    folder = tmp_path / "data"
    made = leave(folder, durability)
    log = log_of(folder)
    size = log.stat().st_size
    os.truncate(log, end_of(log) - lost)
    if filled:
        os.truncate(log, size)
    for _ in range(2):  # the refusal is repeated, and says what to do
        with pytest.raises(Corrupt, match=r"lost.*DURABLE"):
            tenure.open(f"rocksdb:{folder}", sweep=False)
    (folder / "DURABLE").unlink()
    left = ready(folder)
    assert left == made[: len(left)]
    assert len(left) < len(made)


def test_a_lost_end_of_notes_only_is_refused_too(tmp_path: Path) -> None:
    """Progress writes no event, but it was acknowledged too."""
    leave(tmp_path, "disk", 3, "progress")
    log = log_of(tmp_path)
    os.truncate(log, end_of(log) - 1)
    with pytest.raises(Corrupt, match="lost"):
        tenure.open(f"rocksdb:{tmp_path}", sweep=False)


def test_a_flipped_byte_in_the_middle_of_the_log_is_refused(tmp_path: Path) -> None:
    leave(tmp_path)
    log = log_of(tmp_path)
    data = bytearray(log.read_bytes())
    data[end_of(log) // 2] ^= 1
    log.write_bytes(data)
    with pytest.raises(Corrupt):
        tenure.open(f"rocksdb:{tmp_path}", sweep=False)
