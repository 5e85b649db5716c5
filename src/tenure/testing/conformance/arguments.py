"""Bad arguments raise a typed error, and nothing is written."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.errors import InvalidArgument, TooLarge
from tenure.model.job import MAX_HEADERS_BYTES, MAX_PAYLOAD, Where
from tenure.testing.conformance.world import claimed, each_of, fill, kill, must_refuse

NAN, INF = math.nan, math.inf
#: Values that are no valid duration: not a number, too long, of the wrong type.
NO_DURATION: list[object] = [NAN, INF, -INF, 2**63, 2.0**63, -(2**63), "5", b"5", True, [5], timedelta(days=10**6)]
NEGATIVE: list[object] = [-1, -0.002, timedelta(seconds=-1)]
NO_COUNT: list[object] = [0, -1, 1.5, "1", True, NAN, None, 2**63]


def test_bad_names(store: Store) -> None:
    bad: list[object] = [
        "", "A", "Ä", "a b", "a/b", "a:b", ".a", "-a", "_a", "a" * 65, "a\n", "a\0", None, 17, b"a", "é", "a,b", "..",
    ]  # fmt: skip
    must_refuse(store, InvalidArgument, each_of(lambda name: store.queue(name), bad))
    # Identity providers choose tenants' names, and use more characters.
    tenants = [name for name in bad if name not in ("A", "a:b", "a" * 65)] + ["a" * 129, "{a}", "|a", "a%b", "a*"]
    must_refuse(store, InvalidArgument, each_of(lambda name: store.queue("work", tenant=name), tenants))
    must_refuse(store, InvalidArgument, each_of(lambda name: store.queues(name), [n for n in tenants if n is not None]))
    must_refuse(store, InvalidArgument, each_of(lambda name: store.claim([name]), bad))


def test_tenants_as_identity_providers_name_them(store: Store) -> None:
    names = ["ACME", "acme", "org_AbC123", "auth0|12", "a@b.com", "urn:x:1+y=z~", "a" * 128]
    for name in names:
        store.queue("work", tenant=name).enqueue(name.encode())
    assert {q.tenant for q in store.queues()} == set(names)
    for name in names:
        assert [d.payload for d in store.queue("work", tenant=name).claim(limit=9)] == [name.encode()]


def test_good_names(store: Store) -> None:
    good = ["a", "0", "a" * 64, "a.b-c_d", "9.", "a--", "x_"]
    for name in good:
        store.queue(name, tenant=name).enqueue(b"x")
    assert [(q.tenant, q.queue) for q in store.queues()] == sorted((name, name) for name in good) or {
        (q.tenant, q.queue) for q in store.queues()
    } == {(name, name) for name in good}


def test_enqueue_refuses_bad_arguments(store: Store, queue: Queue) -> None:
    fill(queue, 1)
    put = queue.enqueue
    must_refuse(store, InvalidArgument, each_of(lambda v: put(b"x", delay=v), NO_DURATION + NEGATIVE))
    must_refuse(store, InvalidArgument, each_of(lambda v: put(b"x", ttl=v), [*NO_DURATION, *NEGATIVE, 0]))
    no_moment = [NAN, INF, -1, 2**63, "2027", datetime(2027, 1, 1), True, timedelta(1)]  # noqa: DTZ001 - no zone: refused
    must_refuse(store, InvalidArgument, each_of(lambda v: put(b"x", at=v), no_moment))
    must_refuse(store, InvalidArgument, each_of(lambda v: put(b"x", priority=v), [-1, 10, 1.5, "5", None, True, NAN]))
    must_refuse(store, InvalidArgument, each_of(lambda v: put(b"x", max_attempts=v), [0, -1, 1.5, "3", True, 2**63]))
    must_refuse(store, InvalidArgument, each_of(lambda v: put(b"x", key=v), ["", 17, b"k", "k" * 513, "\ud800"]))
    headers = [{"a": 1}, {1: "a"}, {"a": None}, ["a"], "a", {"a": b"b"}, {"\ud800": "x"}]
    must_refuse(store, InvalidArgument, each_of(lambda v: put(b"x", headers=v), headers))
    must_refuse(store, InvalidArgument, each_of(lambda v: put(v), ["text", None, 17, {"a": 1}, ["x"]]))
    must_refuse(store, InvalidArgument, [lambda: put(b"x", delay=1, at=2_000_000_000)])
    must_refuse(store, InvalidArgument, each_of(lambda v: queue.enqueue_many(v), [["text"], [b"x", None], b"abc"]))
    must_refuse(
        store,
        TooLarge,
        [lambda: put(bytes(MAX_PAYLOAD + 1)), lambda: put(b"x", headers={"a": "b" * MAX_HEADERS_BYTES})],
    )


def test_claim_refuses_bad_arguments(store: Store, queue: Queue) -> None:
    fill(queue, 3)
    take = queue.claim
    must_refuse(store, InvalidArgument, each_of(lambda v: take(limit=v), [*NO_COUNT, 10_001]))
    must_refuse(store, InvalidArgument, each_of(lambda v: take(lease=v), [*NO_DURATION, *NEGATIVE, 0, timedelta(0)]))
    must_refuse(store, InvalidArgument, each_of(lambda v: take(wait=v), NO_DURATION + NEGATIVE))
    must_refuse(store, InvalidArgument, each_of(lambda v: take(worker=v), [17, b"w", "w" * 65, "\ud800"]))
    must_refuse(store, InvalidArgument, each_of(lambda v: take(max_bytes=v), [0, -1, 1.5, "1", True, NAN]))
    must_refuse(store, InvalidArgument, each_of(lambda v: take(id=v), ["", 17, b"c", "c" * 257, "\ud800"]))
    must_refuse(store, InvalidArgument, each_of(lambda v: store.claim(["work"], limit=v), NO_COUNT))
    must_refuse(store, InvalidArgument, each_of(lambda v: store.claim(["work"], lease=v), [0, -1, NAN, 2**63]))
    assert len(take(limit=3)) == 3


def test_settling_refuses_bad_arguments(store: Store, queue: Queue) -> None:
    fill(queue, 1)
    held = claimed(queue, lease=600)
    must_refuse(store, InvalidArgument, each_of(lambda v: queue.nack(held, delay=v), NO_DURATION + NEGATIVE))
    must_refuse(store, InvalidArgument, each_of(lambda v: queue.extend(held, v), [*NO_DURATION, *NEGATIVE, 0]))
    must_refuse(store, InvalidArgument, each_of(lambda v: queue.ack(held, result=v), ["text", 17, {"a": 1}, ["x"]]))
    must_refuse(
        store, InvalidArgument, each_of(lambda v: queue.progress(held, v), [-0.1, 1.1, NAN, INF, "0.5", None, True])
    )
    must_refuse(store, TooLarge, [lambda: queue.ack(held, result=bytes(MAX_PAYLOAD + 1))])
    queue.ack(held)


def test_queries_refuse_bad_arguments(store: Store, queue: Queue) -> None:
    (job_id,) = fill(queue, 1)
    no_id: list[object] = [
        "",
        "x" * 32,
        job_id[:-1],
        job_id + "0",
        17,
        None,
        b"x" * 16,
        job_id.encode(),
        "work",
        "-" * 36,
    ]
    for verb in (queue.get, queue.timeline, queue.cancel, queue.wait_for):
        must_refuse(store, InvalidArgument, each_of(verb, no_id))
    must_refuse(store, InvalidArgument, each_of(lambda v: queue.wait_for(job_id, v), NO_DURATION + NEGATIVE))
    must_refuse(store, InvalidArgument, each_of(lambda v: queue.list(v), ["", "waiting", "READY", None, 3, "gone"]))
    must_refuse(store, InvalidArgument, each_of(lambda v: queue.list("ready", limit=v), NO_COUNT))
    must_refuse(store, InvalidArgument, each_of(lambda v: store.events(limit=v), NO_COUNT))
    must_refuse(store, InvalidArgument, each_of(lambda v: store.events(wait=v), NO_DURATION + NEGATIVE))
    must_refuse(store, InvalidArgument, each_of(lambda v: store.events(consumer=v), ["", "A", "a b", 17]))
    must_refuse(store, InvalidArgument, each_of(lambda v: store.upcoming(v), [NAN, -1, "soon", 2**63]))
    must_refuse(store, InvalidArgument, each_of(lambda v: store.upcoming(limit=v), NO_COUNT))


def test_admin_verbs_refuse_bad_arguments(store: Store, queue: Queue) -> None:
    dead = kill(queue, 2)
    fill(queue, 1)
    claimed(queue, lease=600)
    again = queue.replay
    must_refuse(
        store, InvalidArgument, each_of(lambda v: again(ids=v), [dead[0], [17], ["x"], [None], dead[0].encode()])
    )
    must_refuse(store, InvalidArgument, each_of(lambda v: again(limit=v), [n for n in NO_COUNT if n is not None]))
    must_refuse(store, InvalidArgument, each_of(lambda v: again(rate=v), [0, -1, NAN, INF, "5", 2**63]))
    wheres: list[object] = [
        {"error": "x"}, "Timeout", Where(reason="bored"), Where(since=NAN), Where(before=-1), Where(since="yesterday"),  # type: ignore[arg-type]
        Where(before=datetime(2027, 1, 1)),  # noqa: DTZ001 - no zone: refused
    ]  # fmt: skip
    must_refuse(store, InvalidArgument, each_of(lambda v: again(where=v), wheres))
    must_refuse(store, InvalidArgument, each_of(lambda v: queue.purge(v), ["leased", "", "waiting", None, "all"]))
    must_refuse(store, InvalidArgument, each_of(lambda v: store.cleanup(before=v), [NAN, -1, "soon", INF]))
    must_refuse(store, InvalidArgument, each_of(lambda v: store.cleanup(limit=v), NO_COUNT))
    assert queue.counts().dead == 2
