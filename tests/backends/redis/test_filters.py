"""Bloom filters: they save a read, and never decide."""

from __future__ import annotations

import os

import pytest

import tenure
from tenure.backends.redis.filters import RotatingFilter
from tenure.backends.redis.produce import LARGE_PAYLOAD
from tenure.clock import ManualClock
from tenure.errors import KeyConflict
from tenure.model.job import NewJob
from tenure.model.retry import Policy
from tests.backends.redis.servers import RedisHarness, Server

pytestmark = pytest.mark.xdist_group("redis")


def test_what_was_added_is_never_denied() -> None:
    found = RotatingFilter(ManualClock(), 1000, 0.01, 60)
    keys = [os.urandom(16) for _ in range(1000)]
    for key in keys:
        found.add(key)
    assert all(key in found for key in keys)
    wrong = sum(os.urandom(16) in found for _ in range(10_000))
    assert wrong < 300, "it is wrong far more often than one time in a hundred"
    assert 1000 < found.memory_bytes < 10_000


def test_it_turns_over_by_time_and_when_it_is_full() -> None:
    clock = ManualClock()
    found = RotatingFilter(clock, 100, 0.001, 60)
    found.add(b"first")
    clock.advance(61)
    found.add(b"second")
    assert b"first" in found
    clock.advance(61)
    found.add(b"third")
    assert b"first" not in found
    assert b"second" in found
    for n in range(250):
        found.add(b"%d" % n)
    assert b"third" not in found, "past its capacity it is turned over early"
    assert b"249" in found


def test_a_large_repeated_job_is_looked_for_before_it_is_sent(server: Server) -> None:
    with RedisHarness(server.url, [server]).open() as store:
        queue = store.queue("work")
        commands = store._backend._core.commands  # type: ignore[attr-defined]
        payload = os.urandom(LARGE_PAYLOAD)
        before = commands.trips
        first = queue.enqueue(payload, key="k")
        sent = commands.trips - before
        before = commands.trips
        again = queue.enqueue(payload, key="k")
        assert (again.id, again.duplicate) == (first.id, True)
        assert commands.trips - before == 1 <= sent, "a look, and nothing was sent"
        with pytest.raises(KeyConflict):
            queue.enqueue(os.urandom(LARGE_PAYLOAD), key="k")
        mixed = queue.enqueue_many([b"small", NewJob(payload, key="k"), NewJob(payload, key="l")])
        assert [e.duplicate for e in mixed] == [False, True, False]
        assert queue.counts().waiting == 3
        assert store._backend.filter_bytes > 100_000  # type: ignore[attr-defined]


def test_another_processs_key_is_found_by_the_step(server: Server) -> None:
    harness = RedisHarness(server.url, [server])
    payload = os.urandom(LARGE_PAYLOAD)
    with harness.open() as one, harness.open() as other:
        first = one.queue("work").enqueue(payload, key="k")
        again = other.queue("work").enqueue(payload, key="k")
        assert (again.id, again.duplicate) == (first.id, True)


def test_a_key_that_was_forgotten_is_new_whatever_the_filter_says(server: Server) -> None:
    clock = ManualClock()
    with RedisHarness(server.url, [server]).open(clock=clock) as store:
        queue = store.queue("work")
        payload = os.urandom(LARGE_PAYLOAD)
        first = queue.enqueue(payload, key="k")
        queue.ack(queue.claim()[0])
        clock.advance(2 * 86_400)
        again = queue.enqueue(payload, key="k")
        assert not again.duplicate
        assert again.id != first.id


def test_a_job_that_was_seen_gone_is_asked_for_by_a_plain_read(server: Server) -> None:
    with RedisHarness(server.url, [server]).open() as store:
        queue = store.queue("work")
        job = queue.enqueue(b"x")
        image = queue.get(job.id)
        assert queue.cancel(job.id)
        assert queue.get(job.id) is None
        client = server.client()
        client.config_resetstat()
        assert queue.get(job.id) is None
        asked = client.info("commandstats")
        assert "cmdstat_hexists" in asked
        assert "cmdstat_fcall" not in asked
        # It is there again: whatever the filter says, it is seen.
        assert image is not None
        assert queue.restore([image]).added == [job.id]
        found = queue.get(job.id)
        assert found is not None
        assert found.payload == b"x"


def test_ids_that_were_removed_are_not_removed_again_by_a_write(server: Server) -> None:
    harness = RedisHarness(server.url, [server], bloom_cleanup="true")
    with harness.open() as one, harness.open() as other:
        queue = one.queue("work")
        queue.configure(Policy(retention=3600))
        queue.enqueue_many([b"%d" % n for n in range(20)])
        claim = queue.claim(20)
        queue.ack_many(claim)
        tokens = {d.id: d.token for d in claim}
        half = dict(list(tokens.items())[:10])
        assert sorted(queue.discard(half, "done")) == sorted(half)
        assert queue.discard(half, "done") == []
        client = server.client()
        client.config_resetstat()
        assert queue.discard(half, "done") == []
        assert "cmdstat_fcall" not in client.info("commandstats"), "nothing is there, and nothing was written"
        # What the other still has to remove is removed, known or not, and what came back is too.
        assert sorted(other.queue("work").discard(tokens, "done")) == sorted(set(tokens) - set(half))
        assert queue.discard(tokens, "done") == []
        again = queue.enqueue(b"again")
        claim = queue.claim(1)
        assert queue.discard({again.id: claim[0].token}, "done") == [], "it has not ended"
        queue.ack(claim[0])
        assert queue.discard({again.id: claim[0].token}, "done") == [again.id]
        assert one.check().clean


def test_all_three_report_their_memory(server: Server) -> None:
    with tenure.open(f"{server.url}?prefix=three&bloom_cleanup=true&bloom_capacity=1000000", sweep=False) as store:
        assert 6e6 < store._backend.filter_bytes < 9e6  # type: ignore[attr-defined]


def test_it_can_be_turned_off(server: Server) -> None:
    with tenure.open(f"{server.url}?prefix=off&bloom_capacity=0", sweep=False) as store:
        assert store._backend.filter_bytes == 0  # type: ignore[attr-defined]
        assert store.queue("work").enqueue(bytes(LARGE_PAYLOAD), key="k").id
