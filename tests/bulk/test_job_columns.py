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


def gathered(space: Space, walk: Walk, limit: int) -> list[Row]:
    """The next rows without their checksums, which columns of segments do not have."""
    if space == STATE:
        states = job_columns.states(walk, limit)
        return [(states.key(at), stored(states.fields[at], layouts.STATE)[:-4]) for at in range(len(states))]
    jobs = job_columns.jobs(walk, limit, 1 << 40)
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
