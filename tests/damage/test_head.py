"""A damaged job at the front of the queue, damaged in the engine's files and not only in its values."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import tenure
from tenure import NewJob
from tenure.api.queue import Queue
from tenure.errors import Corrupt
from tests.damage.planting import Garden, garden


def flip_all(file: Path, pattern: bytes, at: int = 0) -> int:
    """Flip a bit wherever the pattern occurs in a file. Returns how often."""
    data = bytearray(file.read_bytes())
    count, place = 0, data.find(pattern)
    while place >= 0:
        data[place + at] ^= 0x20
        count += 1
        place = data.find(pattern, place + 1)
    file.write_bytes(data)
    return count


def corrupt(queue: Queue, job_id: str) -> None:
    with pytest.raises(Corrupt) as raised:
        queue.get(job_id)
    assert raised.value.job_id == job_id


def test_lmdb_goes_on_past_a_row_damaged_in_its_file(tmp_path: Path) -> None:
    url = f"lmdb:{tmp_path / 'data'}"
    with tenure.open(url, sweep=False) as store:
        made = [answer.id for answer in store.queue("work").enqueue_many([b"payload-%d-of-five" % n for n in range(5)])]
    assert flip_all(tmp_path / "data" / "db" / "data.mdb", b"payload-0-of-five", 8)
    assert flip_all(tmp_path / "data" / "db" / "data.mdb", b"payload-3-of-five", 8)
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("work")
        corrupt(queue, made[0])
        claim = queue.claim(limit=5, lease=60)
        assert [delivery.id for delivery in claim] == [made[1], made[2], made[4]]
        assert queue.ack_many(list(claim)).lost == []
        for _ in range(2):
            with pytest.raises(Corrupt) as raised:
                queue.claim(limit=5)
            assert raised.value.job_id in (made[0], made[3])
        later = queue.enqueue(b"later").id
        assert [delivery.id for delivery in queue.claim(limit=5)] == [later]
        report = store.check(repair=True)
        assert {made[0], made[3]} <= {finding.job_id for finding in report.findings}
        assert report.ok
        assert store.check().clean
        assert not queue.claim(limit=5), "now the queue is empty"


def test_rocksdb_goes_on_past_a_damaged_block(tmp_path: Path) -> None:
    """A damaged block has many jobs: jobs of other blocks are still served, and the queue does not look empty."""
    url = f"rocksdb:{tmp_path / 'data'}"
    chance = random.Random(3)
    with tenure.open(url, sweep=False) as store:
        made = [a.id for a in store.queue("work").enqueue_many([chance.randbytes(2000) for _ in range(200)])]
    tables = sorted((tmp_path / "data" / "db").glob("*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(tables[-1].read_bytes())
    data[2000] ^= 1  # in the first block of the largest table: the jobs' own rows
    tables[-1].write_bytes(data)
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("work")
        corrupt(queue, made[0])
        claim = queue.claim(limit=200, lease=60)
        served = [delivery.id for delivery in claim]
        assert served == [job_id for job_id in made if job_id in set(served)]
        assert made[-1] in served
        assert 0 < len(made) - len(served) < 50
        assert queue.ack_many(list(claim)).lost == []
        with pytest.raises(Corrupt) as raised:
            queue.claim(limit=200)
        assert raised.value.job_id == made[0]
        assert not store.check().clean


@pytest.mark.parametrize("engine", ["memory", "rocksdb", "lmdb"])
def test_other_queues_and_jobs_are_not_affected(tmp_path: Path, engine: str) -> None:
    made: Garden = garden(engine, tmp_path)
    queue = made.queue
    made.ids["urgent"] = queue.enqueue(NewJob(b"urgent", priority=9)).id
    for space, name in ((2, "urgent"), (4, "retried"), (4, "mortal"), (2, "later")):
        made.spoil(space, made.at(name))
    corrupt(queue, made.ids["urgent"])
    corrupt(queue, made.ids["retried"])
    claim = queue.claim(limit=50, lease=60)
    assert [d.id for d in claim] == [made.ids[name] for name in ("ready", "big", "keyed")]
    queue.ack_many(list(claim))
    with pytest.raises(Corrupt) as raised:
        queue.claim(limit=50)
    assert raised.value.job_id == made.ids["urgent"]
    assert len(made.other.claim(limit=5)) == 3, "another queue is not affected"
    assert queue.ack_many(list(made.claim)).lost == []
    made.close()
