"""Tables of a simulated FoundationDB cluster, read by its key ranges, through a cluster file as another process would."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import tenure
from tenure.bulk import snapshot_locations, table_access
from tenure.bulk.live_ranges import LivePlace
from tenure.bulk.plan import cut_at
from tenure.bulk.query import Query
from tenure.errors import InvalidArgument, JournalTrimmed
from tenure.testing import fdb
from tenure.testing.conformance.world import assert_sound
from tenure.testing.fdb import shared
from tenure.testing.fdb.cluster import Cluster
from tests.bulk.flow_filling import fill_flows

SIMULATED = Path(__file__).parents[1] / "spark" / "simulated"


@pytest.fixture
def cluster():
    # A tenth as fast as the machine's time: a version lives for fifty seconds, and a stalled machine outlives none.
    return Cluster(time_us=lambda: time.monotonic_ns() // 10_000)


@pytest.fixture
def url(cluster, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fdb", fdb)
    with shared.serve(cluster, tmp_path) as cluster_file:
        yield f"foundationdb:{cluster_file}"


def test_a_table_is_cut_at_the_clusters_shards(url):
    with tenure.open(url, sweep=False) as store:
        store.queue("a").enqueue_many([b"%d" % n for n in range(1_300)])
        store.queue("b").enqueue_many([b"x"] * 20)
        store.queue("a").ack_many(store.queue("a").claim(limit=100))
        assert_sound(store)
    place = snapshot_locations.take(url, 1000)
    parts = place.plan(Query("jobs"), 250_000)
    assert len(parts) == 3, "500 rows a shard"
    rows = [row for part in parts for batch in place.read(Query("jobs"), part) for row in batch.to_pylist()]
    assert len({row["id"] for row in rows}) == len(rows) == 1_220
    assert sorted(int(row["payload"]) for row in rows if row["queue"] == "a") == list(range(100, 1_300))
    assert table_access.read(url, "jobs", queue="b").num_rows == 20
    events = table_access.read(url, "events").to_pylist()
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))
    assert table_access.read(url, "queues").num_rows == 2
    with pytest.raises(InvalidArgument, match="as they are now"):
        snapshot_locations.find(url, "spark-1")


def test_parents_and_steps_are_those_of_the_store(url):
    with tenure.open(url, sweep=False) as store:
        flows = fill_flows(store)
        steps = store.queue("steps").steps(flows.stepped)
    parents = table_access.read(url, "parents", columns=["job_id", "met", "unmet"]).to_pylist()
    assert {row["job_id"]: row["unmet"] for row in parents} == dict.fromkeys(flows[:3], 1) | {flows.ready: None}
    assert sorted(row["job_id"] for row in parents if not row["met"]) == sorted(flows[:3])
    found = sorted(table_access.read(url, "steps").to_pylist(), key=lambda row: row["number"])
    assert [(row["name"], row["kind"], row["value"], row["count"]) for row in found] == [
        (step.name, step.kind, step.value, 3) for step in steps
    ]


def test_a_page_that_takes_longer_than_a_version_lives_is_read_with_fewer_rows(url, cluster, monkeypatch):
    with tenure.open(url, sweep=False) as store:
        store.queue("a").enqueue_many([b"%d" % n for n in range(300)])
    asked: list[int] = []
    real = Cluster.get_range

    def slow(self, version, begin, end, limit, reverse=False):
        asked.append(limit)
        found = real(self, version, begin, end, limit, reverse)
        if len(found) > 100:
            self.recover()  # no version that was read before can be read any more
        return found

    monkeypatch.setattr(Cluster, "get_range", slow)
    (part,) = LivePlace(url).plan(Query("jobs"), 250_000)
    rows = [row for batch in LivePlace(url).read(Query("jobs"), part) for row in batch.to_pylist()]
    assert sorted(int(row["payload"]) for row in rows) == list(range(300))
    assert max(asked) > 100


def test_events_that_were_trimmed_meanwhile_are_told(url):
    with tenure.open(url, sweep=False) as store:
        for n in range(20):
            store.queue("a").enqueue(b"%d" % n)
        place = LivePlace(url)
        (part,) = place.plan(Query("events"), 250_000)
        engine = store.backend._engine  # type: ignore[attr-defined]  # an embedded store
        engine.tend()
        engine.transact(lambda tx: tx.delete_range(part.space, b"", (9).to_bytes(8, "big")))
        with pytest.raises(JournalTrimmed):
            list(place.read(Query("events"), part))


@pytest.mark.timeout(300)
def test_another_process_takes_part(url, cluster):
    """A worker in a process of its own takes the jobs of this one, and wakes when there are more."""
    program = (
        "import sys, tenure\n"
        "store = tenure.open(sys.argv[1], sweep=False)\n"
        "queue = store.queue('a')\n"
        "for n in range(3):\n"
        "    queue.ack(queue.claim(wait=200)[0], result=b'done')\n"
        "print('ok')\n"
    )
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("a")
        sent = [queue.enqueue(b"1").id, queue.enqueue(b"2").id]
        command = [sys.executable, "-c", program, url]
        worker = subprocess.Popen(command, env={"PYTHONPATH": str(SIMULATED)}, stdout=subprocess.PIPE)
        ended = [queue.wait_for(id, timeout=200) for id in sent]
        ended.append(queue.wait_for(queue.enqueue(b"3").id, timeout=200))
        assert [job and job.state for job in ended] == ["done"] * 3
        assert worker.communicate(timeout=200)[0] == b"ok\n"
        assert_sound(store)


@pytest.mark.parametrize(
    ("ranges", "boundaries", "pieces"),
    [
        ([(b"a", b"m")], [b"c", b"x"], [(b"a", b"c"), (b"c", b"m")]),
        ([(b"a", b"c"), (b"e", b"g")], [b"a", b"c", b"f"], [(b"a", b"c"), (b"e", b"f"), (b"f", b"g")]),
        ([(b"a", b"c")], [], [(b"a", b"c")]),
    ],
)
def test_ranges_are_cut_at_boundaries(ranges, boundaries, pieces):
    assert cut_at(ranges, boundaries) == pieces
