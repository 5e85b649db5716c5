"""A connection that is dropped before or after any answer: whoever asks again acts once, whoever does not loses nothing.

One history goes through every verb. It is run once whole, to count its requests, and then once for each request and each
way of losing it (every third in a plain run, all in `make test-crash`). A client that asks again must end where the undisturbed one did; one that ends there and then (as if it
had been killed) must leave a sound store, in which every job it was told of is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

import tenure
from tenure.api.store import Store
from tenure.errors import Unavailable
from tenure.model.job import NewJob
from tenure.model.lease import Settle
from tenure.model.names import QueueName
from tenure.model.request import JobRequest
from tenure.model.retry import Backoff, Policy
from tenure.testing.conformance.world import assert_sound
from tests.backends.redis.proxy import Cut, Proxy
from tests.backends.redis.servers import RedisHarness, Server

pytestmark = pytest.mark.xdist_group("redis")
LONG = "CRASH_ROUNDS" in os.environ


@pytest.fixture(scope="module")
def proxy(server: Server) -> Iterator[Proxy]:
    made = Proxy(server.socket)
    yield made
    made.close()


class Told:
    """What the client was told before it ended."""

    def __init__(self) -> None:
        self.there: set[str] = set()


def history(store: Store, told: Told) -> None:
    """Every verb that writes, and the looks that go before some of them."""
    queue = store.queue("work")
    queue.configure(Policy(max_attempts=2, retention=3600, backoff=Backoff.fixed(0), max_waiting=100))
    made = [e.id for e in queue.enqueue_many([b"%d" % n for n in range(9)])]
    told.there.update(made)
    keyed = queue.enqueue_many([NewJob(b"k", key="k"), NewJob(b"k", key="k"), NewJob(b"low", priority=0, ttl=3600)])
    assert [e.duplicate for e in keyed] == [False, True, False]
    told.there.update(e.id for e in keyed)
    time.sleep(0.002)  # a job that is nacked in the millisecond of these would stand before them, by its id
    claim = queue.claim(limit=8, lease=600, id="c1")
    assert len(claim) == 8
    queue.progress(claim[0], 0.5, "half")
    queue.ack(claim[0], result=b"r")
    queue.nack(claim[1], error="again")
    queue.fail(claim[2], error="never")
    queue.release(claim[3])
    assert queue.extend(claim, 900).lost == []
    assert queue.cancel(claim[4].id)
    told.there.discard(claim[4].id)
    assert queue.settle_many([Settle("ack", claim[5].proof), Settle("fail", claim[6].proof, error="x")]) == [None, None]
    assert queue.replay().count == 2
    queue.fail(queue.claim(limit=1)[0], error="once more")
    dead = queue.list("dead").jobs
    told.there.difference_update(job.id for job in dead)
    assert queue.discard({job.id: job.token for job in dead}, "dead") == [job.id for job in dead]
    done = queue.list("done").jobs
    told.there.difference_update(job.id for job in done)
    assert queue.purge("done") == len(done)
    queue.pause()
    queue.resume()
    staged = store.staged("w")
    staged.begin(b"m")
    assert staged.publish(0, queue, [b"s1", b"s2"]).jobs == 2
    staged.finish()
    other = store.queue("other")
    other.restore(queue.list("ready").jobs[:2])
    assert store._backend.once(b"r1").enqueue(QueueName("default", "other"), [JobRequest(b"o")])[0].id
    store.sweep()
    store.cleanup()
    store.events(consumer="reader")
    store.forget_consumer("reader")


def picture(store: Store) -> Any:
    """What a store holds, in words that do not depend on ids and times."""
    seen: list[Any] = []
    for info in store.queues():
        queue = store.queue(info.queue, tenant=info.tenant)
        seen += [
            [(job.payload, job.attempt, job.token, job.replays, job.error, job.key) for job in queue.list(state)]
            for state in ("ready", "leased", "done", "dead")
        ]
        seen.append(info.counts)
    return seen, sorted(e.type for e in store.events())


def opened(proxy: Proxy, patience: float) -> tuple[Store, RedisHarness]:
    harness = RedisHarness(f"redis+unix://{proxy.socket}", [], patience=str(patience))
    return tenure.open(harness.url, sweep=False), harness


def requests_of(proxy: Proxy) -> tuple[int, Any]:
    store, _ = opened(proxy, 10)
    with store:
        proxy.arm(0, None)
        history(store, Told())
        count = proxy.requests
        return count, picture(store)


def steps(count: int, how: Cut) -> range:
    chosen = range(1, count + 1) if LONG else range(1 if how == "before" else 2, count + 1, 3)
    print(f"dropped {how} the answer of each of {len(chosen)} requests of {count}")
    return chosen


@pytest.fixture(scope="module")
def whole(proxy: Proxy) -> tuple[int, Any]:
    """How many requests the history has, and where it ends."""
    return requests_of(proxy)


@pytest.mark.crash
@pytest.mark.parametrize("how", ["before", "after"])
def test_a_client_that_asks_again_acts_once(proxy: Proxy, whole: tuple[int, Any], how: Cut) -> None:
    count, expected = whole
    assert count > 40
    for at in steps(count, how):
        store, _ = opened(proxy, 10)
        with store:
            proxy.arm(at, how)
            history(store, Told())
            assert proxy.cut, f"request {at} was never sent"
            proxy.arm(0, None)
            assert picture(store) == expected, f"the answer to request {at} was lost"
            assert_sound(store)


@pytest.mark.crash
@pytest.mark.parametrize("how", ["before", "after"])
def test_a_client_that_ends_there_leaves_a_sound_store(
    server: Server, proxy: Proxy, whole: tuple[int, Any], how: Cut
) -> None:
    count, _ = whole
    for at in steps(count, how):
        store, harness = opened(proxy, 0.01)
        told = Told()
        proxy.arm(at, how, for_good=True)
        with pytest.raises(Unavailable):
            history(store, told)
        proxy.arm(0, None)
        store.close()
        with tenure.open(f"{server.url}?prefix={harness.prefix}", sweep=False) as after:
            assert_sound(after)
            if told.there:
                there = {job.id for state in ("ready", "scheduled", "leased", "done", "dead")
                         for job in after.queue("work").list(state)}  # fmt: skip
                gone = {e.job_id for e in after.events() if e.state == "gone"}
                assert told.there <= there | gone, f"after request {at}"
                assert after.queue("work").counts().enqueued >= len(told.there)
