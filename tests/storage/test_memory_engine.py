"""The memory engine: a commit that is interrupted while it is applied is applied whole by the next caller, once."""

from __future__ import annotations

import os

import pytest

from tenure.errors import InvalidArgument, StoreClosed
from tenure.storage.engine import Transaction
from tenure.storage.engines.memory import MemoryEngine, ReadOwnWrite
from tenure.storage.keyspace import COUNTERS, META, Counter, counter
from tenure.storage.records import decode_count

AT = counter(1, Counter.WAITING)


def test_an_interrupted_commit_is_applied_by_the_next_caller_and_counted_once() -> None:
    engine = MemoryEngine()
    engine.transact(lambda tx: tx.put(META, b"old", b"1"))
    forgotten: list[int] = []
    engine.forgetters.append(lambda: forgotten.append(engine.version()))
    left = [KeyboardInterrupt()]

    def interrupt() -> None:
        if left:
            raise left.pop()

    def write(tx: Transaction) -> None:
        tx.put(META, b"new", b"2")
        tx.delete(META, b"old")
        tx.delete_range(META, b"x", b"y")
        tx.add(AT, 5)
        tx.on_written = [interrupt]

    with pytest.raises(KeyboardInterrupt):
        engine.transact(write)
    assert forgotten == []
    found = engine.read(lambda reader: (reader.get(META, b"new"), reader.get(META, b"old"), reader.get(COUNTERS, AT)))
    assert found[:2] == (b"2", None)
    assert decode_count(found[2]) == 5
    assert len(forgotten) == 1
    assert engine.read(lambda reader: reader.keys(META, b"", b"z", 10)) == [b"new"]
    assert len(forgotten) == 1


def test_a_transaction_may_not_read_what_it_wrote() -> None:
    engine = MemoryEngine()

    def put(tx: Transaction) -> None:
        tx.put(META, b"k", b"v")
        tx.get(META, b"k")

    def cleared(tx: Transaction) -> None:
        tx.delete_range(META, b"a", b"c")
        tx.reader.keys(META, b"b", b"z", 1)

    def counted(tx: Transaction) -> None:
        tx.add(AT, 1)
        tx.get(COUNTERS, AT)

    def elsewhere(tx: Transaction) -> None:
        tx.put(META, b"k", b"v")
        assert tx.get(META, b"l") is None
        assert tx.reader.keys(META, b"l", b"z", 1) == []

    for wrong in (put, cleared, counted):
        with pytest.raises(ReadOwnWrite):
            engine.transact(wrong)
    engine.transact(elsewhere)


def test_a_closed_engine_and_a_forked_child_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = MemoryEngine()
    with pytest.raises(InvalidArgument):
        engine.export("anywhere")
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        with pytest.raises(StoreClosed, match="fork"):
            engine.read(lambda reader: None)
    engine.close()
    with pytest.raises(StoreClosed, match="closed"):
        engine.transact(lambda tx: None)
