"""Staged files are published once, whoever commits, however often, and wherever it was cut short."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tenure
from tenure import NewJob, Policy
from tenure.api.staged_write import Staged
from tenure.api.store import Store
from tenure.bulk import input_rows, staging
from tenure.bulk.publisher import Terms, commit
from tenure.bulk.staging import Manifest, Part, PartWriter, RejectsWriter
from tenure.errors import InvalidArgument, KeyConflict, QueueFull, Unavailable
from tenure.model.names import QueueName
from tenure.storage.staged_parts import KEPT, expire, folder_of
from tenure.testing.harness import engine_of

WORK = QueueName("default", "work")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with tenure.open(f"lmdb:{tmp_path / 'data'}", sweep=False) as made:
        yield made
        assert made.check().clean


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "data" / "staging")


def stage(root: str, write: str, name: str, payloads: list[bytes], **columns: pa.Array) -> Part:
    folder = folder_of(root, write)
    writer = PartWriter(folder, name)
    batch = pa.RecordBatch.from_pydict({"payload": pa.array(payloads, pa.binary()), **columns})
    found = input_rows.check(batch, WORK)
    for queue, rows in found.good:
        writer.add(queue, rows)
    part = writer.close()
    if found.bad is not None:
        rejects = RejectsWriter(folder, name)
        rejects.add(found.bad, found.reasons)
        rejects.close()
    return Part(part.name, part.chunks, part.rows, len(found.reasons))


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%06d" % n for n in range(first, first + count)]


def payloads(store: Store) -> list[bytes]:
    found: list[bytes] = []
    cursor = None
    while True:
        page = store.queue("work").list("ready", limit=1000, cursor=cursor)
        found += [job.payload for job in page]
        cursor = page.cursor
        if cursor is None:
            return found


def test_all_of_it_in_order(store: Store, root: str) -> None:
    parts = [stage(root, "w", "p0-a", numbered(0, 2500)), stage(root, "w", "p1-a", numbered(2500, 999))]
    assert [part.chunks for part in parts] == [3, 1]
    done = commit(store, "w", Manifest(root, parts), Terms())
    assert done == (3499, 0, 0, False)
    assert payloads(store) == numbered(0, 3499)
    assert not folder_of(root, "w").exists()


def test_a_commit_that_is_cut_short_is_finished_by_the_next(store: Store, root: str, monkeypatch) -> None:
    first = [stage(root, "w", "p0-a", numbered(0, 2500)), stage(root, "w", "p1-a", numbered(2500, 2000))]
    real, calls = Staged.publish_checked, 0

    def failing(self, chunk, queue, jobs, refused=()):
        nonlocal calls
        calls += 1
        if calls == 4:
            real(self, chunk, queue, jobs, refused)  # it was written: only the answer is lost
            raise Unavailable("cut")
        return real(self, chunk, queue, jobs, refused)

    monkeypatch.setattr(Staged, "publish_checked", failing)
    with pytest.raises(Unavailable):
        commit(store, "w", Manifest(root, first), Terms())
    # The whole job is run again: other attempts, in another order, with other row counts.
    again = [stage(root, "w", "p0-b", numbered(9000, 100)), stage(root, "w", "p1-b", numbered(2500, 2000))]
    done = commit(store, "w", Manifest(root, again), Terms())
    assert (done.jobs, done.repeated) == (4500, False)
    assert payloads(store) == numbered(0, 4500)
    stage(root, "w", "p0-c", numbered(0, 10))
    assert commit(store, "w", Manifest(root, again), Terms()).repeated
    assert store.queue("work").counts().enqueued == 4500
    assert not folder_of(root, "w").exists()


def test_chunks_share_the_sync_of_the_writes_end(tmp_path: Path) -> None:
    root = str(tmp_path / "data" / "staging")
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", sweep=False, durability="disk") as store:
        store.queue("work").pause()
        part = stage(root, "w", "p0-a", numbered(0, 10_000))
        assert part.chunks == 10
        group_commit = engine_of(store).group_commit
        assert group_commit is not None
        before = group_commit.syncs
        assert commit(store, "w", Manifest(root, [part]), Terms()).jobs == 10_000
        assert group_commit.syncs - before == 2, "one as it begins, one as it ends"
        assert engine_of(store).durable() == store.backend.journal_slice(None, None, 0).newest


def test_rows_of_several_queues_fill_their_own_chunks(store: Store, root: str) -> None:
    folder = folder_of(root, "w")
    writer = PartWriter(folder, "p0-a")
    for _ in range(5):
        names = pa.array(["a", "b", "c"] * 300)
        batch = pa.RecordBatch.from_pydict({"payload": [b"x"] * 900, "queue": names})
        for queue, rows in input_rows.check(batch, None).good:
            writer.add(queue, rows)
    part = writer.close()
    assert (part.rows, part.chunks) == (4500, 6)
    commit(store, "w", Manifest(root, [part]), Terms())
    assert [store.queue(name).counts().ready for name in "abc"] == [1500] * 3


def test_bad_rows_go_to_the_quarantine_once(store: Store, root: str, tmp_path: Path) -> None:
    store.queue("work").enqueue(b"other", key="taken")
    columns = {"priority": pa.array([0, 99, 0]), "key": pa.array([None, None, "taken"])}
    part = stage(root, "w", "p0-a", [b"good", b"bad", b"refused"], **columns)
    where = tmp_path / "quarantine"
    done = commit(store, "w", Manifest(root, [part]), Terms(quarantine=str(where)))
    assert (done.jobs, done.rejected) == (1, 2)
    tables = [pq.read_table(file).to_pylist() for file in sorted(where.iterdir())]
    rows = {row["payload"]: row["reason"] for table in tables for row in table}
    assert set(rows) == {b"bad", b"refused"}
    assert "priority=99" in rows[b"bad"]
    assert "taken" in rows[b"refused"]


def test_a_refused_row_has_the_columns_it_was_given_in(store: Store, root: str, tmp_path: Path) -> None:
    """Not those in which it was staged: `delay_ms` beside the `delay` of the other rows, which nobody could read together."""
    store.queue("work").enqueue(b"other", key="k")
    columns = {
        "queue": pa.array([None, None], pa.string()),
        "key": pa.array(["k", "free"]),
        "delay": pa.array([1.5, 0]).cast(pa.decimal128(10, 2)),
        "ttl": pa.array([90, 90], pa.duration("s")).cast(pa.duration("us")),
        "priority": pa.array([1, 99], pa.int32()),
        "headers": pa.array([[("a", "b")], None], pa.map_(pa.string(), pa.string())),
        "group": pa.nulls(2),
    }
    part = stage(root, "w", "p0-a", [b"refused", b"bad"], **columns)
    given = pa.schema([("payload", pa.string()), *[(name, column.type) for name, column in columns.items()]])
    where = tmp_path / "quarantine"
    commit(store, "w", Manifest(root, [part]), Terms(quarantine=str(where), given=given.with_metadata({"types": "x"})))
    (file,) = where.glob("*-refused.parquet")
    found = pq.read_table(file)
    assert found.drop_columns("reason").to_pylist() == [
        {"payload": "refused", "queue": "work", "key": "k", "delay": Decimal("1.50"), "ttl": timedelta(seconds=90),
         "priority": 1, "headers": [("a", "b")], "group": None}
    ]  # fmt: skip
    assert found.schema.metadata[b"types"] == b"x"
    assert found.schema.field("group").type == pa.large_string(), "a type that a write takes again"


def test_a_part_may_have_bad_rows_only(store: Store, root: str, tmp_path: Path) -> None:
    """No chunk was staged for it, so there is no file of chunks to look for."""
    parts = [
        stage(root, "w", "p0-a", numbered(0, 10)),
        stage(root, "w", "p1-a", numbered(10, 2), priority=pa.array([77, 78])),
        stage(root, "w", "p2-a", numbered(12, 3)),
    ]
    if (file := folder_of(root, "w") / "p1-a.arrow").exists():
        file.unlink()
    parts[1] = Part("p1-a", 0, 0, 2)
    done = commit(store, "w", Manifest(root, parts), Terms(quarantine=str(tmp_path / "bad")))
    assert (done.jobs, done.rejected) == (13, 2)
    assert pq.read_table(tmp_path / "bad").num_rows == 2


@pytest.mark.parametrize("lost", range(1, 9))
def test_refused_rows_outlive_the_commit_that_met_them(
    store: Store, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """A commit stops at any of its calls, before or after it took effect; the repeat sets aside what it had refused."""
    queue = store.queue("work")
    queue.enqueue_many([NewJob(b"other", key=f"k{n}") for n in range(0, 3000, 3)])
    keys = pa.array([f"k{n}" for n in range(3000)])
    part = stage(root, "w", "p0-a", numbered(0, 3000), key=keys)
    real, calls = Staged.publish_checked, 0

    def failing(self, chunk, queue, jobs, refused=()):
        nonlocal calls
        calls += 1
        if calls == lost and lost % 2:
            raise Unavailable("killed before the chunk was published")
        published = real(self, chunk, queue, jobs, refused)
        if calls == lost:
            raise Unavailable("killed after it was published")
        return published

    where = tmp_path / "quarantine"
    with monkeypatch.context() as patched:
        patched.setattr(Staged, "publish_checked", failing)
        with contextlib.suppress(Unavailable):
            commit(store, "w", Manifest(root, [part]), Terms(quarantine=str(where)))
    # The keys are free by now, or the holders gone: what was refused stays refused, and nothing is added twice.
    queue.ack_many([delivery for delivery in queue.claim(limit=1000) if delivery.payload == b"other"])
    done = commit(store, "w", Manifest(root, [part]), Terms(quarantine=str(where)))
    assert (done.jobs, done.rejected) == (2000, 1000)
    refused = [row["payload"] for file in where.glob("[!.]*") for row in pq.read_table(file).to_pylist()]
    assert sorted(refused) == [b"%06d" % n for n in range(0, 3000, 3)]


def test_many_conflicts_cost_two_transactions_a_chunk(
    store: Store, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that meets them all, and one that leaves them out; one for each conflict took 427 s for 63,562 of them."""
    store.queue("work").enqueue_many([NewJob(b"other", key=f"k{n}") for n in range(1000)])
    part = stage(root, "w", "p0-a", numbered(0, 1000), key=pa.array([f"k{n}" for n in range(1000)]))
    real, calls = Staged.publish_checked, 0

    def counted(self, *arguments):
        nonlocal calls
        calls += 1
        return real(self, *arguments)

    monkeypatch.setattr(Staged, "publish_checked", counted)
    done = commit(store, "w", Manifest(root, [part]), Terms(quarantine=str(tmp_path / "quarantine")))
    assert (done.jobs, done.rejected, calls) == (0, 1000, 2)


def test_chunks_are_cut_by_bytes_too(store: Store, root: str) -> None:
    """150 jobs of 7.5 MiB as one chunk were more than a transaction takes, and stuck under their id for ever."""
    large = bytes(7_500_000)
    part = stage(root, "w", "p0-a", [large] * 5 + [b"small"] * 1500)
    assert part.chunks == 4
    sizes = [chunk.rows.column("payload").nbytes for chunk in staging.read_part(folder_of(root, "w"), part)]
    assert max(sizes) <= staging.CHUNK_BYTES + 8 * 1024**2
    assert commit(store, "w", Manifest(root, [part]), Terms()).jobs == 1505


def test_without_a_quarantine_a_conflict_fails_the_commit(store: Store, root: str) -> None:
    store.queue("work").enqueue(b"other", key="taken")
    part = stage(root, "w", "p0-a", [b"mine"], key=pa.array(["taken"]))
    with pytest.raises(KeyConflict):
        commit(store, "w", Manifest(root, [part]), Terms())
    assert folder_of(root, "w").exists(), "it may be repeated"


def test_the_writer_is_held_back(store: Store, root: str) -> None:
    queue = store.queue("work")
    part = stage(root, "w", "p0-a", numbered(0, 3000))
    seen: list[int] = []

    def drain() -> None:
        while queue.counts().removed < 3000:
            seen.append(queue.counts().waiting)
            queue.ack_many(queue.claim(limit=500))

    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(drain)
        assert commit(store, "w", Manifest(root, [part]), Terms(max_waiting=1200)).jobs == 3000
        draining.result(60)
    assert max(seen) <= 1200


def test_held_back_for_too_long(store: Store, root: str) -> None:
    part = stage(root, "w", "p0-a", numbered(0, 2000))
    with pytest.raises(QueueFull):
        commit(store, "w", Manifest(root, [part]), Terms(max_waiting=1500, patience=0.1))
    with pytest.raises(InvalidArgument, match="less than a chunk"):
        commit(store, "w", Manifest(root, [part]), Terms(max_waiting=10))
    store.queue("work").configure(Policy(max_waiting=1500))
    with pytest.raises(QueueFull):
        commit(store, "w", Manifest(root, [part]), Terms())
    assert store.queue("work").counts().enqueued == 1000


def test_staged_files_that_are_gone_are_told(store: Store, root: str) -> None:
    part = stage(root, "w", "p0-a", numbered(0, 10))
    staging.discard(root, "w")
    with pytest.raises(Unavailable, match="kept for a day"):
        commit(store, "w", Manifest(root, [part]), Terms())


def test_a_file_that_was_cut_short_is_told(store: Store, root: str) -> None:
    part = stage(root, "w", "p0-a", numbered(0, 10))
    with pytest.raises(Unavailable, match="instead of 2"):
        commit(store, "w", Manifest(root, [Part(part.name, 2, 2000)]), Terms())


def test_what_is_left_over_expires(root: str) -> None:
    stage(root, "old", "p0-a", numbered(0, 10))
    stage(root, "new", "p0-a", numbered(0, 10))
    day_old = time.time() - KEPT - 10
    for file in folder_of(root, "old").iterdir():
        os.utime(file, (day_old, day_old))
    assert expire(root) == 1
    assert folder_of(root, "new").exists()
    assert expire(root + "-not-there") == 0


def test_where_it_is_staged(tmp_path: Path) -> None:
    assert staging.root_of(f"rocksdb:{tmp_path}") == str(tmp_path / "staging")
    assert staging.root_of("memory:", str(tmp_path)) == str(tmp_path)
    with pytest.raises(InvalidArgument, match="staging"):
        staging.root_of("memory:")


def test_every_field_arrives(store: Store, root: str) -> None:
    columns = {
        "priority": pa.array([7], pa.int32()),
        "key": pa.array(["k"]),
        "max_attempts": pa.array([2]),
        "headers": pa.array([[("a", "b")]], input_rows.STAGED["headers"]),
        "ttl": pa.array([60]),
        "group": pa.array(["customer-17"]),
    }
    part = stage(root, "w", "p0-a", [b"x"], **columns)
    commit(store, "w", Manifest(root, [part]), Terms())
    delivery = store.queue("work").claim()[0]
    assert (delivery.priority, delivery.key, delivery.max_attempts, delivery.headers) == (7, "k", 2, {"a": "b"})
    assert store.queue("work").get(delivery.id).group == "customer-17"  # type: ignore[union-attr]


def test_staged_in_the_store_itself(store: Store, tmp_path: Path) -> None:
    """As writers do that share no folder with it."""
    place = tmp_path / "elsewhere"
    parts = []
    for number in range(2):
        columns = {"priority": pa.array([0] * 1_500 + [99])}
        part = stage(str(place), "w", f"p{number}-a", [os.urandom(4_000) for _ in range(1_501)], **columns)
        staging.upload(store, "w", folder_of(str(place), "w"), part.name)
        parts.append(part)
    staging.discard(str(place), "w")
    where = tmp_path / "quarantine"
    done = commit(store, "w", Manifest(staging.IN_STORE, parts), Terms(quarantine=str(where)))
    assert (done.jobs, done.rejected) == (3_000, 2)
    assert len(list(where.iterdir())) == 2
    assert store.staged("w").piece(f"{parts[0].name}.arrow", 0) is None
    assert staging.root_of("http://127.0.0.1:1") == staging.IN_STORE
