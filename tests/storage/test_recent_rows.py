"""The cache of recent rows: a lookup gives the same answer as the database after any writes."""

from __future__ import annotations

from collections.abc import Iterator
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tenure
from tenure.errors import TenureError
from tenure.storage import keyspace
from tenure.storage.engines.rocksdb import RocksEngine, memory
from tenure.storage.engines.rocksdb import engine as rocks
from tenure.testing.harness import engine_of

SPACES = [keyspace.JOBS, keyspace.STATE, keyspace.NOTES]
#: Few keys, so that writes hit the same rows.
keys = st.integers(0, 9).map(lambda n: keyspace.of_queue(1, bytes(15) + bytes((n,))))
wants = st.lists(keys, max_size=4)
steps = st.one_of(
    st.tuples(st.just("write"), wants, wants),
    st.tuples(st.just("write"), wants, wants),
    st.tuples(st.just("fail"), wants, wants),
    st.tuples(st.just("get"), wants, st.booleans()),
    st.tuples(st.just("get"), wants, st.booleans()),
)


@pytest.fixture(scope="module", params=["rocksdb", "lmdb", "memory"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = "" if request.param == "memory" else tmp_path_factory.mktemp("recent") / "data"
    with tenure.open(f"{request.param}:{path}", sweep=False) as store:
        yield engine_of(store)


class Thrown(TenureError):
    pass


def write(tx: Any, space: int, deleted: list[bytes], put: list[bytes], value: bytes, *, fail: bool) -> None:
    tx.delete_many(space, deleted[1:])
    for key in deleted[:1]:
        tx.delete(space, key)
    for key in put[:1]:
        tx.put(space, key, value)
    tx.put_many(space, [(key, value) for key in put[1:]])
    if fail:
        raise Thrown


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(space=st.sampled_from(SPACES), story=st.lists(steps, max_size=25))
def test_a_lookup_finds_the_last_write(engine: Any, space: int, story: list[Any]) -> None:
    rows: dict[bytes, bytes] = {}
    everything = [keyspace.of_queue(1, bytes(15) + bytes((n,))) for n in range(10)]
    engine.transact(lambda tx: tx.delete_many(space, everything))
    for number, (what, some, other) in enumerate(story):
        value = b"value %d" % number * (1 if number % 3 else 200)
        if what == "get":
            look = engine.transact if other else engine.read
            expected = [rows.get(key) for key in some]
            assert look(lambda tx, s=some: tx.get_many(space, s)) == expected
            assert look(lambda tx, s=some: [tx.get(space, key) for key in s]) == expected
        elif what == "fail":
            with pytest.raises(Thrown):
                engine.transact(lambda tx, s=some, o=other, v=value: write(tx, space, s, o, v, fail=True))
        else:
            engine.transact(lambda tx, s=some, o=other, v=value: write(tx, space, s, o, v, fail=False))
            for key in some:
                rows.pop(key, None)
            rows.update(dict.fromkeys(other, value))
    for looked in (
        engine.read(lambda reader: reader.get_many(space, everything)),
        engine.read(lambda reader: [reader.get(space, key) for key in everything]),
    ):
        assert looked == [rows.get(key) for key in everything]
    with engine.snapshot((space,)) as snapshot:
        assert snapshot.get_many(space, everything) == [rows.get(key) for key in everything]
        assert snapshot.scan(space, *keyspace.queue_range(1), 100) == sorted(rows.items())


def test_recent_rows_are_bounded_by_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The older rows are dropped first, and then read from the database."""
    monkeypatch.setattr(memory, "RECENT_BYTES", 80_000)
    monkeypatch.setattr(rocks, "_TIDY_EVERY", 10_000)
    engine = RocksEngine(str(tmp_path / "data"), durability="os")
    recent = engine._memory.recent[keyspace.STATE]
    assert recent is not None
    keys = [keyspace.of_queue(1, number.to_bytes(16, "big")) for number in range(1000)]
    for key in keys:
        engine.transact(methodcaller("put", keyspace.STATE, key, key * 10))
        assert sum(map(len, recent.values())) < 2 * 80_000 + 10_000
    assert keys[0] not in recent
    assert keys[-1] in recent
    assert engine.read(lambda reader: reader.get_many(keyspace.STATE, keys)) == [key * 10 for key in keys]
    engine.transact(lambda tx: tx.put(keyspace.STATE, keys[0], bytes(100_000)))  # too large for the cache
    assert not recent
    assert engine.read(lambda reader: reader.get(keyspace.STATE, keys[0])) == bytes(100_000)
    engine.close()
