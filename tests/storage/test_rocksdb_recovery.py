"""RocksDB: locks that an interrupted thread left, holes between real logs, copies of older stores, reopening."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

from tenure.errors import Corrupt, OpenError, StoreClosed, Unavailable
from tenure.storage.engines.rocksdb import RocksEngine
from tenure.storage.engines.rocksdb import engine as engine_module
from tenure.storage.engines.rocksdb.copy import RocksCopy
from tenure.storage.keyspace import JOBS, JOURNAL, LAST, META, NAMES, STATE, STEPS

BOOT = "this boot"


def opened(path: Path, **options: Any) -> RocksEngine:
    return RocksEngine(str(path), boot_id=BOOT, **{"durability": "os", **options})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def db(path: Path) -> Iterator[RocksEngine]:
    found = opened(path)
    yield found
    found.close()


def put(db: RocksEngine, key: bytes, space: int = META) -> None:
    db.transact(lambda tx: tx.put(space, key, b"value of " + key))


def keys(db: RocksEngine) -> list[bytes]:
    return db.read(lambda reader: reader.keys(META, b"", LAST, 1000))


# ── locks ────────────────────────────────────────────────────────────────────────────────────────────────────────────

CALLS: dict[str, Callable[[RocksEngine], object]] = {
    "a transaction": lambda db: put(db, b"k"),
    "a read": keys,
    "a snapshot": lambda db: db.snapshot((META,)).close(),
    "closing": lambda db: db.close(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_lock_that_an_interrupt_left_is_taken_back(db: RocksEngine, call: str) -> None:
    """An exception between taking the lock and entering the `with` block leaves it locked by this thread."""
    db._writer.lock.acquire()
    CALLS[call](db)
    free: list[bool] = []

    def take() -> None:
        free.append(db._writer.lock.acquire(timeout=5))
        if free[0]:
            db._writer.lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert free == [True]


@pytest.mark.parametrize("left", ["_running", "_next"])
def test_a_sync_that_an_interrupt_left_is_taken_back(path: Path, left: str) -> None:
    db = opened(path, durability="disk")
    put(db, b"a")
    getattr(db.group_commit, left).lock.acquire()
    put(db, b"b")
    thread = threading.Thread(target=put, args=(db, b"c"))
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert keys(db) == [b"a", b"b", b"c"]
    db.close()


# ── snapshots and reopening ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_snapshot_of_a_closed_engine_is_refused(db: RocksEngine) -> None:
    put(db, b"a")
    moment = db.snapshot((META,))
    assert moment.get(META, b"a") == b"value of a"
    db.close()
    for read in (
        lambda: moment.get(META, b"a"),
        lambda: moment.scan(META, b"", LAST, 10),
        lambda: moment.keys(META, b"", LAST, 10),
    ):
        with pytest.raises(StoreClosed):
            read()
    moment.close()


def test_a_store_that_waits_for_room_reopens_and_ends_its_snapshots(db: RocksEngine) -> None:
    put(db, b"a")
    forgotten: list[int] = []
    db.forgetters.append(lambda: forgotten.append(1))
    moment = db.snapshot((META,))
    db._stop(OSError("IO error: No space left on device"), again=True)
    put(db, b"b")
    assert keys(db) == [b"a", b"b"]
    assert forgotten
    with pytest.raises(StoreClosed):
        moment.get(META, b"a")


def test_a_store_that_lost_commits_while_it_waited_for_room_stays_stopped(
    db: RocksEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(db, b"a")
    db._stop(OSError("IO error: No space left on device"), again=True)
    db._sequence += 100  # as if the log had reached further than what recovery finds
    monkeypatch.setattr(engine_module, "monotonic", lambda: 1e12)
    for _ in range(2):
        with pytest.raises(Unavailable, match="must be opened again"):
            put(db, b"b")
    with pytest.raises(Unavailable, match="reached"):
        keys(db)


def test_what_an_interrupted_commit_left_unsure_is_read_again(db: RocksEngine) -> None:
    put(db, b"a")
    forgotten: list[int] = []
    db.forgetters.append(lambda: forgotten.append(1))
    db._unsure = True
    db._next_commit = 77
    db.transact(lambda tx: tx.append(JOURNAL, b"row"))
    assert forgotten == [1]
    assert db.read(lambda reader: len(reader.keys(JOURNAL, b"", LAST, 10))) == 1
    assert db._next_commit == 2


# ── holes between logs ───────────────────────────────────────────────────────────────────────────────────────────────


def with_two_logs(path: Path, copy: Path) -> list[Path]:
    """The files of a store that was killed with two logs, both still needed. Returns the logs."""
    db = opened(path)
    for number in range(5):
        put(db, b"a%d" % number, META)
        put(db, b"a%d" % number, JOBS)
    db._tables[META].flush(True)  # the next writes go into a new log; the first is needed for `jobs`
    for number in range(5):
        put(db, b"b%d" % number, META)
    db._sync()
    shutil.copytree(path, copy)
    db.close()
    logs = sorted((copy / "db").glob("*.log"))
    assert len(logs) >= 2
    return logs


def test_logs_without_a_hole_are_all_read(path: Path, tmp_path: Path) -> None:
    with_two_logs(path, tmp_path / "copy")
    db = opened(tmp_path / "copy")
    assert len(keys(db)) == 10
    db.close()


@pytest.mark.parametrize("known_durable", [True, False])
def test_a_log_that_a_power_cut_emptied_before_a_newer_one(path: Path, tmp_path: Path, known_durable: bool) -> None:
    """Rows behind the hole are refused if some were known to be durable; else set aside, not applied over the hole."""
    logs = with_two_logs(path, tmp_path / "copy")
    logs[-2].write_bytes(b"")
    if not known_durable:
        (tmp_path / "copy" / "DURABLE").unlink()
    if known_durable:
        with pytest.raises(Corrupt, match="the newest commits"):
            opened(tmp_path / "copy")
        assert all(log.exists() for log in logs)
        return
    db = opened(tmp_path / "copy")
    assert [key for key in keys(db) if key.startswith(b"b")] == []
    assert any("set aside" in remark for remark in db.remarks)
    db.close()
    again = opened(tmp_path / "copy")
    put(again, b"c")
    again.close()


# ── copies ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A copy that an older release made, before there were steps."""
    place = tmp_path / "older"
    names = [name for name in NAMES if name != NAMES[STEPS]]
    made = Options(raw_mode=True)
    made.create_if_missing(True)
    made.create_missing_column_families(True)
    db = Rdict(str(place), made, {name: Options(raw_mode=True) for name in names})
    db.get_column_family(NAMES[STATE])[b"key"] = b"value"
    db.flush(True)
    db.close()
    return place


def test_a_copy_of_an_older_store_reads_its_missing_spaces_as_empty(older: Path) -> None:
    copy = RocksCopy(older)
    assert copy.get(STATE, b"key") == b"value"
    assert copy.get(STEPS, b"key") is None
    assert copy.get_many(STEPS, [b"key", b"other"]) == [None, None]
    for reverse in (False, True):
        assert copy.scan(STEPS, b"", LAST, 10, reverse=reverse) == []
        assert copy.keys(STEPS, b"", LAST, 10, reverse=reverse) == []
    assert copy.walk(STEPS, b"", LAST).take(10) == []
    assert copy.salvage(STEPS, b"", 10) == ([], [])
    assert copy.extents(STEPS) == []
    assert [extent.rows for extent in copy.extents(STATE)] == [1]
    copy.close()


def test_a_copy_that_is_none_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(OpenError, match="could not open the copy"):
        RocksCopy(tmp_path / "empty")


def test_a_scan_of_a_copy_that_meets_damage_does_not_end_early(older: Path) -> None:
    table = max(older.glob("*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(table.read_bytes())
    data[len(b"key") + 5] ^= 0xFF
    table.write_bytes(data)
    copy = RocksCopy(older)
    with pytest.raises(Corrupt):
        copy.scan(STATE, b"", LAST, 10)
    with pytest.raises(Corrupt):
        copy.walk(STATE, b"", LAST).take(10)
    copy.close()
