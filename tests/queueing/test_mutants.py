"""Assertions that mutation tests missed (`make mutation`): each of these changed an answer or a row, and no test failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tenure
from tenure import GroupPolicy, ManualClock, NewJob, Policy, Quota, Rate, Store
from tenure.errors import QuotaExceeded
from tenure.model.names import QueueName
from tenure.model.request import JobRequest
from tenure.model.write import Refusal
from tenure.queueing.flows import open_parents
from tenure.storage import keyspace
from tenure.testing.conformance.world import assert_sound
from tenure.testing.harness import backend_of
from tests.queueing.stored_rows import rows, write


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Iterator[Store]:
    with tenure.open("memory:", clock=clock, sweep=False) as opened:
        yield opened


def test_jobs_that_a_job_hands_over_count_together_for_a_quota(store: Store) -> None:
    """Each of the queues would have room; the tenant has not."""
    store.set_quota("acme", Quota(max_waiting=2))
    first = store.queue("first", tenant="acme")
    first.enqueue(b"x")
    (delivery,) = first.claim()
    following = [NewJob(b"y", queue=name) for name in ("b", "c", "d")]
    with pytest.raises(QuotaExceeded):
        first.ack(delivery, then=following)
    first.ack(delivery, then=following[:2])
    assert [store.queue(name, tenant="acme").counts().waiting for name in ("b", "c", "d")] == [1, 1, 0]
    assert_sound(store)


def test_a_list_of_queues_counts_ready_jobs_up_to_a_thousand(store: Store) -> None:
    queue = store.queue("work")
    queue.enqueue_many([NewJob(b"r")] * 1001 + [NewJob(b"s", delay=100)] * 1001)
    (info,) = store.queues()
    assert (info.counts.ready, info.counts.scheduled, info.counts.at_least) == (1000, 1002, True)


def test_a_write_that_is_forgotten_leaves_no_rows(store: Store, clock: ManualClock) -> None:
    backend = backend_of(store)
    held = store.queue("work").enqueue(b"first", key="k")
    before = rows(store, keyspace.META), rows(store, keyspace.DUE)
    backend.begin_write("write", b"manifest", keep_ms=60_000)
    backend.publish("write", 0, QueueName("default", "work"), [JobRequest(b"second")], [Refusal(0, held.id)])
    backend.finish_write("write")
    assert (rows(store, keyspace.META), rows(store, keyspace.DUE)) != before
    clock.advance(61)
    store.sweep()
    assert (rows(store, keyspace.META), rows(store, keyspace.DUE)) == before
    assert_sound(store)


def test_a_queue_that_is_deleted_leaves_no_rows_of_groups(store: Store) -> None:
    queue = store.queue("work")
    queue.configure(Policy(group=GroupPolicy(rate=Rate(1, per=3600))))
    queue.enqueue(b"x", group="g")
    queue.ack_many(queue.claim())
    assert rows(store, keyspace.GROUPS)  # its rate is used up, and it has no job
    assert store.delete_queue("work")
    assert rows(store, keyspace.GROUPS) == []
    assert_sound(store)


def test_a_stray_row_of_a_group_is_the_only_one_that_repair_deletes(store: Store) -> None:
    queue = store.queue("work")
    queue.enqueue_many([NewJob(b"x", group="g"), NewJob(b"y", group="h")])
    before = rows(store, keyspace.GROUP_READY)
    number, group, tier, visible_at_ms, job = keyspace.split_group_ready(before[0][0])
    write(
        store,
        lambda tx: tx.put(keyspace.GROUP_READY, keyspace.group_ready(number, group, tier, visible_at_ms + 1, job), b""),
    )
    found = store.check(repair=True).findings
    assert ("index", job.hex()) in [(finding.rule, finding.job_id) for finding in found]
    assert {finding.job_id for finding in found} <= {None, job.hex()}, "the other group's row is no fault"
    assert rows(store, keyspace.GROUP_READY) == before
    assert_sound(store)


def test_a_parent_whose_state_is_damaged_has_not_ended(store: Store) -> None:
    queue = store.queue("work")
    parent, child = queue.enqueue_many([NewJob(b"p", name="p"), NewJob(b"c", after=["#p"])])
    ((key, _),) = [row for row in rows(store, keyspace.STATE) if row[0].endswith(bytes.fromhex(parent.id))]
    write(store, lambda tx: tx.put(keyspace.STATE, key, b"damaged"))
    core: Any = backend_of(store)._core  # type: ignore[attr-defined]  # it is embedded
    number = int.from_bytes(key[:4], "big")
    assert core.read(lambda reader: open_parents(reader, number, bytes.fromhex(child.id))) == 1
