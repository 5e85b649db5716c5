"""Scan heads: a scan that starts at the cached head finds the same rows as a scan from the prefix."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tenure
from tenure import GroupPolicy, NewJob, Policy
from tenure.storage import keyspace
from tenure.storage.engine import Row, Snapshot
from tenure.storage.engines.rocksdb import RocksEngine, iterators
from tenure.storage.engines.rocksdb import engine as rocks_engine
from tenure.storage.engines.rocksdb import memory as rocks_memory
from tenure.storage.scan_heads import KEPT_AHEAD, ScanHeads
from tenure.testing.harness import driver_of

#: Few queues, priorities, times and jobs, so that keys are written and deleted repeatedly.
ready_keys = st.builds(
    keyspace.ready, st.integers(1, 2), st.integers(8, 9), st.integers(0, 6), st.sampled_from([bytes(16), b"\1" * 16])
)
due_keys = st.builds(
    keyspace.due,
    st.sampled_from([keyspace.Due.LEASE, keyspace.Due.TTL]),
    st.integers(0, 6),
    st.just(1),
    st.sampled_from([bytes(16), b"\1" * 16]),
)
ready_ranges = st.tuples(st.integers(1, 2), st.integers(8, 9), st.integers(0, 6)).map(
    lambda at: (keyspace.ready_prefix(*at[:2]), keyspace.ready_until(*at))
)
whole_tiers = st.tuples(st.integers(1, 2), st.integers(8, 9)).map(
    lambda at: (keyspace.ready_prefix(*at), keyspace.ready_tier_end(*at))
)
due_ranges = st.tuples(st.sampled_from([keyspace.Due.LEASE, keyspace.Due.TTL]), st.integers(0, 6)).map(
    lambda at: (keyspace.due_prefix(at[0]), keyspace.due_until(*at))
)
any_ranges = st.tuples(ready_keys, ready_keys).map(lambda pair: (min(pair), max(pair)))


def steps(keys: Any, ranges: Any) -> Any:
    write = st.tuples(st.just("write"), st.lists(keys, max_size=4), st.lists(keys, max_size=4))
    clear = st.tuples(st.just("clear"), keys, keys)
    look = st.tuples(st.just("look"), ranges, st.integers(0, 4), st.booleans(), st.booleans())
    return st.lists(st.one_of(write, look, look, look, clear), max_size=25)


@pytest.fixture(scope="module", params=["high_throughput", "low_space"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("heads") / "data"
    engine = RocksEngine(str(path), durability="os", mode=request.param)
    yield engine
    engine.close()


def follow(engine: Any, space: int, story: list[Any]) -> None:
    """Apply the same operations to the engine and to a sorted list; all reads must agree."""
    engine.transact(lambda tx: tx.delete_range(space, b"", keyspace.LAST))
    rows: dict[bytes, bytes] = {}
    moments: list[tuple[Snapshot, dict[bytes, bytes], Any]] = []
    for number, (what, *how) in enumerate(story):
        if what == "write":
            put, deleted = how
            value = b"%d" % number
            engine.transact(lambda tx, p=put, d=deleted, v=value: _write(tx, space, p, d, v))
            for key in deleted:
                rows.pop(key, None)
            rows.update(dict.fromkeys(put, value))
        elif what == "clear":
            begin, end = sorted(how)
            engine.transact(lambda tx, b=begin, e=end: tx.delete_range(space, b, e))
            rows = {key: value for key, value in rows.items() if not begin <= key < end}
        else:
            (begin, end), limit, reverse, writing = how
            look = engine.transact if writing else engine.read
            expected = brute(rows, begin, end, limit, reverse)
            assert look(lambda tx, b=begin, e=end, n=limit, r=reverse: tx.scan(space, b, e, n, reverse=r)) == expected
            assert look(lambda tx, b=begin, e=end, n=limit, r=reverse: tx.keys(space, b, e, n, reverse=r)) == [
                key for key, _ in expected
            ]
            moments.append((engine.snapshot((space,)), rows.copy(), how[:3]))
    for snapshot, then, ((begin, end), limit, reverse) in moments:  # after the writes that followed
        with snapshot:
            expected = brute(then, begin, end, limit, reverse)
            assert snapshot.scan(space, begin, end, limit, reverse=reverse) == expected
            assert snapshot.keys(space, begin, end, limit, reverse=reverse) == [key for key, _ in expected]
            assert snapshot.scan(space, begin, keyspace.LAST, 1000) == brute(then, begin, keyspace.LAST, 1000, False)
    with engine.snapshot((space,)) as snapshot:
        assert snapshot.scan(space, b"", keyspace.LAST, 1000) == sorted(rows.items())
    assert engine.read(lambda reader: reader.scan(space, b"", keyspace.LAST, 1000)) == sorted(rows.items())


def _write(tx: Any, space: int, put: list[bytes], deleted: list[bytes], value: bytes) -> None:
    tx.delete_many(space, deleted)
    for key in put[:1]:
        tx.put(space, key, value)
    tx.put_many(space, [(key, value) for key in put[1:]])


def brute(rows: dict[bytes, bytes], begin: bytes, end: bytes, limit: int, reverse: bool) -> list[Row]:
    found = sorted((key, value) for key, value in rows.items() if begin <= key < end)
    return (found[::-1] if reverse else found)[:limit]


patient = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@patient
@given(steps(ready_keys, ready_ranges | whole_tiers | any_ranges))
def test_the_front_of_ready(engine: Any, story: list[Any]) -> None:
    follow(engine, keyspace.READY, story)


@patient
@given(steps(due_keys, due_ranges))
def test_the_front_of_due(engine: Any, story: list[Any]) -> None:
    follow(engine, keyspace.DUE, story)


def works(keys: Any, ranges: Any) -> Any:
    written = st.tuples(st.just("write"), st.lists(keys, max_size=4), st.lists(keys, max_size=2))
    cleared = st.tuples(st.just("clear"), keys, keys)
    added = st.tuples(st.just("add"), keys)
    taken = st.tuples(st.just("take"), ranges, st.sampled_from([1, 1, 2, 5]), st.booleans())
    return st.lists(st.one_of(written, added, added, taken, taken, taken, cleared), max_size=40)


#: Few groups and many times: more keys than are kept of a group.
group_keys = st.builds(
    keyspace.group_ready, st.just(1), st.sampled_from([bytes(16), b"\xff" * 16]), st.just(4), st.integers(0, 9),
    st.just(bytes(16)),
)  # fmt: skip
group_tiers = st.sampled_from([bytes(16), b"\xff" * 16]).map(
    lambda group: (keyspace.group_tier(1, group, 4), keyspace.group_tier(1, group, 5))
)


def _take(tx: Any, space: int, prefix: bytes, end: bytes, limit: int, consume: bool) -> list[bytes]:
    found: list[bytes] = tx.keys(space, prefix, end, limit)
    if consume:
        tx.delete_many(space, found)
    return found


@patient
@given(works(ready_keys, ready_ranges | whole_tiers))
def test_keys_read_ahead_are_correct(engine: Any, story: list[Any]) -> None:
    """The first key of a front is correct after any writes and deletes."""
    take_and_write(engine, keyspace.READY, story)


@patient
@given(works(group_keys, group_tiers))
def test_the_few_keys_read_ahead_of_a_group_are_correct(engine: Any, story: list[Any]) -> None:
    take_and_write(engine, keyspace.GROUP_READY, story)
    heads = engine._memory.heads[keyspace.GROUP_READY]
    assert all(len(front.ahead) <= 4 for front in heads.fronts.values())


def take_and_write(engine: Any, space: int, story: list[Any]) -> None:
    engine.transact(lambda tx: tx.delete_range(space, b"", keyspace.LAST))
    rows: set[bytes] = set()
    for what, *how in story:
        if what == "write":
            put, deleted = how
            engine.transact(lambda tx, p=put, d=deleted: _write(tx, space, p, d, b""))
            rows = rows.difference(deleted).union(put)
        elif what == "clear":
            begin, end = sorted(how)
            engine.transact(lambda tx, b=begin, e=end: tx.delete_range(space, b, e))
            rows = {key for key in rows if not begin <= key < end}
        elif what == "add":
            (key,) = how
            engine.transact(lambda tx, k=key: tx.put(space, k, b""))
            rows.add(key)
        else:
            (prefix, end), then, consume = how
            expected = sorted(key for key in rows if prefix <= key < end)[:then]
            found = engine.transact(lambda tx, p=prefix, e=end, n=then, c=consume: _take(tx, space, p, e, n, c))
            assert found == expected
            if consume:
                rows.difference_update(found)
    assert engine.read(lambda reader: reader.keys(space, b"", keyspace.LAST, 1000)) == sorted(rows)


def test_a_long_front_is_read_ahead_in_growing_steps(engine: Any) -> None:
    """Keys that are written after it meanwhile come last, however many there are."""
    keys = [keyspace.ready(7, 0, at, bytes(16)) for at in range(1500)]
    prefix, end = keyspace.ready_prefix(7, 0), keyspace.ready_tier_end(7, 0)
    engine.transact(lambda tx: tx.put_many(keyspace.READY, [(key, b"") for key in keys[:500]]))
    later, found = iter(keys[500:]), []
    while taken := engine.transact(lambda tx: _take(tx, keyspace.READY, prefix, end, 1, True)):
        found += taken
        for new in islice(later, 0 if len(found) < 400 else 3):
            engine.transact(lambda tx, key=new: tx.put(keyspace.READY, key, b""))
    assert found == keys


@settings(max_examples=200)
@given(st.lists(st.tuples(st.booleans(), ready_keys), max_size=40))
def test_a_head_is_never_after_its_first_row(story: list[tuple[bool, bytes]]) -> None:
    """ScanHeads alone: puts lower the head, and scans move it to the first row."""
    heads = ScanHeads(keyspace.READY)
    rows: list[bytes] = []
    for scanned, key in story:
        prefix = key[:5]
        if scanned:
            front = heads.front(prefix)
            assert front is not None
            here = [row for row in rows if row.startswith(prefix)]
            assert all(front.head <= row for row in here)
            front.head = here[0] if here else front.end
            rows = [row for row in rows if row not in here[:1]]  # consumed from the front
        else:
            if key not in rows:
                rows.insert(bisect_left(rows, key), key)
            heads.learn(key, b"")
        for front in heads.fronts.values():
            assert front.prefix <= front.head <= front.end
            assert all(front.head <= row for row in rows if row.startswith(front.prefix))


def test_only_a_whole_prefix_is_remembered() -> None:
    heads = ScanHeads(keyspace.READY)
    assert heads.front(b"\0\0\0\1") is None
    assert heads.front(b"\0\0\0\1\0") is heads.front(b"\0\0\0\1\0")
    journal = ScanHeads(keyspace.JOURNAL).front(b"")
    assert journal is not None
    assert journal.end == keyspace.LAST


def test_the_journal_is_found_after_it_was_empty(tmp_path: Path) -> None:
    """Journal rows are written without a call of `learn`, also after a scan of the empty journal."""
    engine = RocksEngine(str(tmp_path / "data"), durability="os")

    def look(reader: Any) -> Any:
        space, end = keyspace.JOURNAL, keyspace.LAST
        return reader.keys(space, b"", end, 1), reader.keys(space, b"", end, 9), reader.scan(space, b"", end, 9)

    assert engine.read(look) == ([], [], [])
    for number in (1, 2):
        engine.transact(lambda tx: tx.append(keyspace.JOURNAL, b"event"))
        keys = [keyspace.commit(at) for at in range(1, number + 1)]
        assert engine.read(look) == (keys[:1], keys, [(key, b"event") for key in keys])
    engine.close()


def test_no_more_keys_are_kept_ahead_than_may_be(tmp_path: Path) -> None:
    """A job that is due later is read ahead; a backlog that is enqueued before it is not kept in memory."""
    with tenure.open(f"rocksdb:{tmp_path}/data", sweep=False, listen=False, durability="os") as store:
        queue = store.queue("q")
        later = queue.enqueue(b"later", delay=60)
        assert not queue.claim()
        ids = [queue.enqueue(b"x").id for _ in range(KEPT_AHEAD + 100)]
        fronts = [front for heads in driver_of(store)._memory.heads if heads for front in heads.fronts.values()]
        assert max(len(front.ahead) for front in fronts) <= KEPT_AHEAD
        assert [delivery.id for _ in ids for delivery in queue.claim()] == ids
        assert not queue.claim()
        assert queue.list("scheduled").jobs[0].id == later.id


def test_no_more_counters_are_kept_than_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocks_memory, "COUNTS_KEPT", 10)
    monkeypatch.setattr(rocks_engine, "_TIDY_EVERY", 1)
    with tenure.open(f"rocksdb:{tmp_path}/data", sweep=False, listen=False, durability="os") as store:
        for _ in range(2):
            for number in range(20):
                store.queue(f"q{number}").enqueue(b"x")
        assert len(driver_of(store)._memory.counts) <= 20
        assert [store.queue(f"q{number}").counts().ready for number in range(20)] == [2] * 20
        assert store.check().clean


def test_most_claims_of_a_group_open_no_iterator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = 0

    def until(end: bytes) -> Any:
        nonlocal opened
        opened += 1
        return iterators.until(end)

    with tenure.open(f"rocksdb:{tmp_path}/data", sweep=False, listen=False) as store:
        queue = store.queue("q")
        queue.configure(Policy(group=GroupPolicy(max_leased=1)))
        queue.enqueue_many([NewJob(b"x", group=f"g{n % 10}") for n in range(40)])
        for _ in range(10):
            queue.ack(queue.claim()[0])
        monkeypatch.setattr("tenure.storage.engines.rocksdb.reader.until", until)
        for _ in range(30):
            queue.ack(queue.claim()[0])
        assert opened <= 10


def test_no_more_fronts_are_remembered_than_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group of a queue is a front. Fronts that are not cached are read from their prefix."""
    monkeypatch.setattr("tenure.storage.scan_heads.FRONTS_KEPT", 10)
    with tenure.open(f"rocksdb:{tmp_path}/data", sweep=False, listen=False) as store:
        queue = store.queue("q")
        queue.enqueue_many([NewJob(b"x", group=f"g{n % 25}") for n in range(100)])
        taken = [delivery.id for _ in range(100) for delivery in queue.claim()]
        assert len(set(taken)) == 100
        assert not queue.claim()
        kept = driver_of(store)._memory.heads
        assert all(heads is None or len(heads.fronts) <= 10 for heads in kept)
