"""The LMDB engine on real files, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import Corrupt, FormatError, OpenError, StoreClosed, StoreLocked, TenureError, Unavailable
from tenure.storage.engines.lmdb import LmdbEngine, engine
from tenure.storage.keyspace import COUNTERS, DUE, JOBS, JOURNAL, LAST, META, PAYLOAD, READY, STATE, commit, of_queue
from tenure.storage.records import decode_count

SRC = str(Path(__file__).parents[2] / "src")
BOOT = "this boot"


def opened(path: Path, **options) -> LmdbEngine:
    engine = LmdbEngine(str(path), boot_id=BOOT, **options)
    engine.share()
    return engine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def db(path: Path):
    found = opened(path)
    yield found
    found.close()


def start(path: Path, body: str) -> subprocess.Popen[str]:
    """Start another process that has the store open as `db`, and communicates by lines on stdin and stdout."""
    code = f"""
        import os, sys, time
        from tenure.errors import *
        from tenure.storage.engines.lmdb import LmdbEngine
        from tenure.storage.keyspace import *
        def say(*what): print(*what, flush=True)
        db = LmdbEngine({str(path)!r}, boot_id={BOOT!r}, map_size=1 << 20)
        db.share()
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code) + textwrap.dedent(body)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": SRC},
    )


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], line: str = "") -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def finish(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return out


def put(db: LmdbEngine, space: int, *rows: tuple[bytes, bytes]) -> None:
    db.transact(lambda tx: tx.put_many(space, rows))


def everything(db: LmdbEngine, space: int) -> list[tuple[bytes, bytes]]:
    return db.read(lambda r: r.scan(space, b"", LAST, 10**6))


def count(db: LmdbEngine, key: bytes = b"n") -> int:
    return decode_count(db.read(lambda r: r.get(COUNTERS, key)))


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_are_kept_in_order(db, path):
    rows = [(b"%03d" % n, b"v%d" % n) for n in range(100)]
    put(db, JOBS, *reversed(rows))
    put(db, READY, (b"k", b""))

    def look(reader):
        assert reader.get(JOBS, b"007") == b"v7"
        assert reader.get(JOBS, b"0070") is None
        assert reader.get(READY, b"k") == b""
        assert reader.get_many(JOBS, [b"009", b"zzz", b"001"]) == [b"v9", None, b"v1"]
        assert reader.scan(JOBS, b"", LAST, 1000) == rows
        assert reader.scan(JOBS, b"010", b"013", 1000) == rows[10:13]
        assert reader.scan(JOBS, b"010", b"013", 2) == rows[10:12]
        assert reader.scan(JOBS, b"010", b"013", 2, reverse=True) == [rows[12], rows[11]]
        assert reader.scan(JOBS, b"", LAST, 1000, reverse=True) == rows[::-1]
        assert reader.scan(JOBS, b"", b"000", 10) == reader.scan(JOBS, b"", b"000", 10, reverse=True) == []
        assert reader.scan(JOBS, b"0995", LAST, 10) == reader.scan(JOBS, b"0995", LAST, 10, reverse=True) == []
        assert (
            reader.scan(JOBS, b"", LAST, 0)
            == reader.scan(JOBS, b"5", b"1", 9)
            == reader.scan(STATE, b"", LAST, 9)
            == []
        )
        assert reader.keys(JOBS, b"098", LAST, 10) == [b"098", b"099"]
        assert reader.keys(JOBS, b"", b"002", 10, reverse=True) == [b"001", b"000"]

    db.read(look)
    db.transact(look)
    with db.snapshot() as snapshot:
        look(snapshot)
    db.close()
    again = opened(path)
    again.read(look)
    again.close()


def test_writes_are_applied_in_order(db):
    put(db, PAYLOAD, *[(b"%d" % n, b"old") for n in range(9)])

    def change(tx):
        tx.put(PAYLOAD, b"2", b"lost")
        tx.delete_range(PAYLOAD, b"1", b"6")
        tx.put(PAYLOAD, b"3", b"new")
        tx.delete(PAYLOAD, b"7")
        tx.delete_many(PAYLOAD, [b"8", b"not there"])
        tx.put(PAYLOAD, b"8", b"again")
        tx.guard(PAYLOAD, b"8")

    db.transact(change)
    assert everything(db, PAYLOAD) == [(b"0", b"old"), (b"3", b"new"), (b"6", b"old"), (b"8", b"again")]
    db.transact(lambda tx: tx.delete_range(PAYLOAD, b"", LAST))
    assert everything(db, PAYLOAD) == []


def test_counters_and_appended_rows(db, path):
    def work(tx):
        assert tx.next_append(JOURNAL) == tx.append(JOURNAL, b"one")
        tx.add(b"n", 5)
        tx.add(b"n", -7)
        return tx.append(JOURNAL, b"two")

    assert [db.transact(work) for _ in range(3)] == [2, 4, 6]
    assert count(db) == -6
    db.close()
    again = opened(path)
    assert again.transact(work) == 8
    again.transact(lambda tx: tx.delete_range(JOURNAL, commit(0), commit(7)))
    assert again.transact(work) == 10
    assert [key for key, _ in everything(again, JOURNAL)] == [commit(n) for n in range(7, 11)]
    again.close()


def test_a_transaction_that_raises_writes_nothing(db):
    before = db.version()

    def work(tx):
        tx.put(JOBS, b"k", b"v")
        tx.append(JOURNAL, b"row")
        raise KeyError("no")

    with pytest.raises(KeyError):
        db.transact(work)
    assert db.transact(lambda tx: tx.next_append(JOURNAL)) == 1
    assert everything(db, JOBS) == []
    assert db.version() == before  # and reading alone commits nothing


def test_a_key_too_long_fails_its_caller_only(db):
    with pytest.raises(ValueError, match="511"):
        db.transact(lambda tx: (tx.put(JOBS, b"a", b""), tx.put(JOBS, b"k" * 512, b"")))
    assert everything(db, JOBS) == []
    put(db, JOBS, (b"k" * 511, b"v"))
    assert db.read(lambda r: r.get(JOBS, b"k" * 511)) == b"v"


def test_a_large_value(db):
    put(db, JOBS, (b"k", b"x" * 5_000_000))
    assert db.read(lambda r: r.get(JOBS, b"k")) == b"x" * 5_000_000


# ── many at once ─────────────────────────────────────────────────────────────────────────────────────────────────────


def in_threads(works) -> list[object]:
    """Run all at once. Returns the errors they raised."""
    errors: list[object] = []

    def guarded(work):
        try:
            work()
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_sixteen_threads_share_commits_and_get_their_own_results(db):
    before, rounds = db.version(), 50
    numbers: list[int] = []

    def worker(me: int) -> None:
        for turn in range(rounds):

            def work(tx, turn=turn):
                number = tx.append(JOURNAL, b"%d" % me)
                tx.add(b"n", 1)
                if turn % 5 == 4:
                    raise LookupError(me)
                return me, number

            if turn % 5 == 4:
                with pytest.raises(LookupError, match=f"^{me}$"):
                    db.transact(work)
            else:
                who, number = db.transact(work)
                assert who == me
                numbers.append(number)

    assert in_threads([lambda me=me: worker(me) for me in range(16)]) == []
    done = 16 * rounds * 4 // 5
    assert sorted(numbers) == list(range(1, done + 1))
    assert count(db) == len(everything(db, JOURNAL)) == done
    assert db.version() - before < done  # one commit for several callers


def test_a_request_that_breaks_the_group_is_left_out(db):
    """LMDB refuses the key only when it is applied, after other requests of the group were applied."""
    gate = threading.Event()

    def slow(tx):
        gate.wait(5)
        tx.add(b"n", 1)

    def good():
        db.transact(lambda tx: tx.add(b"n", 1))

    def bad():
        with pytest.raises(ValueError, match="511"):
            db.transact(lambda tx: (tx.add(b"n", 1), tx.put(JOBS, b"", b"")))

    threading.Timer(0.2, gate.set).start()
    assert in_threads([lambda: db.transact(slow), *[good, bad] * 8]) == []
    assert count(db) == 9


def test_a_base_exception_blocks_no_other_caller(db):
    class Stop(BaseException):
        pass

    def stop(tx):
        tx.add(b"n", 1)
        time.sleep(0.02)
        raise Stop

    errors = in_threads([lambda: db.transact(stop), lambda: db.transact(lambda tx: tx.add(b"n", 1))] * 4)
    assert [type(e) for e in errors] == [Stop] * 4
    assert count(db) == 4


def test_an_interrupt_hits_the_main_thread_only(path):
    """The main thread leads, and is interrupted while it runs another caller's function: that function runs again."""
    process = start(
        path,
        """
        import threading, signal
        runs, results = [], []
        def other(tx):
            runs.append(threading.current_thread().name)
            if len(runs) == 1:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1)
            tx.add(b"n", 1)
            return "mine"
        thread = threading.Thread(target=lambda: results.append(db.transact(other)))
        def slow(tx):  # alone in its group, while the main thread and the other queue up behind it
            inside.set()
            time.sleep(2)
        inside = threading.Event()
        first = threading.Thread(target=lambda: db.transact(slow)); first.start(); inside.wait()
        threading.Timer(0.7, thread.start).start()
        try:
            db.transact(lambda tx: tx.add(b"n", 100))
        except KeyboardInterrupt:
            say("interrupted")
        thread.join(60); first.join(60)
        say(runs, results, db.read(lambda r: r.get(COUNTERS, b"n"))[:8].hex())
        db.close()
        """,
    )
    assert finish(process).splitlines() == [
        "interrupted",
        f"['MainThread', 'Thread-1 (<lambda>)'] ['mine'] {1:016x}",
    ]


def test_four_processes_add_and_append(db, path):
    body = """
        sys.stdin.readline()
        def work(tx):
            tx.add(b"n", 1)
            return tx.append(JOURNAL, b"%d" % os.getpid())
        numbers = [db.transact(work) for _ in range(500)]
        assert numbers == sorted(numbers)
        say(*numbers)
        db.close()
    """
    processes = [start(path, body) for _ in range(4)]
    for process in processes:
        tell(process)
    numbers = [int(word) for process in processes for word in finish(process).split()]
    assert sorted(numbers) == list(range(1, 2001))
    assert count(db) == 2000
    assert [key for key, _ in everything(db, JOURNAL)] == [commit(n) for n in range(1, 2001)]


def test_many_processes_make_the_store_at_once(path):
    processes = [start(path, 'db.transact(lambda tx: tx.add(b"n", 1)); say(db.alone); db.close()') for _ in range(6)]
    assert "True" in "".join(finish(process) for process in processes)
    db = opened(path)
    assert count(db) == 6
    assert db.alone
    db.close()


def test_commits_of_other_processes_are_seen(db, path):
    process = start(
        path,
        'say(db.alone); sys.stdin.readline(); db.transact(lambda tx: tx.put(META, b"k", b"v")); say(""); db.close()',
    )
    assert heard(process) == "False"
    before = db.version()
    assert db.version() == before
    tell(process)
    heard(process)
    assert db.version() > before
    assert everything(db, META) == [(b"k", b"v")]
    finish(process)


def test_a_killed_writer_leaves_the_lock_free(db, path):
    put(db, META, (b"k", b"v"))
    process = start(
        path,
        """
        snapshot = db.snapshot()
        def stuck(tx):
            tx.put(META, b"k", b"half")
            say("inside")
            time.sleep(60)
        db.transact(stuck)
        """,
    )
    assert heard(process) == "inside"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    put(db, META, (b"after", b""))
    assert everything(db, META) == [(b"after", b""), (b"k", b"v")]
    db.tend()
    db.close()
    again = opened(path)
    put(again, META, (b"later", b""))
    again.close()


# ── moments ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_snapshot_is_one_moment(db):
    put(db, JOBS, (b"a", b"1"))
    with db.snapshot() as snapshot:
        put(db, JOBS, (b"a", b"2"), (b"b", b""))
        put(db, STATE, (b"a", b"2"))
        assert snapshot.get(JOBS, b"a") == b"1"
        assert snapshot.scan(JOBS, b"", LAST, 9) == [(b"a", b"1")]
        assert snapshot.get(STATE, b"a") is None
        seen: list[object] = []
        assert in_threads([lambda: seen.append(snapshot.get(JOBS, b"a"))]) == []
        assert seen == [b"1"]
    with pytest.raises(StoreClosed):
        snapshot.get(JOBS, b"a")
    snapshot.close()


def test_a_copy_opens_and_has_the_same_rows(db, path, tmp_path):
    rows = [(of_queue(1, b"%016d" % n), b"x" * 100) for n in range(2000)]
    db.transact(lambda tx: (tx.put_many(JOBS, rows), tx.append(JOURNAL, b"row"), tx.append(JOURNAL, b"row")))
    db.export(str(tmp_path / "copy"))
    with pytest.raises(OpenError, match="exists"):
        db.export(str(tmp_path / "copy"))
    put(db, JOBS, (b"later", b""))
    copy = opened(tmp_path / "copy")
    assert everything(copy, JOBS) == rows
    assert copy.transact(lambda tx: tx.append(JOURNAL, b"row")) == 3
    assert copy._marks.required == 1  # a compacted copy counts its transactions anew
    copy.close()


# ── the map ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def fill(db: LmdbEngine, name: str, rounds: int) -> None:
    for turn in range(rounds):
        put(db, JOBS, *[(b"%s %d %d" % (name.encode(), turn, n), b"x" * 1000) for n in range(10)])


def test_the_map_grows_under_load(path):
    db = opened(path, map_size=1)
    stop = threading.Event()

    def read():
        while not stop.is_set():
            assert len(everything(db, JOBS)) % 10 == 0
            with db.snapshot() as snapshot:
                assert len(snapshot.keys(JOBS, b"", LAST, 10**6)) % 10 == 0

    def write(me):
        fill(db, str(me), 100)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        assert in_threads([lambda me=me: write(me) for me in range(8)]) == []
    finally:
        stop.set()
    for reader in readers:
        reader.join()
    assert len(everything(db, JOBS)) == 8000
    db.close()


def test_the_map_grows_in_another_process(path):
    db = opened(path, map_size=1)
    process = start(
        path,
        """
        for turn in range(600):
            db.transact(lambda tx: tx.put_many(JOBS, [(b"%d %d" % (turn, n), b"x" * 1000) for n in range(10)]))
        say("grown")
        sys.stdin.readline()
        say(len(db.read(lambda r: r.keys(JOBS, b"", LAST, 10**6))))
        db.close()
        """,
    )
    assert heard(process) == "grown"
    assert len(everything(db, JOBS)) == 6000
    fill(db, "mine", 1500)
    tell(process)
    assert heard(process) == "21000"
    finish(process)
    db.close()


def test_opening_while_the_map_grows(path):
    grower = start(
        path,
        """
        say("")
        for turn in range(2000):
            db.transact(lambda tx: tx.put(JOBS, b"%d" % turn, b"x" * 20_000))
        db.close()
        """,
    )
    heard(grower)
    while grower.poll() is None:
        db = opened(path, map_size=1)
        assert db.read(lambda r: r.get(JOBS, b"none")) is None
        db.close()
    finish(grower)


def test_an_open_snapshot_blocks_growth_with_a_clear_error(path, monkeypatch):
    monkeypatch.setattr(engine.LmdbEngine._grow, "__defaults__", (0.3,))
    db = opened(path, map_size=1)
    snapshot = db.snapshot()
    with pytest.raises(Unavailable, match="snapshot"):
        put(db, JOBS, (b"large", b"x" * 3_000_000))
    put(db, JOBS, (b"small", b""))
    assert snapshot.get(JOBS, b"small") is None
    snapshot.close()
    put(db, JOBS, (b"large", b"x" * 3_000_000))
    forgotten = db.snapshot()
    assert forgotten.get(JOBS, b"small") == b""
    del forgotten
    put(db, JOBS, (b"larger", b"x" * 9_000_000))
    db.close()


def test_a_full_disk_gives_an_error_and_passes(path):
    """A limit on file sizes simulates the full disk."""
    process = start(
        path,
        """
        import resource
        size = os.path.getsize(db._env.path() + "/data.mdb")
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20000, resource.RLIM_INFINITY))
        try:
            db.transact(lambda tx: tx.put(JOBS, b"k", b"x" * 500_000))
        except Unavailable as exc:
            say(exc)
        say(db.read(lambda r: r.get(JOBS, b"k")))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        db.transact(lambda tx: tx.put(JOBS, b"k", b"x" * 500_000))
        say(len(db.read(lambda r: r.get(JOBS, b"k"))))
        db.close()
        """,
    )
    said = finish(process).splitlines()
    assert "disk is full" in said[0]
    assert said[1:] == ["None", "500000"]


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def flip(path: Path, pattern: bytes, at: int) -> None:
    """Flip one bit wherever the pattern is in the data file."""
    file = path / "db" / "data.mdb"
    data = bytearray(file.read_bytes())
    found = places(data, pattern)
    assert found
    for place in found:
        data[place + at] ^= 0x10
    file.write_bytes(data)


def places(data: bytearray, key: bytes) -> list[int]:
    found, at = [], data.find(key)
    while at >= 0:
        found.append(at)
        at = data.find(key, at + 1)
    return found


JOB = b"job-15-of-thirty"


@pytest.fixture
def thirty(path: Path) -> Path:
    db = opened(path)
    put(db, JOBS, *[(of_queue(1, b"job-%02d-of-thirty" % n), b"value-%d" % n) for n in range(30)])
    put(db, READY, *[(b"ready-%02d" % n, b"") for n in range(30)])
    db.close()
    return path


@pytest.mark.parametrize(
    ("pattern", "at"),
    [(JOB + b"value-15", 18), (JOB + b"value-15", 5), (JOB + b"value-15", 0)],
    ids=["value", "key", "key, far from its place"],
)
def test_a_flipped_bit_of_a_row_is_found(thirty, pattern, at):
    flip(thirty, pattern, at)
    db = opened(thirty)
    key, begin, end = of_queue(1, JOB), of_queue(1, b""), of_queue(2, b"")
    looks = [
        lambda r: r.get(JOBS, key),
        lambda r: r.get_many(JOBS, [key]),
        lambda r: r.scan(JOBS, begin, end, 99),
        lambda r: r.scan(JOBS, begin, end, 99, reverse=True),
        lambda r: r.keys(JOBS, begin, end, 99),
        lambda r: r.keys(JOBS, key, key + b"\0", 99),
        lambda r: r.keys(JOBS, key, key + b"\0", 99, reverse=True),
    ]
    for look in looks:
        with pytest.raises(Corrupt, match="jobs") as found:
            db.read(look)
        assert found.value.job_id is not None
        with pytest.raises(Corrupt):
            db.transact(look)
    # other rows can still be read
    assert db.read(lambda r: r.get(JOBS, of_queue(1, b"job-02-of-thirty"))) == b"value-2"
    db.transact(lambda tx: tx.delete(JOBS, key))
    db.close()


def test_a_flipped_bit_of_an_index_row_is_found(thirty):
    flip(thirty, b"ready-15", 7)
    db = opened(thirty)
    for look in (
        lambda r: r.keys(READY, b"", LAST, 99),
        lambda r: r.keys(READY, b"ready-10", b"ready-15", 99, reverse=True),
        lambda r: r.keys(READY, b"ready-15", b"ready-16", 99),
        lambda r: r.get(READY, b"ready-15"),
    ):
        with pytest.raises(Corrupt, match="ready"):
            db.read(look)
    db.close()


@pytest.mark.parametrize("bit", [1, 2, 4])
def test_a_flipped_bit_on_the_way_to_a_row_is_found(path, bit):
    """Branch pages hold keys without a checksum: a misled search must not report a missing row."""
    db = opened(path)
    keys = [b"key-%06d" % n for n in range(3000)]
    put(db, DUE, *[(key, b"=" * 40) for key in keys])
    db.close()
    file = path / "db" / "data.mdb"
    data = bytearray(file.read_bytes())
    # In a leaf page a key is followed by its value; elsewhere it is a key of a branch page.
    signposts = [at for key in keys for at in places(data, key) if data[at + 10 : at + 12] != b"=="]
    data[signposts[len(signposts) // 2] + 8] ^= bit
    file.write_bytes(data)
    db = opened(path)

    def look(reader):
        missed = lost = 0
        for key in keys:
            try:
                missed += reader.get(DUE, key) is None
            except Corrupt:
                lost += 1
        return missed, lost

    missed, lost = db.read(look)
    assert missed == 0
    assert lost > 0
    db.close()


def test_a_damaged_row_fails_its_reader_not_the_group(thirty):
    flip(thirty, JOB + b"value-15", 18)
    db = opened(thirty)

    def bad():
        with pytest.raises(Corrupt):
            db.transact(lambda tx: tx.get(JOBS, of_queue(1, JOB)))

    assert in_threads([bad, lambda: db.transact(lambda tx: tx.add(b"n", 1))] * 8) == []
    assert count(db) == 8
    db.close()


def meta_pages(path: Path) -> list[tuple[int, int]]:
    """(transaction number, its offset) of both meta pages."""
    data = (path / "db" / "data.mdb").read_bytes()
    places = [page * 4096 + 16 + 24 + 2 * 48 + 8 for page in (0, 1)]
    return [(int.from_bytes(data[at : at + 8], "little"), at) for at in places]


def test_a_lost_newest_commit_is_found_at_opening(path):
    db = opened(path)
    for _ in range(3):
        db.transact(lambda tx: tx.append(JOURNAL, b"row"))
    version = db.version()
    db.close()
    (newest, at), _ = sorted(meta_pages(path), reverse=True)
    assert newest == version
    file = path / "db" / "data.mdb"
    data = bytearray(file.read_bytes())
    data[at] ^= 1 << (newest.bit_length() - 1)  # now the other page counts as the newest
    file.write_bytes(data)
    before = file.read_bytes()
    with pytest.raises(Corrupt, match="newest commits"):
        opened(path)
    assert file.read_bytes() == before
    (path / "DURABLE").unlink()
    db = opened(path)
    assert len(everything(db, JOURNAL)) == 2
    db.close()


def test_marks_are_not_lowered_by_a_slower_process(db, path):
    process = start(path, 'sys.stdin.readline(); say(db.transact(lambda tx: tx.append(JOURNAL, b""))); db.close()')
    db.transact(lambda tx: tx.append(JOURNAL, b""))
    tell(process)
    assert finish(process).strip() == "2"
    newest = db.version()
    db._marks.reach(1)
    db._marks._load(db._marks._map[:])
    assert db._marks.durable == newest


def test_a_file_that_is_no_lmdb_is_corrupt(thirty):
    file = thirty / "db" / "data.mdb"
    file.write_bytes(b"\0" * 8192 + file.read_bytes()[8192:])
    with pytest.raises(Corrupt):
        opened(thirty)


# ── opening and closing ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_foreign_folder_is_refused_and_unchanged(tmp_path):
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(FormatError):
        opened(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["letter"]


def test_a_second_opening_in_one_process_is_refused(db, path):
    with pytest.raises(StoreLocked, match="this process"):
        opened(path)
    put(db, META, (b"k", b"v"))


def test_a_closed_engine_raises_store_closed(db):
    snapshot = db.snapshot()
    db.close()
    db.close()
    for use in (
        lambda: db.transact(lambda tx: None),
        lambda: db.read(lambda r: None),
        lambda: snapshot.get(META, b"k"),
        db.snapshot,
        db.version,
        db.tend,
    ):
        with pytest.raises(StoreClosed):
            use()
    snapshot.close()


def test_closing_waits_for_running_transactions(db):
    inside = threading.Event()

    def slow(tx):
        inside.set()
        time.sleep(0.3)
        tx.put(META, b"k", b"v")
        return "done"

    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(db.transact(slow)))
    thread.start()
    inside.wait()
    db.close()
    thread.join()
    assert results == ["done"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused_and_harms_nothing(db):
    put(db, META, (b"k", b"v"))
    snapshot = db.snapshot()
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (
            lambda: db.transact(lambda tx: None),
            lambda: db.read(lambda r: None),
            lambda: snapshot.get(META, b"k"),
            db.snapshot,
            db.version,
            db.tend,
        ):
            try:
                use()
            except StoreClosed:
                refused += 1
        snapshot.close()
        db.close()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6
    put(db, META, (b"k", b"w"))
    assert f" {db.version() - 1}" in db._env.readers()  # the child has not ended the snapshot
    assert snapshot.get(META, b"k") == b"v"
    snapshot.close()


def test_the_engines_traits(db):
    assert (db.traits.scope, db.traits.durability, db.traits.snapshot) == ("host", "disk", "store")
    assert db.durable() is None
    assert db.alone
    flags = db._env.flags()
    assert flags["sync"]
    assert flags["metasync"]
    assert flags["lock"]
    assert not flags["writemap"]


def test_writers_are_not_held_up_by_threads_that_read_all_the_time(tmp_path: Path) -> None:
    """The driver's abort of a write transaction waits until no other thread is inside a call, which may be never."""
    opened = LmdbEngine(str(tmp_path / "data"), boot_id="here")
    opened.transact(lambda tx: tx.put_many(JOBS, [(b"%08d" % n, b"v" * 1000) for n in range(2000)]))
    snapshot = opened.snapshot()
    stop = threading.Event()
    failures: list[BaseException] = []

    def read(reading: Any) -> None:
        try:
            while not stop.is_set():
                reading()
        except BaseException as error:
            failures.append(error)

    def short_reads() -> None:
        opened.read(lambda reader: reader.scan(JOBS, b"0", b"9", 1000))

    def snapshot_reads() -> None:
        snapshot.scan(JOBS, b"0", b"9", 1000)

    def broken(tx: Any) -> None:
        tx.put(JOBS, b"row", b"must not stay")
        tx.put(JOBS, b"k" * 600, b"a key that LMDB does not take")

    done: list[str] = []

    def write() -> None:
        for number in range(10):
            opened.transact(lambda tx: None)
            with pytest.raises(TenureError):
                opened.transact(broken)
            opened.transact(lambda tx, n=number: tx.put(JOBS, b"row-%d" % n, b"stays"))  # type: ignore[misc]
            done.append("round")

    readers = [threading.Thread(target=read, args=(r,), daemon=True) for r in (short_reads, snapshot_reads) * 2]
    writer = threading.Thread(target=write, daemon=True)
    for thread in (*readers, writer):
        thread.start()
    writer.join(60)
    stop.set()
    for thread in readers:
        thread.join(60)
    assert len(done) == 10, "the writer was blocked"
    assert failures == []
    snapshot.close()
    assert opened.read(lambda reader: reader.get(JOBS, b"row")) is None
    assert opened.read(lambda reader: reader.get(JOBS, b"row-9")) == b"stays"
    opened.close()
