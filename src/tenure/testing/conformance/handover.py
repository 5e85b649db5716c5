"""`ack(then=…)` and `snooze`: follow-up jobs are enqueued in the transaction that settles the delivery."""

from __future__ import annotations

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import AlreadySettled, InvalidArgument, KeyConflict, LeaseLost, QueueFull, TenureError
from tenure.model.job import NewJob
from tenure.model.lease import Delivery, Settle
from tenure.model.request import JobRequest, follow_ups
from tenure.model.retry import Policy
from tenure.testing.conformance.world import KEEPING, PATIENCE, World, begin, event_types, seen
from tenure.testing.harness import backend_of


def one(queue: Queue, payload: bytes = b"parent") -> Delivery:
    queue.enqueue(payload)
    (delivery,) = queue.claim()
    return delivery


def ready_payloads(queue: Queue) -> list[bytes]:
    return [job.payload for job in queue.list("ready")]


def test_an_ack_hands_over(queue: Queue) -> None:
    delivery = one(queue)
    queue.ack(delivery, then=[b"child", NewJob(b"urgent", priority=9, headers={"from": delivery.id})])
    first, second = queue.claim(limit=2)
    assert (first.payload, first.priority, first.headers) == (b"urgent", 9, {"from": delivery.id})
    assert (second.payload, second.attempt) == (b"child", 1)
    counts = queue.counts()
    assert (counts.enqueued, counts.leased, counts.removed) == (3, 2, 1)


def test_a_hand_over_is_one_commit(queue: Queue) -> None:
    delivery = one(queue)
    queue.ack(delivery, then=[b"child"])
    (child,) = queue.list("ready")
    ended, begun = queue.timeline(delivery.id)[-1], queue.timeline(child.id)[0]
    assert (ended.type, begun.type, ended.commit) == ("done", "enqueued", begun.commit)


def test_a_hand_over_keeps_the_result(world: World) -> None:
    queue = world.queue(policy=KEEPING)
    delivery = one(queue)
    queue.ack(delivery, result=b"42", then=[b"child"])
    assert seen(queue, delivery.id).result == b"42"
    assert ready_payloads(queue) == [b"child"]


def test_a_hand_over_of_a_lost_delivery_enqueues_nothing(queue: Queue, clock: ManualClock) -> None:
    delivery = one(queue)
    clock.advance(31)
    with pytest.raises(LeaseLost):
        queue.ack(delivery, then=[b"child"])
    assert (ready_payloads(queue), queue.counts().enqueued) == ([], 1)


def test_a_hand_over_happens_once(world: World) -> None:
    queue = world.queue(policy=KEEPING)
    delivery = one(queue)
    queue.ack(delivery, then=[b"child"])
    with pytest.raises(AlreadySettled):
        queue.ack(delivery, then=[b"child"])
    assert ready_payloads(queue) == [b"child"]


def test_a_repeated_request_hands_over_once(queue: Queue, store: Store) -> None:
    delivery = one(queue)
    items = [Settle("ack", delivery.proof, then=follow_ups([b"child"]))]
    for _ in range(2):
        assert backend_of(store).once(b"request").settle(queue.name, items) == [None]
    assert ready_payloads(queue) == [b"child"]
    other = [Settle("ack", delivery.proof, then=follow_ups([b"another"]))]
    with pytest.raises(InvalidArgument):
        backend_of(store).once(b"request").settle(queue.name, other)


def test_a_hand_over_into_other_queues(world: World) -> None:
    if world.store.traits.flows != "tenant":
        pytest.skip("this store hands over within one queue")
    queue = world.queue(tenant="acme")
    delivery = one(queue)
    jobs = [NewJob(b"b", queue="b"), NewJob(b"c", queue="c"), NewJob(b"b2", queue="b"), NewJob(b"own", queue="work")]
    queue.ack(delivery, then=jobs)
    found = {name: ready_payloads(world.queue(name, tenant="acme")) for name in ("work", "b", "c")}
    assert found == {"work": [b"own"], "b": [b"b", b"b2"], "c": [b"c"]}
    numbers = [info.number for info in world.store.queues(tenant="acme")]
    assert len(set(numbers)) == 3


def test_a_hand_over_that_the_store_cannot_do_is_refused(world: World) -> None:
    if world.store.traits.flows == "tenant":
        pytest.skip("this store hands over to any queue")
    queue = world.queue()
    delivery = one(queue)
    with pytest.raises(InvalidArgument, match="stays within one queue"):
        queue.ack(delivery, then=[NewJob(b"b", queue="b")])
    queue.ack(delivery)
    assert ready_payloads(world.queue("b")) == []


@pytest.mark.parametrize("full", ["own", "other"])
def test_a_full_queue_refuses_the_whole_hand_over(world: World, full: str) -> None:
    if full == "other" and world.store.traits.flows != "tenant":
        pytest.skip("this store hands over within one queue")
    queue = world.queue()
    delivery = one(queue)
    target = queue if full == "own" else world.queue("other")
    target.configure(Policy(max_waiting=1))
    then = [NewJob(b"1", queue=target.name.queue), NewJob(b"2", queue=target.name.queue)]
    with pytest.raises(QueueFull):
        queue.ack(delivery, then=then)
    assert seen(queue, delivery.id).state == "leased"
    queue.ack(delivery, then=then[:1])
    assert ready_payloads(target) == [b"1"]


def test_a_key_conflict_names_the_place_in_then(queue: Queue) -> None:
    queue.enqueue(b"first", key="k")
    (held,) = queue.claim()
    delivery = one(queue)
    with pytest.raises(KeyConflict) as caught:
        queue.ack(delivery, then=[b"fine", NewJob(b"other", key="k")])
    assert (caught.value.index, caught.value.existing) == (1, held.id)
    queue.ack(delivery, then=[NewJob(b"first", key="k"), b"fine"])
    assert ready_payloads(queue) == [b"fine"]


def test_of_many_items_those_that_hold_hand_over(queue: Queue) -> None:
    deliveries = [one(queue, b"%d" % number) for number in range(3)]
    queue.ack(deliveries[1])
    then = follow_ups([NewJob(b"child", key="same")])
    outcomes: list[TenureError | None] = queue.settle_many([Settle("ack", d.proof, then=then) for d in deliveries])
    assert [isinstance(outcome, LeaseLost) for outcome in outcomes] == [False, True, False]
    assert ready_payloads(queue) == [b"child"]  # the second was a duplicate of the first


def test_then_is_a_list_of_jobs(queue: Queue) -> None:
    delivery = one(queue)
    for wrong in (b"child", [1], [NewJob(b"x", queue="a/b")], [b"x"] * 1001):
        with pytest.raises(InvalidArgument):
            queue.ack(delivery, then=wrong)  # type: ignore[arg-type]  # that is the point
    queue.ack(delivery, then=[])
    assert ready_payloads(queue) == []


def test_a_hand_over_wakes_a_waiting_claim(live: World) -> None:
    queue = live.queue()
    delivery = one(queue)
    future = begin(lambda: queue.claim(wait=PATIENCE))
    queue.ack(delivery, then=[b"child"])
    (child,) = future.result(PATIENCE)
    assert child.payload == b"child"


# ── snooze ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_snoozed_job_comes_back_later_uncounted(queue: Queue, clock: ManualClock) -> None:
    delivery = one(queue)
    queue.snooze(delivery, 60)
    job = seen(queue, delivery.id)
    assert (job.state, job.attempt) == ("scheduled", 0)
    clock.advance(59.9)
    assert not queue.claim()
    clock.advance(0.1)
    (again,) = queue.claim()
    assert (again.id, again.attempt) == (delivery.id, 1)
    assert again.token > delivery.token
    assert event_types(queue, delivery.id) == ["enqueued", "claimed", "released", "claimed"]


def test_a_lost_delivery_cannot_be_snoozed(queue: Queue, clock: ManualClock) -> None:
    delivery = one(queue)
    clock.advance(31)
    with pytest.raises(LeaseLost):
        queue.snooze(delivery, 60)
    with pytest.raises(InvalidArgument):
        queue.snooze(delivery, -1)


def test_follow_up_jobs_may_each_have_their_own_options(queue: Queue) -> None:
    """Follow-up jobs with different options are encoded one by one."""
    delivery = one(queue)
    jobs = tuple(JobRequest(b"%d" % number, priority=number) for number in range(10))
    assert queue.settle_many([Settle("ack", delivery.proof, then=jobs)]) == [None]
    assert [job.payload for job in queue.claim(limit=10)] == [b"%d" % number for number in range(9, -1, -1)]
