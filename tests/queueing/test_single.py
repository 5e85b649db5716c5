"""The straight-line verbs for one job write the very rows that the general verbs write."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import tenure
from tenure import Backoff, InvalidArgument, LeaseLost, ManualClock, Policy
from tenure.model.lease import ClaimRequest, Settle
from tenure.model.request import JobRequest
from tenure.queueing import single
from tenure.storage import keyspace
from tenure.storage.engine import iterate

#: What all ways to a straight-line verb come to.
STRAIGHT = ("enqueue_plain", "claim_one", "ack_one")


class Counted:
    """Ids that two stores hand out alike."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def take(self, now_ms: int, count: int) -> list[bytes]:
        return [next(self._numbers).to_bytes(16, "big") for _ in range(count)]

    def one(self, now_ms: int) -> bytes:
        return self.take(now_ms, 1)[0]

    def renew(self) -> None:
        pass


def core(store) -> Any:
    return store._backend._core


def everything(store):
    with store._backend._engine.snapshot() as reader:
        return {
            name: [row for rows in iterate(reader, space, b"", keyspace.LAST) for row in rows if row[0] != b"store"]
            for space, name in enumerate(keyspace.NAMES)
        }  # but for their ids


@pytest.fixture
def pair(tmp_path):
    """Two stores of the same history: one with the straight-line verbs, one without."""
    stores = []
    for side in ("quick", "general"):
        store = tenure.open(f"rocksdb:{tmp_path / side}", clock=ManualClock(), sweep=False)
        core(store).ids = Counted()
        stores.append(store)
    yield stores
    for store in stores:
        assert store.check().clean
        store.close()


def in_general(monkeypatch, work):
    """Do it with every straight-line verb declining. A queue's handle takes them when it is made: it must be made here."""
    with monkeypatch.context() as patch:
        for verb in STRAIGHT:
            patch.setattr(single, verb, lambda *args: single.UNUSUAL)
        return work()


def lives(store, seen):
    """A bit of everything, one job at a time; what the verbs answered goes to `seen`."""
    queue = store.queue("work")
    clock = core(store).clock
    queue.configure(Policy(lease=10, max_attempts=3, backoff=Backoff.fixed(1)))
    jobs: list[tuple[bytes, dict[str, Any]]] = [
        (b"plain", {}),
        (b"", {"priority": 9}),
        (b"later", {"delay": 2}),
        (b"large" * 20_000, {}),
        (b"keyed", {"key": "k"}),
        (b"told", {"headers": {"a": "b"}}),
        (b"mortal", {"ttl": 1}),
        (b"thrice", {"max_attempts": 7, "priority": 3}),
    ]
    for payload, options in jobs:
        seen.append(queue.enqueue(payload, **options))
    clock.advance(1.5)
    for worker in ("", "w1", "wörker", "", "", "", ""):
        claim = queue.claim(worker=worker)
        seen.append([(d.id, d.payload, d.attempt, d.token, d.headers, d.key, d.receipt) for d in claim])
        for delivery in claim:
            if delivery.payload == b"told":
                queue.nack(delivery, error="no")
            elif delivery.payload != b"plain":
                seen.append(queue.ack(delivery))
    clock.advance(11)
    claim = queue.claim(worker="late")
    seen.append([(d.id, d.attempt, d.token) for d in claim])
    queue.ack(claim[0])
    for number in range(3):
        queue.enqueue(b"%d" % number)
    several = queue.claim(limit=3, worker="several")
    for delivery in several:  # of one lease, each by itself
        seen.append(queue.ack(delivery))
        with pytest.raises(LeaseLost):
            queue.ack(delivery)
    queue.configure(Policy(retention=60, backoff=Backoff.fixed(1)))
    claim = queue.claim()
    queue.ack(claim[0])
    seen.append(queue.counts())
    seen.append(queue.claim(limit=1, max_bytes=1).deliveries)


def test_both_ways_write_the_same_rows(pair, monkeypatch):
    quick, general = pair
    answers: list[list[object]] = [[], []]
    lives(quick, answers[0])
    in_general(monkeypatch, lambda: lives(general, answers[1]))
    assert answers[0] == answers[1]
    left, right = everything(quick), everything(general)
    for name in keyspace.NAMES:
        assert left[name] == right[name], name


def requests(store, seen):
    """Single verbs under ids, each asked for twice: the first outcome is kept with its effect."""
    backend, name = store._backend, store.queue("work").name
    ids = (number.to_bytes(16, "big") for number in itertools.count(1))
    clock = core(store).clock

    def twice(work):
        once = backend.once(next(ids))
        first, again = work(once), work(once)
        assert first == again
        seen.append(first)
        return first

    jobs = [JobRequest(b"plain"), JobRequest(b"later", delay_ms=1000), JobRequest(b"told", headers={"a": "b"})]
    for job in [JobRequest(b"first"), *jobs, JobRequest(b"last", priority=9)]:
        twice(lambda once, job=job: once.enqueue(name, [job]))
    for worker in ("", "w1", "w2"):
        leased = twice(lambda once, worker=worker: once.claim([name], ClaimRequest(1, None, 0, worker)))
        item = Settle("ack", leased.deliveries[0].proof)
        twice(lambda once, item=item: once.settle(name, [item]))
        assert isinstance(backend.once(next(ids)).settle(name, [item])[0], LeaseLost)
    backend.enqueue(name, [JobRequest(b"one"), JobRequest(b"two")])
    several = twice(lambda once: once.claim([name], ClaimRequest(2)))
    for item in [Settle("ack", delivery.proof) for delivery in several.deliveries]:
        twice(lambda once, item=item: once.settle(name, [item]))
    clock.advance(2)
    leased = backend.once(next(ids)).claim([name], ClaimRequest(1))
    clock.advance(40)
    with pytest.raises(InvalidArgument):
        backend.once((1).to_bytes(16, "big")).enqueue(name, [JobRequest(b"another")])
    seen.append(backend.counts(name))


def test_both_ways_remember_the_same(pair, monkeypatch):
    quick, general = pair
    answers: list[list[object]] = [[], []]
    requests(quick, answers[0])
    in_general(monkeypatch, lambda: requests(general, answers[1]))
    assert answers[0] == answers[1]
    left, right = everything(quick), everything(general)
    assert left["requests"]
    assert left["claims"]
    for name in keyspace.NAMES:
        assert left[name] == right[name], name


def test_plain_jobs_do_go_the_straight_way(pair, monkeypatch):
    """Or else the test above compares the general verbs with themselves."""
    store, _ = pair
    taken = []
    for verb in STRAIGHT:
        real = getattr(single, verb)

        def watched(*args, real=real, verb=verb):
            answer = real(*args)
            if answer is not single.UNUSUAL:
                taken.append(verb.partition("_")[0])
            return answer

        monkeypatch.setattr(single, verb, watched)
    queue = store.queue("work")
    for _ in range(3):  # the first makes the queue and learns where its jobs are, and goes the general way
        queue.enqueue(b"x")
        queue.ack(queue.claim()[0])
    assert taken == ["ack", *["enqueue", "claim", "ack"] * 2]
    backend = store._backend
    (added,) = backend.once(b"a" * 16).enqueue(queue.name, [JobRequest(b"x")])
    leased = backend.once(b"b" * 16).claim([queue.name], ClaimRequest(1))
    assert leased.deliveries[0].id == added.id
    assert backend.once(b"c" * 16).settle(queue.name, [Settle("ack", leased.deliveries[0].proof)]) == [None]
    assert taken == ["ack", *["enqueue", "claim", "ack"] * 3]
    taken.clear()
    queue.enqueue_many([b"x"] * 3)
    for delivery in queue.claim(limit=3):
        queue.ack(delivery)
    assert taken == ["ack"] * 3
