"""Writes whose large parts are staged as sorted files: published once, together with chunks, wherever the process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tenure
from tenure.api.store import Store
from tenure.bulk import input_rows, staged_rows, staging
from tenure.bulk.publisher import Terms, commit, load_groups
from tenure.bulk.staged_rows import StagedRows
from tenure.bulk.staging import Manifest, Part
from tenure.errors import InvalidArgument, Unavailable
from tenure.model.names import QueueName
from tenure.model.write import LoadPart
from tenure.storage.keyspace import SEGMENTS
from tenure.storage.staged_parts import folder_of

WORK = QueueName("default", "work")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", durability="os", sweep=False) as made:
        yield made
        report = made.check(specification=True)
        assert report.clean, report.findings


def stage(store: Store, write: str, partition: int, *batches: pa.RecordBatch) -> Part:
    target = store.staged(write).load_target(store.queue("work"))
    out = StagedRows(folder_of(root(store), write), f"p{partition}-{os.urandom(4).hex()}", partition, target)
    for batch in batches:
        for queue, rows in input_rows.check(batch, WORK).good:
            out.add(queue, rows)
    return out.close()


def root(store: Store) -> str:
    return staging.root_of(store.url)


def rows(first: int, count: int, **columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"payload": pa.array([b"%06d" % n for n in range(first, first + count)]), **columns}
    )


def payloads(store: Store) -> list[bytes]:
    found: list[bytes] = []
    while claim := store.queue("work").claim(limit=10_000, lease=86_400):
        found += [delivery.payload for delivery in claim]
    return found


def numbered(count: int) -> list[bytes]:
    return [b"%06d" % n for n in range(count)]


def test_few_rows_are_chunks_and_many_are_files(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_rows, "FEW_ROWS", 250)
    monkeypatch.setattr(staging, "MOST_LOADED", 500)
    few = stage(store, "w", 0, rows(0, 100), rows(100, 100))
    assert (few.chunks, few.rows, few.tables) == (1, 200, [])
    many = stage(store, "w", 1, *[rows(200 + 100 * n, 100) for n in range(5)])
    assert (many.chunks, many.rows, [table.rows for table in many.tables]) == (0, 500, [500])
    more = stage(store, "w", 2, *[rows(700 + 100 * n, 100) for n in range(8)])
    assert (more.chunks, more.rows, [table.rows for table in more.tables]) == (1, 800, [500]), "writers wait for a load"
    large = pa.RecordBatch.from_pydict({"payload": pa.array([bytes(200_000)] * 200)})
    assert stage(store, "v", 0, large).tables == [], "of large payloads a file would hold few"
    done = commit(store, "w", Manifest(root(store), [few, many, more]), Terms())
    assert (done.jobs, done.repeated) == (1500, False)
    assert commit(store, "w", Manifest(root(store), []), Terms()) == done._replace(repeated=True)
    assert sorted(payloads(store)) == numbered(1500)


def test_groups_are_as_large_as_a_load_may_be() -> None:
    def part(*counts: int) -> Part:
        return Part("p", 0, 0, 0, [LoadPart("p", 1, count, []) for count in counts])

    sizes = [
        [table.rows for table in group] for group in load_groups([part(600_000), part(), part(400_000, 1), part(9)])
    ]
    assert sizes == [[600_000, 400_000], [1, 9]]


def test_a_chunk_of_files_comes_in_its_turn(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_rows, "FEW_ROWS", 10)
    part = stage(store, "w", 0, rows(0, 100))
    with pytest.raises(InvalidArgument, match="before it is begun"):
        store.staged("w").load_chunk(0, part.tables)
    store.staged("w").begin(b"")
    with pytest.raises(InvalidArgument, match="chunk 1 of write 'w' comes before chunk 0"):
        store.staged("w").load_chunk(1, part.tables)
    assert [store.staged("w").load_chunk(0, part.tables).jobs for _ in range(2)] == [100, 100]
    assert store.queue("work").counts().enqueued == 100
    (folder_of(root(store), "v")).mkdir()
    gone = Manifest(root(store), [part])
    with pytest.raises(Unavailable, match="is gone"):
        commit(store, "v", gone, Terms())


# ── ended at each step ───────────────────────────────────────────────────────────────────────────────────────────────

CHILD = """
import os, signal, sys
import pyarrow as pa
import tenure
from tenure.bulk import staged_rows
from tenure.bulk.publisher import Terms, commit
from tenure.bulk.staging import Manifest
from tests.bulk.test_staged_rows import root, rows, stage

staged_rows.FEW_ROWS = 250
store = tenure.open(sys.argv[1], durability="os", sweep=False)
parts = [
    stage(store, "w", 0, rows(0, 1500)),
    stage(store, "w", 1, rows(1500, 300, max_attempts=pa.array([7] * 300))),
    stage(store, "w", 2, rows(1800, 200)),
]

def end(at):
    if at == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

store._backend._engine.loader.after = end
commit(store, "w", Manifest(root(store), parts), Terms())
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("step", ["synced", f"ingested {SEGMENTS}", "finished", "never"])
def test_killed_at_each_step_a_repeat_publishes_it_once(tmp_path: Path, step: str) -> None:
    url = f"rocksdb:{tmp_path / 'data'}"
    child = subprocess.run([sys.executable, "-c", CHILD, url, step], capture_output=True, text=True, timeout=300)
    assert child.returncode == -signal.SIGKILL, child.stderr
    with tenure.open(url, durability="os", sweep=False) as store:
        assert store.check().clean
        loaded = store.queue("work").counts().enqueued
        assert loaded == (0 if step == "synced" else 2_000 if step == "never" else 1_800)
        done = commit(store, "w", Manifest(root(store), []), Terms())
        assert (done.jobs, done.repeated) == (2_000, step == "never")
        assert store.check().clean
        assert sorted(payloads(store)) == numbered(2_000)
        assert not list(Path(root(store)).iterdir()), "staged files are removed"
