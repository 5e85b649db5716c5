"""Rows of FoundationDB that lost a part or an early value, and what the binding's errors mean."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tenure.errors import Corrupt, TooLarge, Unavailable
from tenure.storage.engines.foundationdb import FoundationEngine
from tenure.storage.engines.foundationdb.binding import translated
from tenure.storage.keyspace import JOURNAL, LAST, META, PAYLOAD, commit
from tenure.testing import fdb
from tenure.testing.fdb.cluster import Cluster
from tenure.testing.fdb.faults import Faults

BIG = bytes(range(256)) * 1000


@pytest.fixture
def database() -> Any:
    return fdb.Database(Cluster(0, time_us=lambda: 0, faults=Faults(0, None)))


@pytest.fixture
def engine(database: Any) -> Iterator[FoundationEngine]:
    made = FoundationEngine(fdb, database)
    yield made
    made.close()


def test_a_value_that_lost_a_part_is_reported(engine: FoundationEngine, database: Any) -> None:
    engine.transact(lambda tx: tx.put(PAYLOAD, b"key", BIG))
    assert engine.read(lambda reader: reader.get(PAYLOAD, b"key")) == BIG
    rows = database.create_transaction().get_range(b"", b"\xff").to_list()
    parts = [row.key for row in rows if len(row.value) > 10_000]
    assert len(parts) >= 3
    first = [at for at in parts if at.endswith(b"key")]
    (lost, *_) = [at for at in parts if at not in first]
    change = database.create_transaction()
    change.clear(lost)
    change.commit().wait()
    for read in (
        lambda reader: reader.get(PAYLOAD, b"key"),
        lambda reader: reader.get_many(PAYLOAD, [b"key"]),
        lambda reader: reader.scan(PAYLOAD, b"", LAST, 10),
    ):
        with pytest.raises(Corrupt, match="has only"):
            engine.read(read)


def test_many_rows_of_the_journal_are_those_at_their_numbers(engine: FoundationEngine) -> None:
    for _ in range(3):
        engine.transact(lambda tx: tx.put(META, b"key", b"value"))
    keys = engine.read(lambda reader: reader.keys(JOURNAL, b"", LAST, 10))
    asked = [*keys, commit(1 << 40)]
    together = engine.read(lambda reader: reader.get_many(JOURNAL, asked))
    assert together == engine.read(lambda reader: [reader.get(JOURNAL, key) for key in asked])


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (2101, TooLarge, "transaction"),
        (2102, TooLarge, "key"),
        (2103, TooLarge, "value"),
        (1020, Unavailable, "in the way"),
        (1007, Unavailable, "five seconds"),
        (1031, Unavailable, "FoundationDB"),
    ],
)
def test_errors_of_the_binding(code: int, kind: type[Exception], says: str) -> None:
    error = translated(SimpleNamespace(code=code, description=b""))  # only `code` is read
    assert type(error) is kind
    assert says in str(error)
