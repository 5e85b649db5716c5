"""In a debug run, code that requires the writer's lock fails where it runs without it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tenure.storage.engine import Changes, Reader, Transaction
from tenure.storage.engines.memory import MemoryEngine
from tenure.storage.engines.rocksdb import RocksEngine
from tenure.storage.keyspace import LAST, META
from tenure.storage.writer_lock import WriterLock


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RocksEngine:
    monkeypatch.setenv("DEBUG_WRITER_LOCK", "1")
    return RocksEngine(str(tmp_path / "data"), durability="os")


def test_a_reader_that_is_used_after_its_transaction_is_refused(engine: RocksEngine) -> None:
    kept: list[Reader] = []
    engine.read(kept.append)
    for read in (
        lambda reader: reader.get(META, b"k"),
        lambda reader: reader.get_many(META, [b"k"]),
        lambda reader: reader.keys(META, b"", LAST, 1),
        lambda reader: reader.scan(META, b"", LAST, 1),
    ):
        engine.read(read)
        with pytest.raises(AssertionError, match="not held"):
            read(kept[0])
    engine.close()


def test_changes_are_applied_under_the_lock_only(engine: RocksEngine) -> None:
    with pytest.raises(AssertionError, match="not held"):
        engine.apply(Changes())
    engine.transact(lambda tx: tx.put(META, b"k", b"v"))
    assert engine.read(lambda reader: reader.get(META, b"k")) == b"v"
    engine.close()
    memory = MemoryEngine()
    with pytest.raises(AssertionError, match="not held"):
        memory._apply(memory.read(lambda reader: Transaction(reader, 1)))
    memory.transact(lambda tx: tx.put(META, b"k", b"v"))


def test_the_lock_of_another_thread_does_not_count(engine: RocksEngine) -> None:
    lock = WriterLock()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock.lock:
            lock.holder = threading.get_ident()
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    with pytest.raises(AssertionError, match="another thread"):
        lock.assert_held()
    done.set()
    thread.join()
    engine.close()


def test_an_ordinary_run_checks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEBUG_WRITER_LOCK", raising=False)
    plain = RocksEngine(str(tmp_path / "data"), durability="os")
    kept: list[Reader] = []
    plain.read(kept.append)
    assert kept[0].get(META, b"k") is None
    plain.close()
