"""The prototype of ADR 0010 does what it claims to do before its figures are believed: whole, in parts, and split."""

from typing import Any

import pytest

from bench.bare import Bare
from bench.prototype_segments import SegmentClient
from tenure.storage.keyspace import COUNTERS, JOURNAL, NAMES


def _left(whole):
    """Rows other than counters and the journal."""
    left = {}
    for space, table in enumerate(whole.tables):
        iterator = table.iter()
        iterator.seek_to_first()
        count = 0
        while iterator.valid():
            count += 1
            iterator.next()
        if count and space not in (COUNTERS, JOURNAL):
            left[NAMES[space]] = count
    return left


@pytest.mark.parametrize("events", ["each", "one"])
@pytest.mark.parametrize("limit", [20, 6, 1])
def test_lives_of_a_segment(tmp_path, limit, events):
    whole = Bare(tmp_path / "db", "os", lambda made: SegmentClient(made, events))
    client: Any = whole.client()
    payloads = [f"payload {index}".encode() for index in range(20)]
    added = client.enqueue(payloads)
    assert _left(whole) == {"jobs": 1, "state": 1, "ready": 1}
    got = []
    while claimed := client.claim(limit):
        got += claimed
        client.ack(claimed)
    assert [delivery.payload for delivery in got] == payloads
    assert [delivery.id for delivery in got] == [one.id for one in added]
    assert _left(whole) == {}
    whole.close()


def test_split(tmp_path):
    whole = Bare(tmp_path / "db", "os", lambda made: SegmentClient(made, "each"))
    client: Any = whole.client()
    client.enqueue([b"a", b"bb", b""])
    client.split(client.claim(3))
    assert _left(whole) == {"jobs": 3, "state": 3, "leases": 1, "lease_jobs": 1, "due": 1}
    whole.close()
