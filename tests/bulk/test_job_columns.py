"""Columns made of segments say what the rows say that a scan makes of them, one by one."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import tenure
from tenure import NewJob
from tenure.backends.named_snapshots import open_copy
from tenure.bulk import job_columns, layouts
from tenure.storage.engine import Row, Space, Walk
from tenure.storage.keyspace import JOBS, LAST, STATE
from tenure.storage.segments import SegmentUse
from tenure.testing.harness import engine_of

NO_STATES = job_columns.StateColumns(b"", np.zeros(0, layouts.STATE), np.zeros(0, np.int64))


@pytest.mark.parametrize("seed", range(5))
def test_gathered_as_scanned(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentUse, "RESTS", 0)
    chance = random.Random(seed)
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", durability="os", sweep=False) as store:
        for name in ("one", "two"):
            queue = store.queue(name)
            for turn in range(8):
                size = chance.choice((0, 1, 50))
                alike = turn % 2 == 0
                payloads = [b"x" * (size if alike else chance.randrange(60)) for _ in range(40 + turn)]
                group = (None, "g", "longer-name")[turn % 3]
                queue.enqueue_many([NewJob(payload, group=group) for payload in payloads])
                queue.enqueue(b"alone", group=group)
                held = list(queue.claim(limit=chance.choice((9, 30)))) if turn % 3 == 0 else []
                queue.ack_many(held[: chance.randrange(len(held) + 1)])
                for job in queue.list("ready", limit=20).jobs[::7]:
                    queue.cancel(job.id)
        store.snapshot(tmp_path / "copy")
        whole = {
            space: engine_of(store).read(lambda reader, s=space: reader.scan(s, b"", LAST, 1 << 20))
            for space in (JOBS, STATE)
        }
        kept = engine_of(store).inner.read(lambda reader: len(reader.keys(STATE, b"", LAST, 1 << 20)))
        assert kept < len(whole[STATE]) / 2, "most of them must be in segments, or this shows nothing"
    with open_copy(tmp_path / "copy") as copy:
        for space in (JOBS, STATE):
            keys = [key for key, _ in whole[space]]
            for begin, end in ((b"", LAST), (keys[17], keys[-40]), (keys[100] + b"\0", keys[101] + b"\0")):
                wanted = [row for row in whole[space] if begin <= row[0] < end]
                walk, found = copy.walk(space, begin, end), []
                while rows := gathered(space, walk, chance.choice((1, 70, 4096))):
                    found += rows
                assert found == [(key, value[:-4]) for key, value in wanted]


def test_keys_are_made_once(tmp_path: Path) -> None:
    """The rows of `jobs` of a segment take over the keys of its states; those of other segments do not."""
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", durability="os", sweep=False) as store:
        for _ in range(3):
            store.queue("work").enqueue_many([b"x"] * 100)
        store.snapshot(tmp_path / "copy")
    with open_copy(tmp_path / "copy") as copy:
        states = job_columns.states(copy.walk(STATE, b"", LAST), 250)
        same = job_columns.jobs(copy.walk(JOBS, b"", LAST), 250, 1 << 40, states)
        assert same.keys is states.keys or same.keys == states.keys
        assert states.keys_of(states._runs) == states.keys
        assert len(states.heads) == 3, "what the jobs of a segment share is kept once"
        fewer = job_columns.jobs(copy.walk(JOBS, b"", LAST), 100, 1 << 40, states)
        assert fewer.keys == states.keys[: 100 * job_columns.KEY_BYTES]
        other = job_columns.jobs(copy.walk(JOBS, states.key(100), LAST), 100, 1 << 40, states)
        assert other.keys == states.part(100, 200).keys


def test_jobs_end_early_only_where_they_weigh_enough(tmp_path: Path) -> None:
    """By their payloads, not by all bytes of their segments: a reader takes lighter ones for all there are."""
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", durability="os", sweep=False) as store:
        for _ in range(6):
            store.queue("work").enqueue_many([b"x" * 50] * 100)
        store.snapshot(tmp_path / "copy")
    with open_copy(tmp_path / "copy") as copy:
        for most in (20_000, 30_000):
            found = job_columns.jobs(copy.walk(JOBS, b"", LAST), 600, most, NO_STATES)
            assert (len(found) == 600) == (most == 30_000)
            assert len(found) == 600 or len(found.data) >= most


def test_payloads_of_segments_are_left_out_where_no_column_has_them(tmp_path: Path) -> None:
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", durability="os", sweep=False) as store:
        for size in (40, 50):
            store.queue("work").enqueue_many([b"x" * size] * 100)
        store.queue("work").enqueue_many([NewJob(b"y", group="blue")] * 100)
        store.snapshot(tmp_path / "copy")
    with open_copy(tmp_path / "copy") as copy:
        whole = job_columns.jobs(copy.walk(JOBS, b"", LAST), 300, 1 << 40, NO_STATES)
        bare = job_columns.jobs(copy.walk(JOBS, b"", LAST), 300, 1 << 10, NO_STATES, payloads=False)
    assert bare.keys == whole.keys
    assert (bare.heads == whole.heads).all()
    assert len(whole.data) - len(bare.data) == 100 * (40 + 50 + 1)
    assert [rows.group(at) for rows in (whole, bare) for at in (200, 299)] == [b"blue"] * 4


def gathered(space: Space, walk: Walk, limit: int) -> list[Row]:
    """The next rows without their checksums, which columns of segments do not have."""
    if space == STATE:
        states = job_columns.states(walk, limit)
        fields = states.each(states.heads).copy()
        fields["last_event"] = states.last_events
        return [(states.key(at), stored(fields[at], layouts.STATE)[:-4]) for at in range(len(states))]
    jobs = job_columns.jobs(walk, limit, 1 << 40, NO_STATES)
    return [
        (
            jobs.key(at),
            stored(jobs.heads[at], layouts.JOB) + jobs.data[jobs.starts[at] : jobs.starts[at] + jobs.lengths[at]],
        )
        for at in range(len(jobs))
    ]


def stored(record: np.void, layout: np.dtype[np.void]) -> bytes:
    """Its bytes in a store: joined arrays may have the machine's order of bytes."""
    return np.array(record).astype(layout).tobytes()
