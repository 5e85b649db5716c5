"""Bulk loads: the same jobs as by any other way in, all or nothing, once, wherever the process ends."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tenure
from tenure import GroupPolicy, Policy, bulk
from tenure.analysis.audit import audit
from tenure.api.store import Store
from tenure.bulk import input_rows
from tenure.bulk.load_files import Ids, LoadWriter
from tenure.errors import Corrupt, InvalidArgument, QueueFull, TooLarge, Unavailable
from tenure.model.names import QueueName
from tenure.model.write import LoadPart
from tenure.queueing import bulk_loads
from tenure.storage import records
from tenure.storage.engine import Transaction
from tenure.storage.keyspace import GROUP_READY, JOURNAL, LAST, READY, SEGMENT_READY, SEGMENTS, STATE
from tenure.storage.staged_parts import folder_of
from tenure.testing.harness import engine_of

WORK = QueueName("default", "work")


def stage(store: Store, path: Path, write: str, partition: int, **columns: pa.Array) -> list[LoadPart]:
    staged = store.staged(write)

    def target(name: QueueName):
        return staged.load_target(store.queue(name.queue, tenant=name.tenant))

    folder = folder_of(str(path / "staging"), write)
    writer = LoadWriter(folder, f"{partition}-{os.urandom(4).hex()}", partition, target(WORK).now_ms, target)
    for queue, rows in input_rows.check(pa.RecordBatch.from_pydict(columns), WORK).good:
        writer.add(queue, rows)
    return writer.close()


def numbered(first: int, count: int) -> pa.Array:
    return pa.array([b"%06d" % n for n in range(first, first + count)])


def payloads(store: Store, queue: str = "work") -> list[bytes]:
    found: list[bytes] = []
    while claim := store.queue(queue).claim(limit=10_000, lease=86_400):
        found += [delivery.payload for delivery in claim]
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with tenure.open(f"rocksdb:{path}", sweep=False) as made:
        yield made
        report = made.check(specification=True)
        assert report.clean, report.findings


def test_all_of_it_in_order(store: Store, path: Path) -> None:
    store.queue("work").enqueue(b"before")
    parts = stage(store, path, "w", 0, payload=numbered(0, 2_500)) + stage(
        store, path, "w", 1, payload=numbered(2_500, 1_700)
    )
    state = store.staged("w").load(b"", parts)
    assert (state.jobs, state.finished) == (4_200, True)
    store.queue("work").enqueue(b"after")
    assert store.check().clean
    assert store.queue("work").counts().ready == 4_202
    found = payloads(store)
    assert found[0] == b"before"
    assert found[1:-1] == [b"%06d" % n for n in range(4_200)]


def test_plain_jobs_are_loaded_as_segments(store: Store, path: Path) -> None:
    """They are claimed and acked together, and can be told apart, as those that `enqueue_many` adds."""
    queue = store.queue("work")
    parts = stage(store, path, "w", 0, payload=pa.array([b"%06d" % n * (n % 7) for n in range(1_003)]))
    store.staged("w").load(b"", parts)
    inner = engine_of(store).inner
    assert len(inner.read(lambda reader: reader.keys(SEGMENTS, b"", LAST, 100))) == 11
    assert not inner.read(lambda reader: reader.keys(STATE, b"", LAST, 1)), "no job has a row of its own"
    claim = queue.claim(limit=100)
    assert [delivery.payload for delivery in claim] == [b"%06d" % n * (n % 7) for n in range(100)]
    queue.ack_many(claim)
    single = queue.claim()[0]
    assert single.payload == b"000100" * 2
    queue.nack(single)
    assert store.check().clean
    assert (queue.counts().waiting, queue.counts().enqueued) == (903, 1_003)
    assert next(event.index for event in queue.timeline(single.id)) == 100


def test_ids_among_those_of_a_segment_are_refused(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments never overlap. Nothing is written then; the next attempt makes other ids."""
    added = store.queue("work").enqueue_many([b"%06d" % n for n in range(100)])
    first = int(added[0].id, 16)
    ids = [(first + n + 1).to_bytes(16, "big") for n in range(20)]
    monkeypatch.setattr(Ids, "take", lambda self, count: np.frombuffer(b"".join(ids), np.uint8).reshape(-1, 16).copy())
    with pytest.raises(Unavailable, match="among those of other jobs"):
        store.staged("w").load(b"", stage(store, path, "w", 1, payload=numbered(100, 20)))
    monkeypatch.undo()
    assert store.staged("w").load(b"", stage(store, path, "w", 1, payload=numbered(100, 20))).jobs == 20
    assert payloads(store) == [b"%06d" % n for n in range(120)]


def test_its_events_are_in_the_journal(store: Store, path: Path) -> None:
    store.staged("w").load(b"", stage(store, path, "w", 0, payload=numbered(0, 1_234)))
    found = [event for event in store.events(limit=5_000).events if event.type == "enqueued"]
    assert len(found) == 1_234
    assert [event.index for event in found[998:1_002]] == [998, 999, 0, 1]
    delivery = store.queue("work").claim()[0]
    assert [event.type for event in store.queue("work").timeline(delivery.id)] == ["enqueued", "claimed"]
    store.queue("work").ack(delivery)


def test_the_table_of_events_has_what_the_journal_has(store: Store, path: Path) -> None:
    """Rows of events that are alike keep the likeness once: both ways to read them give the same events."""
    store.queue("work").enqueue_many([b"before"] * 30)
    urgent = pa.array([9] * 700 + [None] * 400)
    parts = stage(store, path, "w", 0, payload=numbered(0, 2_500))
    parts += stage(store, path, "w", 1, payload=numbered(2_500, 1_100), priority=urgent)
    store.staged("w").load(b"", parts)
    store.queue("work").claim(limit=3)
    table = bulk.read(store, "events").to_pylist()
    said = [
        (event.commit, event.index, event.type, event.job_id, event.priority) for event in store.events(limit=9_999)
    ]
    assert [(row["commit"], row["index"], row["type"], row["job_id"], row["priority"]) for row in table] == said
    assert [row["number"] for row in table] == list(range(1, len(table) + 1))
    sizes = [
        len(value)
        for _, value in engine_of(store).inner.read(lambda reader: reader.scan(JOURNAL, b"", LAST, 100))
        if records.decode_journal_header(value).events == 1_000
    ]
    assert len(sizes) == 3
    assert sizes[:2] == [20 + 80 + 16 * 1_000 + 4] * 2, "a job's id is all that is kept for each of its events"
    assert sizes[2] == 20 + 80 * 1_000 + 4, "two priorities in one row: each event is kept whole"


@pytest.mark.parametrize("at", [2, 30, 105, -1])
def test_a_damaged_journal_row_of_a_load_is_named(path: Path, at: int) -> None:
    with tenure.open(f"rocksdb:{path}", sweep=False) as store:
        store.staged("w").load(b"", stage(store, path, "w", 0, payload=numbered(0, 50)))

        def flip(tx: Transaction) -> int:
            (key, value), *_ = tx.scan(JOURNAL, b"", LAST, 1, reverse=True)
            broken = bytearray(value)
            broken[at] ^= 1
            tx.put(JOURNAL, key, bytes(broken))
            return int.from_bytes(key, "big")

        row = engine_of(store).transact(flip)
        with pytest.raises(Corrupt, match=f"journal row {row}"):
            bulk.read(store, "events")
        with pytest.raises(Corrupt, match=f"journal row {row}"):
            store.events(limit=100)


def test_every_column(store: Store, path: Path) -> None:
    columns = {
        "payload": pa.array([b"plain", b"later", b"urgent", b"\0" * 200_000, b"brief"]),
        "delay": pa.array([None, 3600, None, None, None]),
        "priority": pa.array([None, None, 9, 1, None]),
        "ttl": pa.array([None, None, None, None, 86_400]),
        "max_attempts": pa.array([None, None, 2, None, None]),
        "headers": pa.array([None, None, [("a", "b")], None, None], input_rows.STAGED["headers"]),
    }
    store.staged("w").load(b"", stage(store, path, "w", 0, **columns))
    assert store.check().clean
    first = store.queue("work").claim()[0]
    assert (first.payload, first.max_attempts, first.headers) == (b"urgent", 2, {"a": "b"})
    assert store.queue("work").counts().scheduled == 1
    assert sorted(len(payload) for payload in payloads(store)) == [5, 5, 200_000]


def test_jobs_of_many_kinds_over_several_journal_rows(store: Store, path: Path) -> None:
    """Shapes change from job to job, and batches and journal rows end at different places."""
    dice, count = random.Random(3), 3_300
    rows: dict[str, list[Any]] = {
        "payload": [b"%06d" % n * dice.choice([1, 1, 9]) for n in range(count)],
        "priority": [dice.choice([None, 0, 4, 9]) for _ in range(count)],
        "max_attempts": [dice.choice([None, 1, 7]) for _ in range(count)],
        "ttl": [dice.choice([None, None, 50_000, 90_000.5]) for _ in range(count)],
        "delay": [dice.choice([None, None, 0, 3_600]) for _ in range(count)],
    }
    parts = []
    for partition, (begin, end) in enumerate([(0, 700), (700, 3_300)]):
        parts += stage(store, path, "w", partition, **{name: pa.array(rows[name][begin:end]) for name in rows})
    store.staged("w").load(b"", parts)
    assert store.check().clean
    queue = store.queue("work")
    jobs = {job.payload: job for state in ("ready", "scheduled") for job in queue.list(state, limit=count)}
    assert len(jobs) == count
    default = queue.policy().max_attempts
    for payload, priority, attempts, ttl, delay in zip(*rows.values(), strict=True):
        job = jobs[payload]
        assert (job.priority, job.max_attempts) == (priority or 0, attempts or default)
        if delay:
            assert job.visible_at_ms == job.created_at_ms + 1000 * delay
        else:
            assert job.visible_at_ms >= job.created_at_ms, "it is visible from when it is loaded"
        assert job.due_at_ms == (None if ttl is None else job.created_at_ms + 1000 * ttl)


def test_jobs_of_groups(store: Store, path: Path) -> None:
    """They take turns and keep to limits as those that were enqueued, beside jobs without a group."""
    queue = store.queue("work")
    queue.configure(Policy(group=GroupPolicy(max_leased=2)))
    queue.enqueue(b"before", group="g1", priority=3)
    dice, count = random.Random(5), 2_300
    names = [dice.choice([None, "g0", "g1", "g2", "g3"]) for _ in range(count)]
    rows: dict[str, pa.Array] = {
        "payload": numbered(0, count),
        "group": pa.array(names),
        "priority": pa.array([dice.choice([None, 3, 9]) for _ in range(count)]),
        "delay": pa.array([dice.choice([None, None, 3_600]) for _ in range(count)]),
    }
    parts = []
    for partition, (begin, length) in enumerate([(0, 900), (900, 1_400)]):
        part = {name: column.slice(begin, length) for name, column in rows.items()}
        parts += stage(store, path, "w", partition, **part)
    parts += stage(store, path, "w", 2, payload=numbered(count, 300))
    store.staged("w").load(b"", parts)
    report = store.check()
    assert report.clean, report.findings
    assert audit(store).facts["violations"] == []
    jobs = {job.payload: job.group for state in ("ready", "scheduled") for job in queue.list(state, limit=5_000)}
    assert [jobs[b"%06d" % n] for n in range(count + 300)] == [*names, *[None] * 300]
    waiting = {group.group: group.waiting for group in queue.groups()}
    assert waiting == {name: names.count(name) + (name == "g1") for name in names if name}
    claim = queue.claim(limit=16)
    given = Counter(delivery.group for delivery in claim)
    assert given.pop(None) == 16 - sum(given.values())
    assert given == {"g0": 2, "g1": 2, "g2": 2, "g3": 2}
    queue.ack_many(claim)
    assert {delivery.group for delivery in queue.claim(limit=5)} == {None, "g0", "g1", "g2", "g3"}


def test_a_group_whose_limit_is_reached_gets_no_turn_by_a_load(store: Store, path: Path) -> None:
    queue = store.queue("work")
    queue.configure(Policy(group=GroupPolicy(max_leased=1)))
    queue.enqueue(b"held", group="g")
    held = queue.claim()[0]
    store.staged("w").load(b"", stage(store, path, "w", 0, payload=numbered(0, 2), group=pa.array(["g", "g"])))
    assert not queue.claim()
    queue.ack(held)
    assert queue.claim()[0].payload == b"000000"


def test_too_many_groups_are_refused(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_loads, "MAX_GROUPS", 3)
    names = pa.array(["a", "b", "c", "d"])
    with pytest.raises(TooLarge, match="the number of groups of the load is 4, over the limit of 3"):
        store.staged("w").load(b"", stage(store, path, "w", 0, payload=numbered(0, 4), group=names))
    assert store.queue("work").counts().enqueued == 0


def test_several_queues_and_a_rank_that_was_empty(store: Store, path: Path) -> None:
    queue = store.queue("work")
    queue.enqueue(b"x")
    queue.ack(queue.claim()[0])
    assert not queue.claim(), "from here on the front of priority 0 is known to be empty"
    columns = {"payload": numbered(0, 40), "queue": pa.array(["work", "other"] * 20), "priority": pa.array([0, 3] * 20)}
    parts = stage(store, path, "w", 0, **columns)
    assert len(parts) == 2
    store.staged("w").load(b"", parts)
    assert len(payloads(store)) == 20
    assert len(payloads(store, "other")) == 20


def test_it_wakes_who_waits(store: Store, path: Path) -> None:
    from tenure.testing.conformance.world import waiting

    store.queue("work").enqueue(b"x")
    store.queue("work").ack(store.queue("work").claim()[0])
    parts = stage(store, path, "w", 0, payload=numbered(0, 10))
    future = waiting(store.queue("work"), limit=10)
    store.staged("w").load(b"", parts)
    assert len(future.result(20)) == 10


def test_an_id_is_loaded_once(store: Store, path: Path) -> None:
    parts = stage(store, path, "w", 0, payload=numbered(0, 100))
    store.staged("w").load(b"m", parts)
    again = stage(store, path, "w", 0, payload=numbered(0, 100))
    state = store.staged("w").load(b"n", again)
    assert (state.jobs, state.manifest) == (100, b"m")
    assert store.queue("work").counts().enqueued == 100
    store.staged("v").begin(b"")
    with pytest.raises(InvalidArgument, match="ordinary path"):
        store.staged("v").load(b"", stage(store, path, "v", 0, payload=numbered(0, 1)))


def test_what_is_refused_writes_nothing(store: Store, path: Path) -> None:
    store.queue("work").configure(Policy(max_waiting=99))
    parts = stage(store, path, "w", 0, payload=numbered(0, 100))
    with pytest.raises(QueueFull):
        store.staged("w").load(b"", parts)
    with pytest.raises(InvalidArgument, match="with a key"):
        stage(store, path, "w", 0, payload=numbered(0, 1), key=pa.array(["k"]))
    with pytest.raises(InvalidArgument, match="not a part"):
        store.staged("w").load(b"", [LoadPart("../../etc/passwd", 1, 1, [])])
    with pytest.raises(InvalidArgument, match="no queue with the number"):
        store.staged("w").load(b"", [LoadPart(parts[0].name, 77, 100, parts[0].spaces)])
    rows = next((path / "staging").glob("*/*.rows"))
    rows.write_bytes(rows.read_bytes()[:-1] + b"x")
    store.queue("work").configure(Policy())
    with pytest.raises(Corrupt, match="checksum"):
        store.staged("w").load(b"", parts)
    assert store.queue("work").counts().enqueued == 0
    store.queue("work").enqueue(b"x")
    assert store.queue("work").counts().enqueued == 1, "and it goes on"


def test_other_stores_say_so(tmp_path: Path) -> None:
    with tenure.open(f"lmdb:{tmp_path}", sweep=False) as store, pytest.raises(InvalidArgument, match="RocksDB"):
        store.staged("w").load_target(store.queue("work"))


def test_ids_never_meet() -> None:
    seen: set[bytes] = set()
    for partition in (0, 0, 1, 2**20 - 1):
        ids = [row.tobytes() for row in Ids(1_700_000_000_000, partition).take(1_000)]
        assert ids == sorted(ids)
        assert ids[0][:6] == (1_700_000_000_000).to_bytes(6, "big")
        assert ids[0][6] >> 4 == 7
        assert ids[0][8] >> 6 == 2
        seen.update(ids)
    assert len(seen) == 4_000


# ── ended at each step ───────────────────────────────────────────────────────────────────────────────────────────────

CHILD = """
import os, signal, sys
from pathlib import Path
import pyarrow as pa
import tenure
from tests.bulk.test_loading import numbered, stage

path, step = Path(sys.argv[1]), sys.argv[2]
store = tenure.open(f"rocksdb:{path}", sweep=False)
store.queue("work").enqueue(b"before", group="a", priority=9)
parts = (
    stage(store, path, "w", 0, payload=numbered(0, 1500))
    + stage(store, path, "w", 1, payload=numbered(1500, 1300))
    + stage(store, path, "w", 2, payload=numbered(2800, 200), max_attempts=pa.array([7] * 200))
    + stage(store, path, "w", 3, payload=numbered(3000, 100), group=pa.array(["a", "b"] * 50))
)

def end(at):
    if at == step:
        os.kill(os.getpid(), signal.SIGKILL)

store._backend._engine.loader.after = end
store.staged("w").load(b"m", parts)
"""

#: In the midst of the spaces of jobs that are rows, before those of segments, and after all of them.
INGESTED = tuple(f"ingested {space}" for space in (STATE, READY, SEGMENT_READY, GROUP_READY))
STEPS = ("synced", "intended", *INGESTED, "finishing", "finished")


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_each_step_it_is_all_or_nothing(path: Path, step: str) -> None:
    child = subprocess.run([sys.executable, "-c", CHILD, str(path), step], capture_output=True, text=True, timeout=300)
    assert child.returncode == -signal.SIGKILL, child.stderr
    with tenure.open(f"rocksdb:{path}", sweep=False) as store:
        report = store.check()
        assert report.clean, report.findings
        loaded = store.queue("work").counts().enqueued - 1
        assert loaded == (0 if step == "synced" else 3_100)
        # Whoever repeats it gets it once.
        state = store.staged("w").load(b"m", stage(store, path, "w", 0, payload=numbered(0, 3_100)))
        assert state.jobs == 3_100
        assert store.queue("work").counts().enqueued == 3_101
        assert store.check().clean
        found = payloads(store)
        assert [found[0], *sorted(found[1:])] == [b"before", *[b"%06d" % n for n in range(3_100)]]
        assert [payload for payload in found[1:] if payload < b"003000"] == [b"%06d" % n for n in range(3_000)]
    with tenure.open(f"rocksdb:{path}", sweep=False) as store:
        assert store.check().clean


def test_killed_again_while_it_is_finished(path: Path) -> None:
    subprocess.run([sys.executable, "-c", CHILD, str(path), "ingested 4"], capture_output=True, timeout=300)
    for step in STEPS[1:-1]:
        again = f"""
import os, signal
from tenure.storage.engines.rocksdb import loader as loading
class Ending(loading.RocksLoader):
    def __init__(self, engine):
        super().__init__(engine)
        self.after = lambda at: os.kill(os.getpid(), signal.SIGKILL) if at == {step!r} else None
from tenure.storage.engines.rocksdb import engine
engine.RocksLoader = Ending
import tenure
tenure.open("rocksdb:{path}", sweep=False)
"""
        child = subprocess.run([sys.executable, "-c", again], capture_output=True, text=True, timeout=300)
        assert child.returncode == -signal.SIGKILL, child.stderr
    with tenure.open(f"rocksdb:{path}", sweep=False) as store:
        assert store.check().clean
        assert store.queue("work").counts().enqueued == 3_101
        assert {group.group: group.waiting for group in store.queue("work").groups()} == {"a": 51, "b": 50}


def test_a_load_whose_files_are_gone_is_told(path: Path) -> None:
    subprocess.run([sys.executable, "-c", CHILD, str(path), "intended"], capture_output=True, timeout=300)
    for file in (path / "staging").glob("*/*.rows"):
        file.unlink()
    with pytest.raises(Corrupt, match="cannot be finished"):
        tenure.open(f"rocksdb:{path}", sweep=False)


def test_a_load_that_fails_stops_the_store(path: Path) -> None:
    store = tenure.open(f"rocksdb:{path}", sweep=False)
    parts = stage(store, path, "w", 0, payload=numbered(0, 100))
    loader = store._backend._engine.loader  # type: ignore[attr-defined]

    def fail(step: str) -> None:
        if step == f"ingested {SEGMENTS}":
            raise OSError("no more")

    loader.after = fail
    with pytest.raises(Unavailable, match="goes on when the store is opened again"):
        store.staged("w").load(b"", parts)
    with pytest.raises(Unavailable):
        store.queue("work").enqueue(b"x")
    store.close()
    with tenure.open(f"rocksdb:{path}", sweep=False) as store:
        assert store.check().clean
        assert store.queue("work").counts().ready == 100


def test_the_names_of_the_files_are_durable_before_the_intent(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def record(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    parts = stage(store, path, "w", 0, payload=numbered(0, 100))
    monkeypatch.setattr(os, "fsync", record)
    at: dict[str, set[str]] = {}
    loader = store._backend._engine.loader  # type: ignore[attr-defined]
    loader.after = lambda step: at.setdefault(step, set(synced))
    store.staged("w").load(b"", parts)
    folder = folder_of(str(path / "staging"), "w")
    assert {str(folder), str(folder.parent), str(path)} <= at["intended"]


@pytest.mark.parametrize("step", ["synced", "intended", "finishing", "finished"])
def test_an_interrupted_load_goes_on_at_the_next_opening_or_its_jobs_are_found_at_once(path: Path, step: str) -> None:
    store = tenure.open(f"rocksdb:{path}", sweep=False)
    queue = store.queue("work")
    queue.enqueue(b"x")
    assert queue.claim(limit=10)
    assert not queue.claim()  # from here on scans begin behind what was there
    parts = stage(store, path, "w", 0, payload=numbered(0, 100))

    def interrupt(at: str) -> None:
        if at == step:
            raise KeyboardInterrupt

    store._backend._engine.loader.after = interrupt  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        store.staged("w").load(b"", parts)
    try:
        queue.enqueue(b"y")
    except Unavailable:
        store.close()
        store = tenure.open(f"rocksdb:{path}", sweep=False)
        queue = store.queue("work")
    with store:
        found = len(queue.claim(limit=1_000))
        assert found == (1 if step == "synced" else 101 if step == "finished" else 100)
        assert store.check().clean


def test_a_load_may_have_no_jobs(store: Store) -> None:
    """Of a write all of whose rows are set aside, or that has none: it is recorded, and its repeat is a repeat."""
    for _ in range(2):
        done = store.staged("w").load(b"m", [])
        assert (done.manifest, done.jobs, done.finished) == (b"m", 0, True)


def test_a_snapshot_has_all_of_it_or_nothing(store: Store, path: Path, tmp_path: Path) -> None:
    parts = stage(store, path, "w", 0, payload=numbered(0, 100))
    store.snapshot(tmp_path / "without")
    store.staged("w").load(b"", parts)
    store.snapshot(tmp_path / "with")
    for name, jobs in (("without", 0), ("with", 100)):
        with tenure.open(f"rocksdb:{tmp_path / name}", sweep=False) as copy:
            assert copy.check().clean
            assert copy.queue("work").counts().ready == jobs


# ── through the owner ────────────────────────────────────────────────────────────────────────────────────────────────

GUEST = """
import sys
from pathlib import Path
import tenure
from tenure.bulk.publisher import Terms, commit
from tenure.bulk.staging import Manifest, root_of
from tests.bulk import test_publishing
from tests.bulk.test_loading import numbered, stage

path = Path(sys.argv[1])
with tenure.open(f"rocksdb:{path}", sweep=False) as store:
    store.staged("w").load(b"m", stage(store, path, "w", 0, payload=numbered(0, 1500)))
    root = root_of(f"rocksdb:{path}")
    part = test_publishing.stage(root, "v", "p0-a", [b"%06d" % n for n in range(1500, 3000)])
    assert commit(store, "v", Manifest(root, [part]), Terms()).jobs == 1500
"""


def test_another_process_loads_and_publishes_through_the_owner(store: Store, path: Path) -> None:
    child = subprocess.run([sys.executable, "-c", GUEST, str(path)], capture_output=True, text=True, timeout=300)
    assert child.returncode == 0, child.stderr
    assert payloads(store) == [b"%06d" % n for n in range(3_000)]
