"""Holes between RocksDB's logs and zeros inside one, in logs made byte by byte."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from tenure.storage.engines.rocksdb import log_continuity
from tenure.storage.engines.rocksdb.log_continuity import close_gap, find_gap, find_hole, set_aside
from tenure.storage.engines.rocksdb.log_room import ENOUGH, LogRoom

BLOCK = 32 * 1024
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4
#: So many commits that each of them is small.
SMALL = 1_000_000


def record(kind: int, body: bytes) -> bytes:
    return struct.pack("<IHB", 0, len(body), kind) + body


def batch(begins: int, rows: int, size: int = 40) -> bytes:
    return struct.pack("<QI", begins, rows).ljust(size, b"r")


def whole(begins: int, rows: int, size: int = 40) -> bytes:
    return record(WHOLE, batch(begins, rows, size))


@pytest.fixture
def db(tmp_path: Path) -> Path:
    folder = tmp_path / "db"
    folder.mkdir()
    return folder


def log(db: Path, number: int, data: bytes) -> Path:
    place = db / f"{number:06}.log"
    place.write_bytes(data)
    return place


def test_zeros_at_the_end_are_no_gap(db: Path) -> None:
    log(db, 4, whole(1, 2) + whole(3, 1) + bytes(9000))
    assert find_gap(db) is None


def test_zeros_inside_a_payload_are_no_gap(db: Path) -> None:
    log(db, 4, record(WHOLE, batch(1, 2, 500) + bytes(5000) + b"x") + whole(3, 1))
    assert find_gap(db) is None


def test_a_page_that_is_missing_in_the_middle_is_a_gap_behind_the_last_whole_record(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = whole(1, 2) + whole(3, 4)
    place = log(db, 4, before + bytes(4096) + whole(40, 1))
    gap = find_gap(db)
    assert gap == (place, len(before), 6)
    synced = list[int]()
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    close_gap(gap, db.parent / "lost")
    assert place.stat().st_ino in synced, "the rows behind the gap would come back"
    assert place.read_bytes() == before
    assert (db.parent / "lost" / place.name).stat().st_size == len(before) + 4096 + len(whole(40, 1))
    assert find_gap(db) is None


def test_a_second_log_of_the_same_name_is_kept_beside_the_first(db: Path) -> None:
    for _ in range(3):
        place = log(db, 4, bytes(4096) + whole(40, 1))
        gap = find_gap(db)
        assert gap == (place, 0, 0)
        close_gap(gap, db.parent / "lost")
        assert place.stat().st_size == 0
    assert sorted(kept.name for kept in (db.parent / "lost").iterdir()) == [
        "000004.log",
        "000004.log.1",
        "000004.log.2",
    ]


def test_a_gap_that_begins_where_a_block_ends_too_early_for_a_header_is_found(db: Path) -> None:
    before = whole(1, 1, BLOCK - 7 - 4)  # four bytes of the block are left
    assert len(before) == BLOCK - 4
    log(db, 4, before + bytes(4) + bytes(4096) + whole(9, 1))
    assert find_gap(db) == (db / "000004.log", len(before), 1)
    log(db, 4, before + bytes(4) + whole(2, 1) + bytes(4096))
    assert find_gap(db) is None


def test_a_batch_over_several_blocks_counts_once(db: Path) -> None:
    """Its own header may be split between two records."""
    body = batch(5, 7, 100)
    for cut in (4, 12, 50):
        pieces = record(FIRST, body[:cut]) + record(MIDDLE, body[cut:60].ljust(10, b"m")) + record(LAST, body[60:])
        data = record(MIDDLE, b"of nothing") + pieces + whole(12, 1)
        found = list(log_continuity._batches(data))
        assert [(one.begins, one.rows) for one in found] == [(5, 7), (12, 1)]
        assert [one.end for one in found] == [len(data) - len(whole(12, 1)), len(data)]
        cut_short = list(log_continuity._batches(data[:-1]))
        assert [one.begins for one in cut_short] == [5]


def test_logs_that_follow_each_other_have_no_hole(db: Path) -> None:
    assert find_hole(db) is None
    log(db, 4, whole(1, 3))
    assert find_hole(db) is None
    log(db, 7, whole(4, 1))
    log(db, 9, b"")
    assert find_hole(db) is None


def test_logs_behind_a_hole_are_set_aside_the_newest_first(db: Path) -> None:
    logs = [log(db, number, whole(begins, 1)) for number, begins in ((4, 1), (7, 9), (8, 10))]
    hole = log_continuity._hole(logs, 0)
    assert hole is not None
    assert (hole.reaches, hole.resumes_at, hole.behind) == (1, 9, tuple(logs[1:]))
    set_aside(hole, db.parent / "lost")
    assert [left.name for left in db.iterdir()] == ["000004.log"]
    assert sorted(kept.name for kept in (db.parent / "lost").iterdir()) == ["000007.log", "000008.log"]


def test_an_empty_log_before_another_looks_like_a_hole(db: Path) -> None:
    logs = [log(db, 4, b""), log(db, 7, whole(9, 1))]
    found = log_continuity._hole(logs, None)
    assert found is not None
    assert found.behind == (logs[1],)
    assert log_continuity._hole(logs, 8) is None


# ── zeros ahead of the end ───────────────────────────────────────────────────────────────────────────────────────────


def test_without_a_log_no_zeros_are_written(db: Path) -> None:
    LogRoom(db).wrote(10, SMALL)
    assert list(db.iterdir()) == []


def test_zeros_that_the_disk_does_not_take_leave_the_log_as_it_was(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = log(db, 4, whole(1, 1))
    before = place.read_bytes()

    def half(handle: int, data: bytes, at: int) -> int:
        os.lseek(handle, at, os.SEEK_SET)
        os.write(handle, data[:100])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", half)
        LogRoom(db).wrote(10, SMALL)
        assert place.read_bytes() == before
        patched.setattr(os, "ftruncate", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        LogRoom(db).wrote(10, SMALL)
    assert place.read_bytes() == before + bytes(100)
    LogRoom(db).wrote(ENOUGH, 1)  # one large commit: its own bytes would soon fill them
    assert place.read_bytes() == before + bytes(100)
    LogRoom(db).wrote(10, SMALL)
    assert place.stat().st_size > len(before) + 100
    assert find_gap(db) is None


def test_without_a_file_handle_the_log_grows_without_zeros(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = log(db, 4, whole(1, 1))
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(OSError(24, "Too many open files")))
    LogRoom(db).wrote(10, SMALL)
    assert place.read_bytes() == whole(1, 1)
