"""Zeros after the log's end at `disk`; and logs whose middle was lost in a power loss."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from tenure.errors import Corrupt
from tenure.storage.engines.rocksdb import RocksEngine, log_room
from tenure.storage.engines.rocksdb.log_continuity import find_gap
from tenure.storage.keyspace import META

BLOCK = 32 * 1024
HEADER = 7


def newest(folder: Path) -> Path:
    return max((folder / "db").glob("*.log"), key=lambda log: int(log.stem))


def write(engine: RocksEngine, rows: int, size: int = 300, first: int = 0) -> None:
    for number in range(first, first + rows):
        engine.transact(lambda tx, number=number: tx.put(META, b"%08d" % number, b"v" * size))  # type: ignore[misc]


def rows_of(engine: RocksEngine) -> list[int]:
    return [int(key) for key in engine.read(lambda reader: reader.keys(META, b"0", b"9", 100_000))]


def copied(folder: Path) -> Path:
    """A copy of the files as they would be after a kill now."""
    copy = folder.with_name(folder.name + "-killed")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("SOCKET", "OWNER"))
    return copy


def written_to(log: Path) -> int:
    return len(log.read_bytes().rstrip(b"\0"))


def test_small_commits_are_written_over_zeros(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    engine = RocksEngine(str(folder), durability="disk")
    write(engine, 100)
    log = newest(folder)
    length = log.stat().st_size
    assert length >= log_room.ROOM
    write(engine, 500, first=100)
    assert log.stat().st_size == length, "there was room"
    write(engine, 3_000, first=600)
    assert written_to(log) > length, "the room was used up"
    assert log.stat().st_size - written_to(log) >= log_room.ROOM - log_room.ENOUGH - BLOCK, "new zeros were written"
    killed = copied(folder)
    engine.close()
    assert newest(folder).stat().st_size == written_to(newest(folder)), (
        "a log that is closed ends where it was written to"
    )
    for left in (folder, killed):
        engine = RocksEngine(str(left), durability="disk")
        assert rows_of(engine) == list(range(3_600))
        assert engine.remarks == ()
        engine.close()


@pytest.mark.parametrize(("durability", "size"), [("os", 300), ("disk", 100_000)])
def test_no_zeros_without_a_gain(tmp_path: Path, durability: str, size: int) -> None:
    engine = RocksEngine(str(tmp_path / "data"), durability=durability)  # type: ignore[arg-type]
    write(engine, 60, size)
    log = newest(tmp_path / "data")
    assert log.stat().st_size == written_to(log)
    engine.close()


def test_on_a_full_disk_commits_work_without_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, data: bytes, at: int) -> int:
        os.ftruncate(handle, at + 4096)  # a part of it was written
        raise OSError(28, "No space left on device")

    engine = RocksEngine(str(tmp_path / "data"), durability="disk")
    monkeypatch.setattr(os, "pwrite", full)
    write(engine, 200)
    log = newest(tmp_path / "data")
    assert log.stat().st_size == written_to(log)
    assert rows_of(engine) == list(range(200))
    monkeypatch.undo()
    engine.close()


def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inodes of files that the system is told to begin to write, from now on."""
    inodes: list[int] = []
    monkeypatch.setattr(log_room, "_sync_file_range", lambda handle, *_: inodes.append(os.fstat(handle).st_ino))
    return inodes


def test_the_disk_begins_to_write_the_log_before_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inodes = begun(monkeypatch)
    engine = RocksEngine(str(tmp_path / "data"), durability="disk")
    write(engine, 100)
    syncs = engine.group_commit.syncs
    inodes.clear()
    write(engine, 10, first=100)
    assert inodes == [newest(tmp_path / "data").stat().st_ino] * 10
    assert engine.group_commit.syncs == syncs + 10
    engine._log.rotate()
    write(engine, 3_000, first=110)
    assert inodes[-1] == newest(tmp_path / "data").stat().st_ino
    engine.close()
    before = len(inodes)
    engine._begin_sync()
    assert len(inodes) == before, "it is closed"


def test_where_a_sync_cannot_begin_early_commits_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_room, "_sync_file_range", None)
    engine = RocksEngine(str(tmp_path / "data"), durability="disk")
    write(engine, 100)
    assert rows_of(engine) == list(range(100))
    engine.close()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux's list of open files")
def test_logs_are_not_kept_open(tmp_path: Path) -> None:
    def open_logs() -> list[str]:
        found = []
        for handle in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the one that lists them
                found.append(os.readlink(f"/proc/self/fd/{handle}"))
        return [file for file in found if file.startswith(str(tmp_path)) and ".log" in file]

    engine = RocksEngine(str(tmp_path / "data"), durability="disk")
    for number in range(3):
        write(engine, 3_000, first=3_000 * number)
        engine._log.rotate()
    assert len(open_logs()) <= 4, "RocksDB's, and one of ours"
    engine.close()
    assert open_logs() == []


def test_an_older_log_may_end_in_zeros(tmp_path: Path) -> None:
    """The power loss came before RocksDB truncated it; the next log continues its sequence numbers."""
    folder = tmp_path / "data"
    engine = RocksEngine(str(folder), durability="disk")
    write(engine, 100)
    killed, log = copied(folder), newest(folder)
    zeros = (killed / "db" / log.name).read_bytes()
    engine._log.rotate()
    write(engine, 100, first=100)
    second = copied(folder)
    engine.close()
    assert zeros.endswith(bytes(log_room.ENOUGH))
    (second / "db" / log.name).write_bytes(zeros)
    engine = RocksEngine(str(second), durability="disk")
    assert rows_of(engine) == list(range(200))
    engine.close()


def placed(data: bytes) -> list[int]:
    """The offsets of complete records, by the log's format."""
    found, at = [], 0
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if not kind:
            break
        if kind in (1, 2):
            found.append(at)
        at += HEADER + length
    return found


def aligned(folder: Path) -> tuple[Path, int, int]:
    """A killed store with a record at the start of a block: its log, and the offsets of an earlier record and the block."""
    engine = RocksEngine(str(folder), durability="disk")
    write(engine, 100)
    log, number = newest(folder), 100
    before = written_to(log)
    write(engine, 1, 300, number)
    more, number = written_to(log) - before - 300, number + 1  # what a record has besides its value
    while True:
        data = log.read_bytes()
        starts = placed(data)
        end = len(data.rstrip(b"\0"))
        block = next((at for at in starts if at and at % BLOCK == 0), None)
        if block is not None and end > block + 4_096:
            break
        left = BLOCK - end % BLOCK
        write(engine, 1, left - more if 150 < left - more < 1_000 else 300, number)  # the last of a block fits it
        number += 1
        assert number < 5_000, "no record came to begin a block"
    killed = copied(folder)
    engine.close()
    return killed, max(at for at in starts if at < block - 1_000), block


def test_records_after_a_gap_are_set_aside(tmp_path: Path) -> None:
    killed, gap, block = aligned(tmp_path / "data")
    log = newest(killed)
    data = bytearray(log.read_bytes())
    data[gap:block] = bytes(block - gap)
    log.write_bytes(data)
    found = find_gap(killed / "db")
    assert found is not None
    assert (found.log, found.at) == (log, gap)
    with pytest.raises(Corrupt, match="newest commits"):  # DURABLE says that they were durable
        RocksEngine(str(killed), durability="disk")
    assert log.read_bytes() == data, "the log was not changed"
    (killed / "DURABLE").unlink()
    engine = RocksEngine(str(killed), durability="disk")
    rows = rows_of(engine)
    assert rows == list(range(len(rows)))
    assert len(rows) > 100
    assert any("out of the middle of a log" in remark for remark in engine.remarks)
    assert (killed / "lost" / log.name).read_bytes() == data
    engine.close()
    assert engine_rows_again(killed) == rows


def engine_rows_again(folder: Path) -> list[int]:
    engine = RocksEngine(str(folder), durability="disk")
    try:
        assert engine.remarks == ()
        return rows_of(engine)
    finally:
        engine.close()


def test_zeros_in_a_payload_are_no_gap(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    engine = RocksEngine(str(folder), durability="disk")
    write(engine, 100)
    engine.transact(lambda tx: tx.put(META, b"zeros", bytes(100_000)))
    write(engine, 10, first=100)
    killed = copied(folder)
    engine.close()
    assert find_gap(killed / "db") is None
    assert engine_rows_again(killed) == list(range(110))
