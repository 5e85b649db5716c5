"""`check` on what only a store on Redis keeps in this way: found, said, mended, and clean after that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.model.group import GroupPolicy
from tenure.model.ids import job_id_bytes
from tenure.model.job import NewJob
from tenure.model.retry import Policy
from tenure.testing.conformance.world import assert_sound
from tests.backends.redis.servers import RedisHarness, Server

pytestmark = pytest.mark.xdist_group("redis")


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    """With one of everything: a key, a claim with an id, a note, a rate."""
    with RedisHarness(server.url, [server]).open(clock=ManualClock()) as made:
        queue = made.queue("work")
        queue.configure(Policy(rate="100/s", retention=3600))
        queue.enqueue_many([NewJob(b"1", key="k"), b"2", b"3"])
        claim = queue.claim(2, lease=600, id="c")
        queue.progress(claim[0], 0.5, "half")
        queue.nack(claim[1], error="no")
        groups = made.queue("groups")
        groups.configure(Policy(group=GroupPolicy(max_leased=1)))
        groups.enqueue_many([NewJob(b"%d" % n, group="ab"[n % 2], priority=n % 3) for n in range(8)])
        groups.claim(1, lease=600)
        assert_sound(made)
        yield made


BREAKS: dict[str, tuple[str, str, list[Any]]] = {
    "a note of no job": ("orphan", "note", ["HSET", "notes", b"x" * 16 + b"e", b"gone"]),
    "a note its job does not know of": ("orphan", "note", ["HSET", "notes", "JOBr", b"result"]),
    "a key that cannot be read": ("damaged", "idempotency key", ["HSET", "dedup", b"d" * 16, b"short"]),
    "a key that is held for ever": ("due", "idempotency key", ["DEL", "dedupdue"]),
    "a key that is due and not held": ("orphan", "idempotency key", ["DEL", "dedup"]),
    "a claim that cannot be read": ("damaged", "claim's id", ["HSET", "claims", b"d" * 16, b"short"]),
    "a claim that is held for ever": ("due", "claim's id", ["DEL", "claimdue"]),
    "a claim that is due and not held": ("orphan", "claim's id", ["DEL", "claims"]),
    "a bucket that is none": ("damaged", "rate", ["SET", "bucket", b"full"]),
    "a bucket of tomorrow": ("damaged", "rate", ["SET", "bucket", (2**50).to_bytes(8, "big") + bytes(8)]),
}


@pytest.mark.parametrize("what", BREAKS)
def test_what_does_not_belong_is_found_and_mended(store: Store, what: str) -> None:
    rule, said, (command, name, *rest) = BREAKS[what]
    queue = store.queue("work")
    core = store._backend._core  # type: ignore[attr-defined]
    shard = core.shards.find(queue.name).shards[0]
    job = job_id_bytes(queue.list("leased").jobs[0].id)
    rest = [job + b"r" if part == "JOBr" else part for part in rest]
    key = shard.base + b":" + name.encode()
    core.commands.plain(key, command, key, *rest)
    found = store.check().findings
    assert found, what
    assert {finding.rule for finding in found} <= {rule, "due", "orphan"}
    assert any(finding.rule == rule and said in finding.detail for finding in found), found
    assert all(finding.repair for finding in store.check(repair=True).findings)
    assert_sound(store)
    assert queue.ack_many(queue.claim(2, lease=600, id="c2")).lost == []
    assert_sound(store)


GROUP_BREAKS: dict[str, tuple[str, list[Any]]] = {
    "a row that is damaged": ("damaged", ["HSET", "group", b"a", b"x" * 44]),
    "a row that is gone": ("group", ["HDEL", "group", b"a"]),
    "a name that is not listed": ("group", ["ZREM", "groups", b"a"]),
    "a name of no group": ("orphan", ["ZADD", "groups", 0, b"nobody"]),
    "a job that is not in its group": ("group", ["ZREM", "g0:a", "JOB"]),
    "a job in no group that has one": ("group", ["HDEL", "groupof", "JOB"]),
    "a job in another group": ("group", ["HSET", "groupof", "JOB", b"b"]),
    "a job that is not in the index": ("index", ["ZREM", "t10", "JOB"]),
    "turns that are gone": ("group", ["DEL", "turn0"]),
    "a state that is damaged": ("damaged", ["HSET", "state", "JOB", b"x" * 90]),
}


@pytest.mark.parametrize("what", GROUP_BREAKS)
def test_what_is_wrong_with_a_group_is_found_and_mended(store: Store, what: str) -> None:
    rule, (command, name, *rest) = GROUP_BREAKS[what]
    queue = store.queue("groups")
    core = store._backend._core  # type: ignore[attr-defined]
    key = core.shards.find(queue.name).shards[0].base + b":" + name.encode()
    job = next(job for job in queue.list("ready") if job.group == "a" and job.priority == 0)
    core.commands.plain(key, command, key, *[job_id_bytes(job.id) if part == "JOB" else part for part in rest])
    found = store.check().findings
    assert any(finding.rule == rule for finding in found), found
    assert all(finding.repair for finding in store.check(repair=True).findings)
    assert_sound(store)
    held = {group.group: group.leased for group in queue.groups()}
    assert sorted(held.values()) == [0, 1]
    served: list[str | None] = []
    while claim := queue.claim(8, lease=600):
        served += [queue.get(delivery.id).group for delivery in claim]  # type: ignore[union-attr]
        assert len(claim) <= 2
        queue.ack_many(claim)
        assert_sound(store)
    free = next(name for name, leased in held.items() if not leased)
    assert served == [free] * 4
