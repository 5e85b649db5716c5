"""The RocksDB engine on real files: the engine interface, and each known problem of the driver."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import Corrupt, StoreClosed
from tenure.storage import keyspace
from tenure.storage.engine import iterate, iterate_keys
from tenure.storage.engines.rocksdb import RocksEngine
from tenure.storage.engines.rocksdb.opening import opening_threads
from tenure.storage.engines.rocksdb.reader import RocksReader as Reader
from tenure.storage.keyspace import (
    COUNTERS,
    DUE,
    JOBS,
    JOURNAL,
    LAST,
    META,
    NAMES,
    PAYLOAD,
    READY,
    STATE,
    commit,
    of_queue,
    ready,
)
from tenure.storage.records import decode_count, encode_count

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


def put(db: RocksEngine, space: int, *rows: tuple[bytes, bytes]) -> None:
    db.transact(lambda tx: tx.put_many(space, rows))


def get(db: RocksEngine, space: int, key: bytes) -> bytes | None:
    return db.read(lambda reader: reader.get(space, key))


def whole(db: RocksEngine, space: int) -> list[tuple[bytes, bytes]]:
    return db.read(lambda reader: reader.scan(space, b"", LAST, 1_000_000))


def flush(db: RocksEngine) -> None:
    """Flush the memtable into tables."""
    for table in db._tables:
        table.flush()


LETTERS = [(bytes([letter]), bytes([letter]) * 3) for letter in b"abcdefgh"]


# ── the seam ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_are_kept_in_order(db: RocksEngine) -> None:
    put(db, JOBS, *reversed(LETTERS))
    assert get(db, JOBS, b"c") == b"ccc"
    assert get(db, JOBS, b"x") is None
    assert get(db, STATE, b"c") is None, "spaces are apart"

    def look(reader: Any) -> None:
        assert reader.get_many(JOBS, [b"b", b"x", b"a"]) == [b"bbb", None, b"aaa"]
        assert reader.get_many(JOBS, []) == []
        assert reader.scan(JOBS, b"", LAST, 100) == LETTERS
        assert reader.scan(JOBS, b"c", b"f", 100) == LETTERS[2:5]
        assert reader.scan(JOBS, b"bb", b"e\0", 2) == LETTERS[2:4]
        assert reader.scan(JOBS, b"c", b"c", 100) == []
        assert reader.scan(JOBS, b"a", LAST, 0) == []
        assert reader.keys(JOBS, b"c", b"f", 100) == [b"c", b"d", b"e"]
        assert reader.scan(JOBS, b"", LAST, 3, reverse=True) == LETTERS[:-4:-1]
        assert reader.scan(JOBS, b"c", b"f", 100, reverse=True) == LETTERS[4:1:-1]
        assert reader.scan(JOBS, b"c", b"ee", 100, reverse=True) == LETTERS[4:1:-1]
        assert reader.keys(JOBS, b"c", b"f", 1, reverse=True) == [b"e"]
        assert reader.keys(STATE, b"", LAST, 1, reverse=True) == []

        assert [row for rows in iterate(reader, JOBS, b"b", b"g", 2) for row in rows] == LETTERS[1:6]
        assert b"".join(key for keys in iterate_keys(reader, JOBS, b"b", b"g", 5) for key in keys) == b"bcdef"

    db.read(look)


@pytest.mark.parametrize("space", [JOBS, STATE, PAYLOAD, READY])
def test_deletes(db: RocksEngine, space: int) -> None:
    put(db, space, *LETTERS)
    db.transact(lambda tx: tx.delete(space, b"a"))
    db.transact(lambda tx: tx.delete(space, b"not there"))
    db.transact(lambda tx: tx.delete_many(space, [b"b", b"h"]))
    assert [key for key, _ in whole(db, space)] == [b"c", b"d", b"e", b"f", b"g"]
    assert db.read(lambda reader: reader.get_many(space, [b"a", b"c", b"h"])) == [None, b"ccc", None]
    put(db, space, (b"b", b"again"))
    assert db.read(lambda reader: reader.get_many(space, [b"b", b"c"])) == [b"again", b"ccc"]


def test_deletes_of_ranges(db: RocksEngine) -> None:
    put(db, PAYLOAD, *LETTERS)
    db.transact(lambda tx: tx.delete_range(PAYLOAD, b"d", b"f"))
    db.transact(lambda tx: tx.delete_range(PAYLOAD, b"x", b"z"))
    assert [key for key, _ in whole(db, PAYLOAD)] == [b"a", b"b", b"c", b"f", b"g", b"h"]
    put(db, PAYLOAD, (b"d", b"again"))
    assert [key for key, _ in whole(db, PAYLOAD)] == [b"a", b"b", b"c", b"d", b"f", b"g", b"h"]


@pytest.mark.parametrize(("begin", "end"), [(b"c", b"c"), (b"d", b"c"), (b"", b""), (b"x", b"z")])
def test_a_range_with_nothing_in_it(db: RocksEngine, path: Path, begin: bytes, end: bytes) -> None:
    """Also as the last operation: the watermark must not report a loss."""
    put(db, PAYLOAD, *LETTERS)
    db.transact(lambda tx: tx.delete_range(PAYLOAD, begin, end))
    assert whole(db, PAYLOAD) == LETTERS
    db.close()
    again = opened(path)
    assert whole(again, PAYLOAD) == LETTERS
    again.close()


@pytest.mark.parametrize("space", [JOBS, STATE])
def test_rows_that_are_kept_in_memory_too_are_deleted_one_by_one(db: RocksEngine, space: int) -> None:
    with pytest.raises(ValueError, match="one by one"):
        db.transact(lambda tx: tx.delete_range(space, b"a", b"z"))


def test_writes_of_a_transaction_are_applied_in_order(db: RocksEngine) -> None:
    put(db, PAYLOAD, (b"a", b"old"), (b"b", b"old"))

    def work(tx: Any) -> None:
        tx.put(PAYLOAD, b"a", b"first")
        tx.put(PAYLOAD, b"a", b"second")
        tx.delete(PAYLOAD, b"b")
        tx.put(PAYLOAD, b"b", b"back")
        tx.put(PAYLOAD, b"c", b"gone")
        tx.delete_range(PAYLOAD, b"c", b"d")
        tx.put(PAYLOAD, b"cc", b"after the range")

    db.transact(work)
    assert whole(db, PAYLOAD) == [(b"a", b"second"), (b"b", b"back"), (b"cc", b"after the range")]


def test_a_commit_updates_all_caches(db: RocksEngine, path: Path) -> None:
    """A commit updates scan heads, recent rows, counters, journal and watermark."""
    keys = [ready(1, 5, time_ms, bytes(16)) for time_ms in (100, 200, 300)]
    put(db, READY, (keys[1], b""), (keys[2], b""))
    put(db, STATE, *LETTERS)
    db.transact(lambda tx: tx.add(b"n", 5))

    def first(reader: Any) -> Any:
        return reader.keys(READY, keys[0][:5], keys[0][:5] + b"\xff", 1)

    assert db.read(first) == [keys[1]]
    large = b"x" * 1000  # not cached: the older, smaller value must not stay in the cache

    def work(tx: Any) -> int:
        assert tx.keys(READY, keys[0][:5], keys[1], 1) == []
        assert tx.get(STATE, b"a") == b"aaa"
        for space, key, value in [
            (READY, keys[0], b""),
            (STATE, b"a", b"new"),
            (STATE, b"c", large),
            (JOBS, b"z", b"zzz"),
        ]:
            tx.put(space, key, value)
        for space, key in [(STATE, b"b"), (READY, keys[1]), (JOBS, b"not there")]:
            tx.delete(space, key)
        for name, delta in [(b"n", -2), (b"m", 7), (b"n", 1)]:
            tx.add(name, delta)
        number: int = tx.append(JOURNAL, b"an event")
        return number

    number = db.transact(work)
    assert db.durable() in (None, number)
    for _ in range(2):
        assert get(db, JOURNAL, commit(number)) == b"an event"
        assert db.read(first) == [keys[0]]
        assert [key for key, _ in whole(db, READY)] == [keys[0], keys[2]]
        assert db.read(lambda reader: reader.get_many(STATE, [b"a", b"b", b"c"])) == [b"new", None, large]
        assert get(db, JOBS, b"z") == b"zzz"
        assert [decode_count(get(db, COUNTERS, name)) for name in (b"n", b"m")] == [4, 7]
        db.close()
        db = opened(path)
    db.close()


def test_a_transaction_does_not_see_what_it_wrote_and_others_see_it_at_once(db: RocksEngine) -> None:
    put(db, JOBS, (b"a", b"old"))

    def work(tx: Any) -> tuple[bytes | None, list[bytes]]:
        tx.put(JOBS, b"a", b"new")
        tx.put(READY, b"12345a", b"")
        return tx.get(JOBS, b"a"), tx.keys(READY, b"", LAST, 10)

    assert db.transact(work) == (b"old", [])
    assert get(db, JOBS, b"a") == b"new"


def test_a_transaction_that_raises_writes_nothing(db: RocksEngine) -> None:
    put(db, READY, (b"12345b", b""))
    before, version = [whole(db, space) for space in range(len(NAMES))], db.version()

    def work(tx: Any) -> None:
        assert tx.keys(READY, b"12345", b"12346", 1) == [b"12345b"]
        tx.put(READY, b"12345a", b"")
        tx.delete(READY, b"12345b")
        tx.add(b"n", 5)
        tx.append(JOURNAL, b"never")
        raise KeyError("no")

    for _ in range(2):
        with pytest.raises(KeyError):
            db.transact(work)
    assert [whole(db, space) for space in range(len(NAMES))] == before
    assert db.version() == version
    assert db.read(lambda reader: reader.keys(READY, b"12345", b"12346", 1)) == [b"12345b"]
    assert db.transact(lambda tx: tx.append(JOURNAL, b"first")) == 1


def test_a_transaction_that_writes_nothing_is_no_commit(db: RocksEngine) -> None:
    version = db.version()
    assert db.transact(lambda tx: tx.get(JOBS, b"a")) is None
    assert db.version() == version
    put(db, JOBS, (b"a", b""))
    assert db.version() != version


def test_counters(db: RocksEngine, path: Path) -> None:
    def work(tx: Any) -> None:
        tx.add(b"n", 5)
        tx.add(b"n", -2)
        tx.add(b"m", 1)

    for _ in range(3):
        db.transact(work)
    assert decode_count(get(db, COUNTERS, b"n")) == 9
    assert decode_count(get(db, COUNTERS, b"m")) == 3
    db.close()
    again = opened(path)
    again.transact(work)
    assert decode_count(get(again, COUNTERS, b"n")) == 12
    again.transact(lambda tx: tx.add(b"n", -20))
    assert decode_count(get(again, COUNTERS, b"n")) == -8
    again.close()


@pytest.mark.parametrize("way", ["put", "put_many", "delete", "delete_many", "delete_range"])
def test_a_counter_that_is_written_over_is_counted_from_there(db: RocksEngine, way: str) -> None:
    db.transact(lambda tx: tx.add(b"n", 5))
    work: dict[str, Any] = {
        "put": lambda tx: tx.put(COUNTERS, b"n", encode_count(100)),
        "put_many": lambda tx: tx.put_many(COUNTERS, [(b"n", encode_count(100))]),
        "delete": lambda tx: tx.delete(COUNTERS, b"n"),
        "delete_many": lambda tx: tx.delete_many(COUNTERS, [b"n"]),
        "delete_range": lambda tx: tx.delete_range(COUNTERS, b"m", b"o"),
    }
    db.transact(work[way])
    db.transact(lambda tx: tx.add(b"n", 1))
    assert decode_count(get(db, COUNTERS, b"n")) == (101 if way.startswith("put") else 1)


def test_appended_rows_are_dense_across_restarts(db: RocksEngine, path: Path) -> None:
    def work(tx: Any) -> list[int]:
        assert tx.next_append(JOURNAL) == first
        return [tx.append(JOURNAL, b"one"), tx.append(JOURNAL, b"two")]

    first = 1
    assert db.transact(work) == [1, 2]
    first = 3
    assert db.transact(work) == [3, 4]
    db.transact(lambda tx: tx.delete_range(JOURNAL, commit(1), commit(4)))
    db.close()
    again = opened(path)
    first = 5
    assert again.transact(work) == [5, 6]
    assert [key for key, _ in whole(again, JOURNAL)] == [commit(n) for n in (4, 5, 6)]
    again.close()


def test_everything_is_there_after_reopening(db: RocksEngine, path: Path) -> None:
    for space in range(len(NAMES)):
        if space != JOURNAL:
            put(db, space, (b"key-of-%d" % space, b"value"), (b"\xff" * 20, b"last"))
    db.close()
    for options in ({"durability": "disk"}, {"mode": "low_space"}, {"cache_capacity": 1 << 20}):
        again = opened(path, **options)
        for space in range(len(NAMES)):
            expected = [] if space == JOURNAL else [(b"key-of-%d" % space, b"value"), (b"\xff" * 20, b"last")]
            assert whole(again, space) == expected
        again.close()


def test_large_values_and_long_keys(db: RocksEngine, path: Path) -> None:
    rows = [(b"k" * 60_000, b"v"), (b"large", bytes(9_000_000))]
    put(db, JOBS, *rows)
    assert whole(db, JOBS) == rows
    db.close()
    again = opened(path)
    assert whole(again, JOBS) == rows
    again.close()


def test_a_closed_engine_raises_store_closed(db: RocksEngine, tmp_path: Path) -> None:
    snapshot = db.snapshot()
    snapshot.close()
    db.close()
    db.close()
    for call in (
        lambda: db.transact(lambda tx: tx.put(JOBS, b"a", b"")),
        lambda: db.read(lambda reader: reader.get(JOBS, b"a")),
        lambda: db.snapshot(),
        lambda: db.export(str(tmp_path / "copy")),
    ):
        with pytest.raises(StoreClosed):
            call()
    assert not (tmp_path / "copy").exists()


def test_the_engines_traits(path: Path) -> None:
    for durability in ("disk", "os"):
        db = opened(path, durability=durability)
        traits = db.traits
        assert (traits.scope, traits.order, traits.snapshot, traits.durability) == (
            "process", "strict", "store", durability,
        )  # fmt: skip
        assert traits.poll is None
        assert db.alone
        db.close()


# ── the driver's traps ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_small_store_is_opened_without_a_thread_for_each_space(path: Path) -> None:
    """RocksDB's default starts 16 threads for each of its 30 spaces at every opening."""
    opened(path).close()
    opened(path).close()
    latest = max((path / "db").glob("OPTIONS-*"))
    assert "max_file_opening_threads=1\n" in latest.read_text()
    for number in range(64):
        (path / f"{number}.sst").touch()
    assert (opening_threads(path / "db"), opening_threads(path)) == (1, 16)


def test_a_snapshot_does_not_show_later_writes(db: RocksEngine) -> None:
    """Scans of the driver's own snapshots do."""
    put(db, JOBS, *LETTERS)
    put(db, PAYLOAD, *LETTERS)
    with db.snapshot() as snapshot:
        put(db, JOBS, (b"a", b"changed"), (b"aa", b"added"), (b"z", b"added"))
        db.transact(lambda tx: tx.delete(JOBS, b"d"))
        db.transact(lambda tx: tx.delete_range(PAYLOAD, b"a", b"z"))
        flush(db)
        for _ in range(2):
            assert snapshot.scan(JOBS, b"", LAST, 100) == LETTERS
            assert snapshot.scan(JOBS, b"", LAST, 100, reverse=True) == LETTERS[::-1]
            assert snapshot.keys(JOBS, b"c", LAST, 2) == [b"c", b"d"]
            assert snapshot.get(JOBS, b"a") == b"aaa"
            assert snapshot.get(JOBS, b"aa") is None
            assert snapshot.get_many(JOBS, [b"d", b"z", b"h"]) == [b"ddd", None, b"hhh"]
            assert snapshot.scan(PAYLOAD, b"", LAST, 100) == LETTERS
            assert snapshot.scan(META, b"", LAST, 100) == []
    with db.snapshot([JOBS]) as later:
        assert [key for key, _ in later.scan(JOBS, b"", LAST, 100)] == [
            b"a",
            b"aa",
            b"b",
            b"c",
            b"e",
            b"f",
            b"g",
            b"h",
            b"z",
        ]


def test_a_snapshot_is_one_moment_of_all_spaces_under_writers(db: RocksEngine) -> None:
    """Every transaction writes one number to several spaces: no snapshot sees two different numbers."""
    spaces = (JOBS, STATE, READY, DUE, META)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            value = b"%d" % number

            def work(tx: Any, value: bytes = value) -> None:
                for space in spaces:
                    tx.put(space, b"the key", value)

            db.transact(work)

    threads = [threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            with db.snapshot() as snapshot:
                found = {snapshot.get(space, b"the key") for space in spaces}
                found |= {value for space in spaces for _, value in snapshot.scan(space, b"", LAST, 5)} or {None}
                assert len(found) == 1, found
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_values_that_look_like_pickles_stay_bytes(db: RocksEngine, path: Path) -> None:
    """Without raw mode the driver would unpickle values."""
    import pickle

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("something was unpickled",))

    bait = [pickle.dumps(Trap()), b"\x05" + pickle.dumps(Trap()), b"\x01raw", b"\x02int", b"\x00", b""]
    rows = [(b"%d" % n, value) for n, value in enumerate(bait)] + [(pickle.dumps(Trap()), b"key")]
    put(db, JOBS, *rows)
    for _ in range(2):
        assert whole(db, JOBS) == sorted(rows)
        assert [get(db, JOBS, key) for key, _ in rows] == [value for _, value in rows]
        with db.snapshot() as snapshot:
            assert snapshot.get_many(JOBS, [key for key, _ in rows]) == [value for _, value in rows]
        db.close()
        db = opened(path)
    db.close()


def damage_a_block(path: Path) -> None:
    """Damage the middle of the largest file."""
    table = max((path / "db").glob("*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    table.write_bytes(data)


def test_a_damaged_block_is_an_error_in_every_kind_of_read(path: Path) -> None:
    """The driver's simple iterators end silently at damage."""
    db = opened(path)
    chance = random.Random(7)
    rows = [(b"%05d" % n, chance.randbytes(400)) for n in range(2000)]
    put(db, PAYLOAD, *rows)
    db.close()
    damage_a_block(path)
    db = opened(path)

    def all_values(reader: Any) -> Any:
        return reader.get_many(PAYLOAD, [key for key, _ in rows])

    for look in (
        lambda reader: reader.scan(PAYLOAD, b"", LAST, 10_000),
        lambda reader: reader.scan(PAYLOAD, b"", LAST, 10_000, reverse=True),
        lambda reader: reader.keys(PAYLOAD, b"", LAST, 10_000),
        lambda reader: reader.keys(PAYLOAD, b"", LAST, 10_000, reverse=True),
        all_values,
        lambda reader: [reader.get(PAYLOAD, key) for key, _ in rows],
    ):
        with pytest.raises(Corrupt):
            db.read(look)
        with pytest.raises(Corrupt), db.snapshot() as snapshot:
            look(snapshot)
        with pytest.raises(Corrupt):
            db.transact(look)
    assert db.read(lambda reader: reader.get(PAYLOAD, b"00000")) == rows[0][1], "the rest can be read"
    db.transact(lambda tx: tx.put(JOBS, b"a", b"and written"))
    db.close()


def test_a_damaged_block_of_a_front_is_an_error_for_many_keys_too(path: Path) -> None:
    db = opened(path)
    chance = random.Random(7)
    rows = [(keyspace.ready(1, 0, n, chance.randbytes(16)), b"") for n in range(5000)]
    put(db, READY, *rows)
    db.close()
    damage_a_block(path)
    db = opened(path)
    tier, end = keyspace.ready_prefix(1, 0), keyspace.ready_tier_end(1, 0)
    for _ in range(2):  # the second time the head of the front is cached
        assert db.transact(lambda tx: tx.keys(READY, tier, end, 100)) == [key for key, _ in rows[:100]]
        with pytest.raises(Corrupt):
            db.transact(lambda tx: tx.keys(READY, tier, end, 10_000))
    db.close()


def test_many_keys_of_a_front_end_where_they_are_asked_to(db: RocksEngine) -> None:
    rows = [(keyspace.ready(1, 0, n, bytes(16)), b"") for n in range(200)]
    put(db, READY, *rows)
    tier = keyspace.ready_prefix(1, 0)
    for many in (1, 15, 16, 17, 150, 151, 199, 200, 201):
        for until in (0, 10, 150, 200, 1000):
            found = db.read(lambda reader: reader.keys(READY, tier, keyspace.ready_from(1, 0, until), many))  # noqa: B023
            assert found == [key for key, _ in rows[: min(many, until)]]


def test_a_damaged_counter_is_an_error_and_the_engine_goes_on(db: RocksEngine) -> None:
    put(db, COUNTERS, (b"n", b"nonsense"))
    with pytest.raises(Corrupt):
        db.transact(lambda tx: tx.add(b"n", 1))
    db.transact(lambda tx: tx.add(b"m", 1))
    assert decode_count(get(db, COUNTERS, b"m")) == 1


# ── commits of many at once ──────────────────────────────────────────────────────────────────────────────────────────


def _put_and_append(tx: Any, key: bytes) -> None:
    tx.put(JOBS, key, b"x" * 100)
    tx.append(JOURNAL, b"event")


def test_sixty_four_threads_share_syncs(path: Path) -> None:
    db = opened(path, durability="disk")
    sync = db.group_commit._sync

    def sync_slowly() -> None:
        time.sleep(0.001)  # as a disk takes; files in memory are synced at once, and few callers come meanwhile
        sync()

    db.group_commit._sync = sync_slowly
    commits_each = 25
    barrier = threading.Barrier(64)

    def work(number: int) -> None:
        barrier.wait()
        for n in range(commits_each):
            db.transact(partial(_put_and_append, key=b"%d-%d" % (number, n)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    commits = 64 * commits_each
    assert len(whole(db, JOBS)) == commits
    assert [key for key, _ in whole(db, JOURNAL)] == [commit(n + 1) for n in range(commits)]
    assert db.version() >= commits
    assert db.durable() == commits
    assert db.group_commit.syncs * 4 < commits, f"{commits} commits took {db.group_commit.syncs} syncs"
    db.close()


def test_a_lone_commit_is_synced_before_it_returns(path: Path) -> None:
    db = opened(path, durability="disk")
    for n in range(1, 6):
        syncs = db.group_commit.syncs
        db.transact(lambda tx: tx.append(JOURNAL, b"e"))
        assert db.group_commit.syncs == syncs + 1
        assert db.durable() == n
    db.close()


def test_at_os_no_caller_waits_and_a_thread_syncs(path: Path) -> None:
    db = opened(path, durability="os", sync_interval=0.02)
    assert db.durable() is None, "a commit counts as soon as it is seen"
    for _ in range(200):
        db.transact(lambda tx: tx.append(JOURNAL, b"e"))
    until = time.monotonic() + 60
    while not db.group_commit.syncs and time.monotonic() < until:
        time.sleep(0.01)
    assert 1 <= db.group_commit.syncs < 200, "fewer than commits"
    db.close()


# ── heads ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_row_put_before_the_head_is_found_first(db: RocksEngine) -> None:
    keys = [ready(1, 5, 1000 + n, bytes(16)) for n in range(10)]
    begin, end = keys[0][:5], keys[0][:5] + b"\xff"
    put(db, READY, *[(key, b"") for key in keys[5:]])

    def first() -> list[bytes]:
        return db.read(lambda reader: reader.keys(READY, begin, end, 1))

    assert first() == [keys[5]]
    db.transact(lambda tx: tx.delete_many(READY, keys[5:8]))
    assert first() == [keys[8]]
    put(db, READY, (keys[2], b""))
    assert first() == [keys[2]]
    db.transact(lambda tx: tx.put(READY, keys[1], b""))
    db.transact(lambda tx: tx.delete(READY, keys[2]))
    assert first() == [keys[1]]
    db.transact(lambda tx: tx.delete_range(READY, begin, end))
    assert first() == []
    put(db, READY, (keys[0], b""))
    assert first() == [keys[0]]


def test_an_empty_scan_hides_no_later_rows(db: RocksEngine) -> None:
    begin = ready(1, 5, 0, b"")[:5]
    later = ready(1, 5, 5000, bytes(16))
    put(db, READY, (later, b""))

    def until(time_ms: int) -> list[bytes]:
        return db.read(lambda reader: reader.keys(READY, begin, begin + commit(time_ms), 10))

    assert until(1000) == []
    assert until(5001) == [later]
    assert until(1000) == []
    put(db, READY, (ready(1, 5, 500, bytes(16)), b""))
    assert until(1000) == [ready(1, 5, 500, bytes(16))]


def test_a_journal_looked_at_while_it_was_empty(db: RocksEngine) -> None:
    assert db.read(lambda reader: reader.keys(JOURNAL, b"", LAST, 1)) == []
    assert db.read(lambda reader: reader.scan(JOURNAL, b"", LAST, 1)) == []
    db.transact(lambda tx: tx.append(JOURNAL, b"first"))
    assert db.read(lambda reader: reader.keys(JOURNAL, b"", LAST, 9)) == [commit(1)]
    assert db.read(lambda reader: reader.scan(JOURNAL, b"", LAST, 9)) == [(commit(1), b"first")]
    db.transact(lambda tx: tx.append(JOURNAL, b"second"))
    assert db.read(lambda reader: reader.keys(JOURNAL, b"", LAST, 9)) == [commit(1), commit(2)]


@pytest.mark.parametrize("seed", range(6))
def test_random_operations_agree_with_a_sorted_dict(path: Path, seed: int) -> None:
    """Mostly fronts: scans from their start, puts before their head, range deletes, roll-backs, reopening."""
    chance = random.Random(seed)
    model: dict[int, dict[bytes, bytes]] = {space: {} for space in (READY, DUE, STATE, PAYLOAD, JOURNAL)}
    counters: dict[bytes, int] = {}
    appended = 0
    db = opened(path)

    def key(space: int) -> bytes:
        if space == READY:
            return ready(
                chance.randrange(3), chance.randrange(3), chance.randrange(40), bytes([chance.randrange(3)]) * 16
            )
        if space == DUE:
            return bytes([chance.randrange(1, 4)]) + commit(chance.randrange(40)) + bytes(20)
        return of_queue(chance.randrange(2), bytes([chance.randrange(60)]) * 16)

    def begin(space: int) -> bytes:
        if space == READY:
            return ready(chance.randrange(3), chance.randrange(3), 0, b"")[: chance.choice([0, 4, 5, 5, 5, 13])]
        if space == DUE:
            return bytes([chance.randrange(1, 4)])[: chance.choice([0, 1, 1, 1])]
        return key(space)[: chance.choice([0, 4, 20])]

    def end(space: int, start: bytes) -> bytes:
        return chance.choice([LAST, start + b"\xff" * 20, start + commit(chance.randrange(40)), key(space)])

    def write(tx: Any) -> list[tuple[Any, ...]]:
        done: list[tuple[Any, ...]] = []
        for _ in range(chance.randint(1, 6)):
            space = chance.choice([READY, READY, DUE, STATE, PAYLOAD])
            roll = chance.random()
            if roll < 0.5:
                row = (key(space), chance.randbytes(3))
                tx.put(space, *row)
                done.append(("put", space, *row))
            elif roll < 0.85:
                gone = chance.choice(sorted(model[space]) or [b"x"]) if chance.random() < 0.8 else key(space)
                tx.delete(space, gone)
                done.append(("delete", space, gone))
            elif roll < 0.92 and space != STATE:
                start = begin(space)
                stop = end(space, start)
                tx.delete_range(space, start, max(start, stop))
                done.append(("range", space, start, stop))
            else:
                change = (b"n%d" % chance.randrange(3), chance.randint(-3, 5))
                tx.add(*change)
                done.append(("add", COUNTERS, *change))
        if chance.random() < 0.5:
            value = chance.randbytes(3)
            done.append(("append", JOURNAL, tx.append(JOURNAL, value), value))
        return done

    def compare(reader: Any) -> None:
        for space in (READY, READY, DUE, STATE, PAYLOAD, JOURNAL):
            start = b"" if space == JOURNAL else begin(space)
            stop = LAST if space == JOURNAL else end(space, start)
            expected = sorted((k, v) for k, v in model[space].items() if start <= k < stop)
            limit = chance.choice([1, 1, 2, 1000])
            assert reader.scan(space, start, stop, limit) == expected[:limit], (NAMES[space], start, stop, limit)
            assert reader.keys(space, start, stop, limit) == [k for k, _ in expected[:limit]]
            assert reader.scan(space, start, stop, limit, reverse=True) == expected[::-1][:limit]
            sought = [key(space) for _ in range(5)] + [k for k, _ in expected[:5]]
            assert reader.get_many(space, sought) == [model[space].get(k) for k in sought]
            assert [reader.get(space, k) for k in sought] == [model[space].get(k) for k in sought]

    def apply(done: list[tuple[Any, ...]]) -> None:
        nonlocal appended
        for change, space, *rest in done:
            if change == "put":
                model[space][rest[0]] = rest[1]
            elif change == "delete":
                model[space].pop(rest[0], None)
            elif change == "range":
                for found in [k for k in model[space] if rest[0] <= k < rest[1]]:
                    del model[space][found]
            elif change == "add":
                counters[rest[0]] = counters.get(rest[0], 0) + rest[1]
            else:
                appended += 1
                assert rest[0] == appended
                model[JOURNAL][commit(appended)] = rest[1]

    for _ in range(400):
        roll = chance.random()
        if roll < 0.45:
            apply(db.transact(write))
        elif roll < 0.9:
            chance.choice([db.read, db.transact])(compare)
        elif roll < 0.94:
            with pytest.raises(ZeroDivisionError):
                db.transact(lambda tx: (write(tx), 1 / 0))
        elif roll < 0.97:
            with db.snapshot() as snapshot:
                compare(snapshot)
        elif roll < 0.985:
            flush(db)
        else:
            db.close()
            db = opened(path, durability=chance.choice(["os", "disk"]))
    db.read(compare)
    for name, count in counters.items():
        assert decode_count(get(db, COUNTERS, name)) == count
    db.close()


# ── copies ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_copy_opens_and_has_the_same_rows(db: RocksEngine, tmp_path: Path) -> None:
    put(db, JOBS, *LETTERS)
    db.transact(lambda tx: tx.append(JOURNAL, b"event"))
    flush(db)
    put(db, STATE, *LETTERS)  # in the log only
    db.export(str(tmp_path / "copy"))
    put(db, JOBS, (b"later", b""))
    copy = opened(tmp_path / "copy", durability="disk")
    assert whole(copy, JOBS) == LETTERS
    assert whole(copy, STATE) == LETTERS
    assert copy.transact(lambda tx: tx.append(JOURNAL, b"its own")) == 2
    copy.close()
    assert len(whole(db, JOBS)) == len(LETTERS) + 1


def test_many_rows_in_any_order_are_those_at_their_keys(db: RocksEngine, path: Path) -> None:
    """Many keys, read by stepping from row to row: with gaps, repeated and missing keys, and the last row."""
    rows = {bytes([0, number]): b"%d" % number for number in range(0, 200, 2)}
    put(db, STATE, *rows.items())
    db.transact(lambda tx: tx.delete_many(STATE, [bytes([0, 20]), bytes([0, 22])]))
    db.close()
    for gone in (20, 22):
        del rows[bytes([0, gone])]
    draw = random.Random(7)
    db = opened(path)
    for _ in range(50):
        keys = [bytes([0, draw.randrange(200)]) for _ in range(draw.choice([1, 7, 8, 40]))]
        if draw.random() < 0.7:
            keys.sort()
        keys.append(bytes([0, 198]))
        keys.append(b"\xff\xff")
        found = db.read(partial(Reader.get_many, space=STATE, keys=keys))
        assert found == [rows.get(key) for key in keys]
    db.close()
