"""The writer's lock: ownership, interrupts, and assertions in debug runs."""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path

import pytest

import tenure
from tenure.errors import Unavailable
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
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    with pytest.raises(AssertionError, match="not held by this thread"):
        lock.assert_held()
    done.set()
    thread.join()
    engine.close()


@pytest.mark.parametrize("kind", ["rocksdb", "memory"])
def test_the_last_holder_does_not_take_the_lock_from_the_next(kind: str, tmp_path: Path) -> None:
    """The next thread has just taken the lock, before any record of it could be made."""
    store: RocksEngine | MemoryEngine = (
        RocksEngine(str(tmp_path / "data"), durability="os") if kind == "rocksdb" else MemoryEngine()
    )
    store.transact(lambda tx: tx.put(META, b"k", b"1"))  # this thread was the last inside
    taken, leave, order = threading.Event(), threading.Event(), []

    def next_holder() -> None:
        with store._writer.lock:
            taken.set()
            leave.wait(0.3)
            order.append("next")

    thread = threading.Thread(target=next_holder)
    thread.start()
    taken.wait(30)
    store.transact(lambda tx: order.append("last"))
    thread.join()
    assert order == ["next", "last"]
    store.close()


@pytest.mark.parametrize("url", ["rocksdb:{}/data", "lmdb:{}/data", "memory:"])
def test_a_signal_handler_cannot_run_a_verb_inside_another(url: str, tmp_path: Path) -> None:
    store = tenure.open(url.format(tmp_path), sweep=False)
    queue, refused, ran = store.queue("q"), [], []

    def handle(*_: object) -> None:
        try:
            ran.append(queue.enqueue(b"from the handler").id)
        except Unavailable as exc:
            refused.append(str(exc))

    before = signal.signal(signal.SIGALRM, handle)
    try:
        deadline = time.monotonic() + 60
        done = 0
        while (not refused or done < 300) and time.monotonic() < deadline:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00001, 0.0005))
            queue.enqueue(b"x")
            done += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert refused
    assert "set a flag" in refused[0]
    assert queue.counts().waiting == done + len(ran)
    assert store.check().clean
    store.close()


def test_an_ordinary_run_checks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEBUG_WRITER_LOCK", raising=False)
    plain = RocksEngine(str(tmp_path / "data"), durability="os")
    kept: list[Reader] = []
    plain.read(kept.append)
    assert kept[0].get(META, b"k") is None
    plain.close()
