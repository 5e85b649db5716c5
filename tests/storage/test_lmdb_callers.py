"""LMDB: callers that break a shared transaction, call from inside one, read while the map must grow, or gave up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import Corrupt, InvalidArgument, OpenError, StoreClosed, Unavailable
from tenure.storage.engines.lmdb import LmdbEngine
from tenure.storage.engines.lmdb.flat_combining import Request
from tenure.storage.folder import Folder
from tenure.storage.keyspace import JOBS, JOURNAL, LAST, commit

BOOT = "this boot"
WAIT = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def db(path: Path) -> Iterator[LmdbEngine]:
    found = LmdbEngine(str(path), boot_id=BOOT, map_size=1)
    yield found
    found.close()


def everything(db: LmdbEngine, space: int) -> list[tuple[bytes, bytes]]:
    return db.read(lambda reader: reader.scan(space, b"", LAST, 100))


def ended(work: Callable[[], object]) -> tuple[threading.Thread, list[BaseException | None]]:
    """Start it in a thread. The list gets its error, or None."""
    how: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            how.append(error)
        else:
            how.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, how


# ── one transaction for several callers ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises something else"])
def test_a_function_that_hides_errors_of_its_reads_writes_nothing(db: LmdbEngine, raises: bool) -> None:
    """LMDB may have aborted the transaction at the first error, whatever the function makes of it."""

    def work(tx: Any) -> None:
        tx.put(JOBS, b"key", b"value")
        for key in (b"", b"k" * 600):
            with contextlib.suppress(InvalidArgument):
                tx.get(JOBS, key)
        if raises:
            raise LookupError

    with pytest.raises(LookupError if raises else InvalidArgument):
        db.transact(work)
    assert everything(db, JOBS) == []
    db.transact(lambda tx: tx.put(JOBS, b"key", b"value"))
    assert everything(db, JOBS) == [(b"key", b"value")]


def test_a_row_beyond_the_journals_end_stops_the_next_row_before_it(db: LmdbEngine) -> None:
    db.transact(lambda tx: tx.append(JOURNAL, b"first"))

    def work(tx: Any) -> None:
        tx.put(JOURNAL, commit(9), b"of nobody")
        tx.append(JOURNAL, b"second")

    with pytest.raises(Corrupt, match="a row after its last number, 1"):
        db.transact(work)
    assert everything(db, JOURNAL) == [(commit(1), b"first")]


def test_a_function_that_calls_a_verb_of_its_own_store_is_told_so(db: LmdbEngine) -> None:
    def work(tx: Any) -> None:
        tx.put(JOBS, b"outer", b"")
        with pytest.raises(Unavailable, match="inside another"):
            db.transact(lambda inner: inner.put(JOBS, b"inner", b""))

    db.transact(work)
    assert everything(db, JOBS) == [(b"outer", b"")]


@pytest.mark.parametrize("waiting", [False, True], ids=["alone", "another waits"])
def test_a_leader_that_an_interrupt_took_away_leads_no_longer(db: LmdbEngine, waiting: bool) -> None:
    """Its thread was interrupted after it had lined up, and before it could give its place back."""
    combiner = db._combiner
    left = Request(lambda tx: tx.put(JOBS, b"lost", b""))
    combiner._line_up(left)
    left.inside = False  # as `submit` leaves it
    other, how = ended(lambda: db.transact(lambda tx: tx.put(JOBS, b"other", b""))) if waiting else (None, [None])
    while waiting and len(combiner._queue) < 2:
        time.sleep(0.001)
    db.transact(lambda tx: tx.put(JOBS, b"next", b""))
    if other is not None:
        other.join(WAIT)
    assert how == [None]
    assert [key for key, _ in everything(db, JOBS)] == ([b"next", b"other"] if waiting else [b"next"])


# ── the map ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def reading(db: LmdbEngine) -> Iterator[threading.Event]:
    """Another thread is inside a read until the block ends, or the event is set."""
    inside, leave = threading.Event(), threading.Event()

    def read(reader: Any) -> None:
        inside.set()
        leave.wait(WAIT)

    thread, how = ended(lambda: db.read(read))
    assert inside.wait(WAIT)
    try:
        yield leave
    finally:
        leave.set()
        thread.join(WAIT)
    assert how == [None]


def test_housekeeping_leaves_the_map_to_a_later_call_while_another_thread_reads(db: LmdbEngine) -> None:
    before = db._env.info()["map_size"]
    db.transact(lambda tx: tx.put(JOBS, b"large", bytes(6 * before // 10)))
    with reading(db):
        db.tend()
        assert db._env.info()["map_size"] == before
    db.tend()
    assert db._env.info()["map_size"] == 2 * before
    assert [len(value) for _, value in everything(db, JOBS)] == [6 * before // 10]


def test_closing_waits_for_a_read(db: LmdbEngine) -> None:
    with reading(db) as leave:
        closing, how = ended(db.close)
        closing.join(0.2)
        assert closing.is_alive()
        leave.set()
        closing.join(WAIT)
    assert how == [None]
    with pytest.raises(StoreClosed):
        everything(db, JOBS)


# ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_store_of_a_maker_that_gave_up_is_made_by_who_waits(path: Path) -> None:
    """Two processes open a new folder; the one that locked it first ends before there is a store."""
    maker = Folder(str(path), "lmdb")
    assert maker.lock()
    second = threading.Event()
    opened: list[LmdbEngine] = []

    def wait() -> None:
        second.set()
        opened.append(LmdbEngine(str(path), boot_id=BOOT))

    waiting, how = ended(wait)
    assert second.wait(WAIT)
    waiting.join(0.3)
    assert not opened, "it waits for the maker"
    maker.unlock()
    waiting.join(WAIT)
    assert how == [None]
    opened[0].transact(lambda tx: tx.put(JOBS, b"key", b"value"))
    assert opened[0].alone
    opened[0].close()
    assert Folder(str(path), "lmdb").check()


def test_a_folder_with_strange_files_is_refused_once_its_maker_has_ended(path: Path) -> None:
    path.mkdir(mode=0o700)
    (path / "FORMAT.txt").write_text("notes")
    (path / "OWNER").touch(mode=0o600)
    fd = os.open(path / "OWNER", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    waiting, how = ended(lambda: LmdbEngine(str(path), boot_id=BOOT))
    waiting.join(0.2)
    assert waiting.is_alive()
    os.close(fd)
    waiting.join(WAIT)
    assert [type(error).__mro__[1] for error in how] == [OpenError]
    assert sorted(os.listdir(path)) == ["FORMAT.txt", "OWNER"]
