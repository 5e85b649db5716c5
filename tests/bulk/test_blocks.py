"""Rows gathered of segments as arrays are the rows that a scan makes of them, one by one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import tenure
from tenure.backends.named_snapshots import open_copy
from tenure.bulk import blocks
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
                queue.enqueue_many([b"x" * (size if alike else chance.randrange(60)) for _ in range(40 + turn)])
                queue.enqueue(b"alone")
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
                while rows := blocks.gather(walk, chance.choice((1, 70, 4096)), 20, "rows"):
                    found += [(rows.key(at), rows.value(at)) for at in range(len(rows))]
                assert found == wanted
