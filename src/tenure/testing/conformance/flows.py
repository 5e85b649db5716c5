"""Flows: jobs that wait for parents (`NewJob(after=…)`), graphs in one call, parents' results."""

from __future__ import annotations

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import InvalidArgument, KeyConflict, QueueFull
from tenure.model.job import Enqueued, NewJob
from tenure.model.retry import Policy
from tenure.testing.conformance.world import KEEPING, PATIENCE, PROMPT, World, begin, event_types, must_refuse
from tenure.testing.harness import backend_of


@pytest.fixture
def flowing(world: World) -> World:
    """A store on which a job can wait for any job of its queue."""
    if world.store.traits.flows == "partition":
        pytest.skip("the jobs of a flow are in one partition here, and these tests do not choose one")
    return world


@pytest.fixture
def far(flowing: World) -> World:
    """A store on which a job can wait for jobs of other queues."""
    if flowing.store.traits.flows != "tenant":
        pytest.skip("a flow stays within one queue on this store")
    return flowing


def states(queue: Queue, jobs: list[Enqueued]) -> list[str]:
    return [job.state if (job := queue.get(each.id)) is not None else "gone" for each in jobs]


def done(queue: Queue, payload: bytes, result: bytes | None = None) -> str:
    """Claim the next job, which must have this payload, and ack it."""
    (delivery,) = queue.claim()
    assert delivery.payload == payload
    queue.ack(delivery, result=result)
    return delivery.id


def failed(queue: Queue, payload: bytes) -> str:
    (delivery,) = queue.claim()
    assert delivery.payload == payload
    queue.fail(delivery, "broken")
    return delivery.id


# ── blocked, and no longer ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_waits_until_all_its_parents_are_done(flowing: World) -> None:
    queue = flowing.queue()
    parents = queue.enqueue_many([b"a", b"b"])
    child = queue.enqueue(NewJob(b"child", after=parents))
    assert states(queue, [child]) == ["blocked"]
    assert (queue.counts().blocked, queue.counts().waiting) == (1, 2)
    assert [job.id for job in queue.list("blocked")] == [child.id]
    done(queue, b"a")
    assert states(queue, [child]) == ["blocked"]
    done(queue, b"b")
    assert queue.counts().blocked == 0
    done(queue, b"child")
    assert event_types(queue, child.id) == ["enqueued", "unblocked", "claimed", "done"]


def test_the_commit_that_ends_the_last_parent_releases_the_child(flowing: World) -> None:
    queue = flowing.queue()
    parent = queue.enqueue(b"a")
    child = queue.enqueue(NewJob(b"child", after=[parent.id]))
    done(queue, b"a")
    assert queue.timeline(parent.id)[-1].commit == queue.timeline(child.id)[-1].commit


def test_many_parents_settled_at_once_release_the_child_once(flowing: World) -> None:
    queue = flowing.queue()
    parents = queue.enqueue_many([NewJob(b"p") for _ in range(30)])
    child = queue.enqueue(NewJob(b"child", after=parents))
    with queue.claim(limit=30) as claim:
        assert not queue.ack_many(list(claim)).lost
    done(queue, b"child")
    assert event_types(queue, child.id).count("unblocked") == 1


def _with_callback(queue: Queue, parents: int, policy: str) -> tuple[list[Enqueued], Enqueued]:
    """Enqueue parents, and a job that waits for all of them."""
    *made, child = queue.enqueue_many(
        [
            *(NewJob(b"%d" % n, name=str(n)) for n in range(parents)),
            NewJob(b"callback", after=[f"#{n}" for n in range(parents)], on_parent_dead=policy),  # type: ignore[arg-type]
        ]
    )
    return made, child


@pytest.mark.parametrize("policy", ["run", "wait"])
def test_a_callback_of_many_parents_that_end_in_many_ways(flowing: World, clock: ManualClock, policy: str) -> None:
    queue = flowing.queue(policy=PROMPT)
    made, child = _with_callback(queue, 230, policy)
    assert [parent.id for parent in queue.parents(child.id)] == [parent.id for parent in made]
    assert [waiting.id for waiting in queue.children(made[117].id)] == [child.id]
    first, *some = queue.claim(limit=120)
    queue.fail(first, "broken")  # dead: ended for "run", and not for "wait"
    queue.nack(some[0], "once more", delay=0)
    queue.ack(some[1], result=b"kept")
    queue.release(some[2])
    queue.ack_many(some[3:])
    while claim := queue.claim(limit=50):
        assert child.id not in [delivery.id for delivery in claim]
        queue.ack_many(list(claim))
        if policy == "run" and states(queue, [child]) == ["ready"]:
            break
    assert states(queue, [child]) == ["ready" if policy == "run" else "blocked"]
    assert queue.replay([first.id]).count == 1
    last = {delivery.id: delivery for delivery in queue.claim(limit=2)}
    assert set(last) == ({first.id, child.id} if policy == "run" else {first.id})
    queue.ack(last[first.id])
    if policy == "wait":
        (delivery,) = queue.claim()
        last[delivery.id] = delivery
    assert sum(parent.result == b"kept" for parent in queue.parents(child.id)) == 1
    queue.ack(last[child.id])
    assert [event.type for event in queue.timeline(child.id)].count("unblocked") == 1
    assert not queue.claim()


@pytest.mark.parametrize("how", ["fail", "cancel"])
def test_one_of_many_parents_that_ends_badly_cancels_the_callback(flowing: World, how: str) -> None:
    queue = flowing.queue(policy=PROMPT)
    made, child = _with_callback(queue, 120, "cancel")
    queue.ack_many(list(queue.claim(limit=60)))
    if how == "fail":
        queue.fail(next(iter(queue.claim())), "broken")
    else:
        assert queue.cancel(made[100].id)
    assert states(queue, [child]) == ["gone"]
    while claim := queue.claim(limit=50):
        queue.ack_many(list(claim))
    assert queue.counts().blocked == 0


def test_two_callbacks_share_some_of_many_parents(flowing: World) -> None:
    queue = flowing.queue(policy=PROMPT)
    jobs = [NewJob(b"%d" % n, name=str(n)) for n in range(150)]
    for start, end in ((0, 100), (40, 150)):
        jobs.append(NewJob(b"to %d" % end, after=[f"#{n}" for n in range(start, end)]))
    *made, first, second = queue.enqueue_many(jobs)
    assert {job.id for job in queue.children(made[50].id)} == {first.id, second.id}
    assert [job.id for job in queue.children(made[0].id)] == [first.id]
    later = queue.enqueue(NewJob(b"later", after=[made[50], made[149]]))
    assert len(queue.children(made[50].id)) == 3
    early = {job.id for job in made[:100]}
    claim = list(queue.claim(limit=150))
    queue.ack_many([delivery for delivery in claim if delivery.id in early])
    assert states(queue, [first, second, later]) == ["ready", "blocked", "blocked"]
    queue.ack_many([delivery for delivery in claim if delivery.id not in early])
    assert states(queue, [first, second, later]) == ["ready", "ready", "ready"]


def test_a_graph_is_one_call(flowing: World) -> None:
    queue = flowing.queue()
    jobs = queue.enqueue_many([
        NewJob(b"report", after=["#left", "#right"]),
        NewJob(b"left", name="left", after=["#fetch"]),
        NewJob(b"right", name="right", after=["#fetch"]),
        NewJob(b"fetch", name="fetch"),
    ])  # fmt: skip
    assert states(queue, jobs) == ["blocked", "blocked", "blocked", "ready"]
    for payload in (b"fetch", b"left", b"right", b"report"):
        done(queue, payload)


def test_a_graph_over_several_queues(far: World) -> None:
    a, b = far.queue("a"), far.queue("b")
    first, second, third = a.enqueue_many([
        NewJob(b"1", name="one"), NewJob(b"2", queue="b", name="two", after=["#one"]), NewJob(b"3", after=["#two"]),
    ])  # fmt: skip
    assert states(b, [second]) == ["blocked"]
    done(a, b"1")
    done(b, b"2")
    done(a, b"3")
    assert states(a, [first, third]) == ["gone", "gone"]


def test_an_unblocked_job_wakes_a_waiting_claim(live: World) -> None:
    reach = live.store.traits.flows
    if reach == "partition":
        pytest.skip("the jobs of a flow are in one partition here, and these tests do not choose one")
    a, b = live.queue("a"), live.queue("b" if reach == "tenant" else "a")
    parent = a.enqueue(b"parent")
    (delivery,) = a.claim()
    b.enqueue(NewJob(b"child", after=[parent]))
    future = begin(lambda: b.claim(wait=PATIENCE))
    a.ack(delivery)
    (child,) = future.result(PATIENCE)
    b.ack(child)


def test_a_delay_counts_from_the_enqueue(flowing: World, clock: ManualClock) -> None:
    queue = flowing.queue()
    parent = queue.enqueue(b"parent")
    queue.enqueue(NewJob(b"child", after=[parent], delay=60))
    clock.advance(10)
    done(queue, b"parent")
    assert not queue.claim()
    clock.advance(50)
    done(queue, b"child")


def test_a_blocked_job_past_its_ttl_is_removed(flowing: World, clock: ManualClock) -> None:
    queue = flowing.queue()
    parent = queue.enqueue(b"parent")
    child = queue.enqueue(NewJob(b"child", after=[parent], ttl=60))
    clock.advance(61)
    flowing.store.sweep()
    assert states(queue, [parent, child]) == ["ready", "gone"]
    assert event_types(queue, child.id) == ["enqueued", "ttl_passed"]


# ── parents that were there before ───────────────────────────────────────────────────────────────────────────────────


def test_parents_that_are_done_and_kept_count_as_ended(flowing: World) -> None:
    queue = flowing.queue(policy=KEEPING)
    parent = queue.enqueue(b"parent")
    done(queue, b"parent", b"result")
    child = queue.enqueue(NewJob(b"child", after=[parent]))
    assert states(queue, [child]) == ["ready"]
    assert [p.result for p in queue.parents(child.id)] == [b"result"]


@pytest.mark.parametrize("policy", ["cancel", "run", "wait"])
def test_a_parent_that_is_dead_already(flowing: World, policy: str) -> None:
    queue = flowing.queue()
    parent = queue.enqueue(b"parent")
    failed(queue, b"parent")
    job = NewJob(b"child", after=[parent], on_parent_dead=policy)  # type: ignore[arg-type]
    if policy == "cancel":
        with pytest.raises(InvalidArgument, match="is dead"):
            queue.enqueue(job)
        return
    child = queue.enqueue(job)
    assert states(queue, [child]) == ["ready" if policy == "run" else "blocked"]
    queue.replay([parent.id])
    deliveries = queue.claim(limit=2)
    queue.ack_many(list(deliveries))
    if policy == "wait":
        done(queue, b"child")
    assert queue.counts().removed == 2


def test_a_parent_that_was_dead_already_counts_once(flowing: World) -> None:
    """A dead parent counts when the child is enqueued: done after a replay, it must not count for another parent."""
    queue = flowing.queue()
    dead, other = queue.enqueue(b"dead"), queue.enqueue(b"other", priority=1, delay=60)
    failed(queue, b"dead")
    child = queue.enqueue(NewJob(b"child", after=[dead, other], on_parent_dead="run"))
    queue.replay([dead.id])
    done(queue, b"dead")
    assert states(queue, [child]) == ["blocked"]


def test_a_parent_named_twice_counts_once(flowing: World) -> None:
    queue = flowing.queue()
    parent = queue.enqueue(b"parent", key="k")
    _, child = queue.enqueue_many(
        [NewJob(b"parent", key="k", name="again"), NewJob(b"child", after=["#again", parent.id, parent])]
    )
    assert len(queue.parents(child.id)) == 1
    done(queue, b"parent")
    done(queue, b"child")


def test_a_parent_that_is_leased(flowing: World) -> None:
    queue = flowing.queue()
    queue.enqueue_many([b"%d" % number for number in range(20)])  # which may be stored together
    claim = queue.claim(limit=20)
    deliveries = list(claim)
    queue.enqueue(NewJob(b"child", after=[delivery.id for delivery in deliveries[:2]]))
    assert not queue.ack_many(deliveries[1:]).lost
    assert not queue.claim()
    queue.ack(deliveries[0])
    done(queue, b"child")


def test_invalid_parents_are_refused(flowing: World) -> None:
    queue, other = flowing.queue(), flowing.queue(tenant="other")
    gone = queue.enqueue(b"gone")
    done(queue, b"gone")
    foreign = other.enqueue(b"foreign")
    wrong = (
        NewJob(b"x", after=[gone]),
        NewJob(b"x", after=[foreign]),
        NewJob(b"x", after=["00" * 16]),
        NewJob(b"x", after=["#nobody"]),
        NewJob(b"x", after=["nonsense"]),
        NewJob(b"x", name="self", after=["#self"]),
        NewJob(b"x", after="#nobody"),
        NewJob(b"x", after=[1]),  # type: ignore[list-item]  # that is the point
        NewJob(b"x", on_parent_dead="shrug"),  # type: ignore[arg-type]
    )
    must_refuse(flowing.store, InvalidArgument, [lambda job=job: queue.enqueue(job) for job in wrong])  # type: ignore[misc]
    circle = [
        NewJob(b"a", name="a", after=["#c"]),
        NewJob(b"b", name="b", after=["#a"]),
        NewJob(b"c", name="c", after=["#b"]),
    ]
    twice = [NewJob(b"a", name="a"), NewJob(b"b", name="a")]
    must_refuse(flowing.store, InvalidArgument, [lambda: queue.enqueue_many(circle), lambda: queue.enqueue_many(twice)])


def test_a_store_whose_flows_stay_in_one_queue_says_so(world: World) -> None:
    if world.store.traits.flows == "tenant":
        pytest.skip("a flow reaches any queue on this store")
    queue, other = world.queue(), world.queue("other")
    parent = other.enqueue(b"parent")
    wrong = (NewJob(b"x", after=[parent]), NewJob(b"x", queue="other"))
    must_refuse(world.store, InvalidArgument, [lambda job=job: queue.enqueue(job) for job in wrong])  # type: ignore[misc]


def test_the_delivery_that_hands_over_may_be_the_parent(flowing: World) -> None:
    queue = flowing.queue(policy=Policy(result_retention=0))
    queue.enqueue(b"parent")
    (delivery,) = queue.claim()
    queue.ack(delivery, result=b"42", then=[NewJob(b"child", after=[delivery.id])])
    (child,) = queue.claim()
    assert [parent.result for parent in queue.parents(child)] == [b"42"]


def test_a_parent_tells_which_jobs_wait_for_it(flowing: World) -> None:
    queue = flowing.queue(policy=KEEPING)
    parent = queue.enqueue(b"parent")
    children = queue.enqueue_many([NewJob(b"%d" % n, after=[parent]) for n in range(3)])
    assert {(child.id, child.state) for child in queue.children(parent.id)} == {(c.id, "blocked") for c in children}
    assert len(queue.children(parent.id, limit=2)) == 2
    done(queue, b"parent")
    assert {child.state for child in queue.children(parent.id)} == {"ready"}
    assert queue.children(children[0].id) == []
    must_refuse(
        flowing.store, InvalidArgument, [lambda: queue.children("x"), lambda: queue.children(parent.id, limit=0)]
    )


# ── parents that die, or are removed ─────────────────────────────────────────────────────────────────────────────────


def test_a_dead_parent_cancels_its_descendants(flowing: World) -> None:
    queue = flowing.queue()
    jobs = queue.enqueue_many([
        NewJob(b"a", name="a"), NewJob(b"b", name="b", after=["#a"]), NewJob(b"c", after=["#b", "#a"]), NewJob(b"free"),
    ])  # fmt: skip
    failed(queue, b"a")
    assert states(queue, jobs) == ["dead", "gone", "gone", "ready"]
    assert event_types(queue, jobs[2].id) == ["enqueued", "cancelled"]


def test_a_dead_parent_counts_where_the_child_says_run(flowing: World) -> None:
    queue = flowing.queue()
    first, second, child = queue.enqueue_many([
        NewJob(b"a", name="a"), NewJob(b"b", name="b"), NewJob(b"c", after=["#a", "#b"], on_parent_dead="run"),
    ])  # fmt: skip
    failed(queue, b"a")
    assert states(queue, [child]) == ["blocked"]
    queue.replay([first.id])
    claimed = {delivery.payload: delivery for delivery in queue.claim(limit=2)}
    queue.ack(claimed[b"a"])  # it has counted when it died
    assert states(queue, [child]) == ["blocked"]
    queue.ack(claimed[b"b"])
    done(queue, b"c")
    assert states(queue, [first, second, child]) == ["gone"] * 3


def test_a_replayed_parent_takes_up_where_it_was(flowing: World) -> None:
    queue = flowing.queue()
    parent = queue.enqueue(b"a")
    child = queue.enqueue(NewJob(b"c", after=[parent], on_parent_dead="wait"))
    for _ in range(2):
        failed(queue, b"a")
        assert states(queue, [parent, child]) == ["dead", "blocked"]
        queue.replay([parent.id])
    done(queue, b"a")
    done(queue, b"c")


def test_a_parent_dies_of_its_last_attempt_or_by_expiry(flowing: World, clock: ManualClock) -> None:
    queue = flowing.queue(policy=PROMPT)
    parents = queue.enqueue_many([NewJob(b"a", max_attempts=1), NewJob(b"b", max_attempts=1)])
    children = [queue.enqueue(NewJob(b"c", after=[parent])) for parent in parents]
    (delivery,) = queue.claim()
    queue.nack(delivery)
    assert states(queue, children) == ["gone", "blocked"]
    assert queue.claim(lease=5)
    clock.advance(6)
    flowing.store.sweep()
    assert states(queue, children) == ["gone", "gone"]


@pytest.mark.parametrize("policy", ["cancel", "run", "wait"])
@pytest.mark.parametrize("how", ["cancelled", "cancelled while held", "purged", "purged when dead", "past its ttl"])
def test_a_parent_that_is_removed(flowing: World, clock: ManualClock, policy: str, how: str) -> None:
    """A removed parent can never be done: the child runs without it, or is removed too."""
    queue = flowing.queue()
    parent = queue.enqueue(NewJob(b"a", ttl=60))
    child = queue.enqueue(NewJob(b"c", after=[parent], on_parent_dead=policy))  # type: ignore[arg-type]
    if how == "cancelled":
        queue.cancel(parent.id)
    elif how == "cancelled while held":
        assert queue.claim()
        queue.cancel(parent.id)
    elif how == "purged":
        queue.purge("ready")
    elif how == "purged when dead":
        failed(queue, b"a")
        queue.purge("dead")
    else:
        clock.advance(61)
        flowing.store.sweep()
    assert states(queue, [child]) == ["ready" if policy == "run" else "gone"]


def test_blocked_jobs_are_cancelled_and_purged(flowing: World) -> None:
    queue = flowing.queue()
    parent = queue.enqueue(b"a")
    chain = [queue.enqueue(NewJob(b"b", after=[parent]))]
    for _ in range(3):
        chain.append(queue.enqueue(NewJob(b"c", after=[chain[-1]])))
    assert queue.cancel(chain[2].id)
    assert states(queue, chain) == ["blocked", "blocked", "gone", "gone"]
    assert queue.purge("blocked") >= 1
    assert (states(queue, chain), queue.counts().blocked) == (["gone"] * 4, 0)
    done(queue, b"a")


def test_a_queue_with_blocked_jobs_is_not_empty(far: World) -> None:
    queue, other = far.queue(), far.queue("other")
    parent = queue.enqueue(b"a")
    other.enqueue(NewJob(b"b", after=[parent]))
    with pytest.raises(Exception, match="other"):
        far.store.delete_queue("other")
    assert far.store.delete_queue("other", force=True)
    done(queue, b"a")


def test_a_queue_is_deleted_with_its_blocked_jobs(flowing: World) -> None:
    queue = flowing.queue()
    parent = queue.enqueue(b"a")
    child = queue.enqueue(NewJob(b"b", after=[parent]))
    with pytest.raises(Exception, match="work"):
        flowing.store.delete_queue("work")
    assert flowing.store.delete_queue("work", force=True)
    assert states(queue, [parent, child]) == ["gone", "gone"]


# ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_child_reads_its_parents_results_in_order(flowing: World) -> None:
    queue = flowing.queue()
    parents = queue.enqueue_many([NewJob(b"%d" % number, priority=number) for number in range(3)])
    child = queue.enqueue(NewJob(b"c", after=[parents[1], parents[2], parents[0]]))
    for payload in (b"2", b"1", b"0"):
        done(queue, payload, b"of " + payload if payload != b"0" else None)
    (delivery,) = queue.claim()
    assert delivery.id == child.id
    found = queue.parents(delivery)
    assert [(p.id, p.state, p.result) for p in found] == [
        (parents[1].id, "done", b"of 1"), (parents[2].id, "done", b"of 2"), (parents[0].id, "gone", None),
    ]  # fmt: skip


@pytest.mark.parametrize("retention", [0, 60])
def test_results_are_kept_until_the_children_have_ended(flowing: World, clock: ManualClock, retention: int) -> None:
    queue = flowing.queue(policy=Policy(result_retention=retention))
    parent = queue.enqueue(b"a")
    queue.enqueue(NewJob(b"c", after=[parent]))
    done(queue, b"a", b"result")
    for _ in range(3):
        clock.advance(1200)
        flowing.store.sweep()
    (child,) = queue.claim()
    assert [p.result for p in queue.parents(child)] == [b"result"]
    queue.ack(child)
    clock.advance(1200)
    flowing.store.sweep()
    assert queue.get(parent.id) is None


def test_parents_and_children_may_be_retired_together(flowing: World, clock: ManualClock) -> None:
    queue = flowing.queue(policy=Policy(result_retention=60))
    parent = queue.enqueue(b"0")
    chain = [parent, *(queue.enqueue(NewJob(b"%d" % n, after=[parent])) for n in range(1, 4))]
    for n in range(4):
        done(queue, b"%d" % n, b"result")
    clock.advance(3600)
    for _ in range(4):
        flowing.store.sweep()
        clock.advance(3600)
    assert states(queue, chain) == ["gone"] * 4


def test_a_released_job_takes_its_turn_in_its_group(flowing: World) -> None:
    queue = flowing.queue()
    parent = queue.enqueue(NewJob(b"parent", group="g"))
    child = queue.enqueue(NewJob(b"child", group="g", after=[parent]))
    gone = queue.enqueue(NewJob(b"gone", group="h", after=[parent]))
    assert queue.cancel(gone.id)
    done(queue, b"parent")
    assert states(queue, [child]) == ["ready"]
    done(queue, b"child")


def test_a_claim_meets_a_parent_past_its_ttl(flowing: World, clock: ManualClock) -> None:
    """The end of the parent gives a group its turn, which the same claim has moved."""
    queue = flowing.queue()
    parent = queue.enqueue(NewJob(b"parent", group="g", ttl=5))
    other, child = queue.enqueue_many(
        [NewJob(b"other", group="h"), NewJob(b"child", group="h", after=[parent], on_parent_dead="run")]
    )
    clock.advance(6)
    found: list[str] = []
    while claim := queue.claim(limit=5):
        found += [delivery.id for delivery in claim]
        queue.ack_many(list(claim))
    assert (sorted(found), states(queue, [parent])) == (sorted([other.id, child.id]), ["gone"])


# ── with what every enqueue has ──────────────────────────────────────────────────────────────────────────────────────


def test_a_repeated_graph_is_enqueued_once(flowing: World) -> None:
    from tenure.model.request import job_requests

    queue, store = flowing.queue(), flowing.store
    jobs = job_requests([NewJob(b"a", name="a"), NewJob(b"b", after=["#a"])])
    first = backend_of(store).once(b"request").enqueue(queue.name, jobs)
    assert backend_of(store).once(b"request").enqueue(queue.name, jobs) == first
    assert queue.counts().enqueued == 2


def test_a_parent_that_is_a_duplicate_is_the_first_job(flowing: World) -> None:
    queue = flowing.queue()
    first = queue.enqueue(b"a", key="k")
    again, child = queue.enqueue_many([NewJob(b"a", key="k", name="a"), NewJob(b"c", after=["#a"])])
    assert (again.id, again.duplicate) == (first.id, True)
    same, _, other = queue.enqueue_many(
        [NewJob(b"b", key="b"), NewJob(b"b", key="b", name="b"), NewJob(b"d", after=["#b"])]
    )
    assert states(queue, [child, other]) == ["blocked", "blocked"]
    with queue.claim(limit=2) as claim:
        assert {delivery.id for delivery in claim} == {first.id, same.id}
        queue.ack_many(list(claim))
    assert states(queue, [child, other]) == ["ready", "ready"]


def test_blocked_jobs_count_as_waiting(flowing: World) -> None:
    queue = flowing.queue(policy=Policy(max_waiting=2))
    parent = queue.enqueue(b"a")
    queue.enqueue(NewJob(b"b", after=[parent]))
    must_refuse(flowing.store, QueueFull, [lambda: queue.enqueue(b"c")])


def test_a_blocked_job_holds_its_key(flowing: World, clock: ManualClock) -> None:
    queue = flowing.queue(policy=Policy(dedup_window=1))
    parent = queue.enqueue(b"a")
    child = queue.enqueue(NewJob(b"b", key="k", after=[parent]))
    clock.advance(60)
    flowing.store.sweep()
    again = queue.enqueue(NewJob(b"b", key="k"))
    assert (again.id, again.duplicate) == (child.id, True)


def test_a_refused_graph_in_one_queue_leaves_nothing(flowing: World) -> None:
    queue = flowing.queue(policy=Policy(max_waiting=2))
    parent = queue.enqueue(b"a", key="k")
    too_many = [NewJob(b"x", name="x"), NewJob(b"y", after=["#x", parent.id])]
    conflict = [NewJob(b"x", name="x"), NewJob(b"b", key="k", after=["#x"])]
    must_refuse(flowing.store, QueueFull, [lambda: queue.enqueue_many(too_many)])
    must_refuse(flowing.store, KeyConflict, [lambda: queue.enqueue_many(conflict)])
    done(queue, b"a")


def test_a_refused_graph_leaves_nothing(far: World) -> None:
    queue, other = far.queue(), far.queue("other", policy=Policy(max_waiting=1))
    parent = queue.enqueue(b"a", key="k")
    too_many = [NewJob(b"x", queue="other", name="x"), NewJob(b"y", queue="other", after=["#x", parent.id])]
    must_refuse(far.store, QueueFull, [lambda: queue.enqueue_many(too_many)])
    conflict = [NewJob(b"x", name="x", queue="other"), NewJob(b"b", key="k", after=["#x"])]
    with pytest.raises(KeyConflict) as caught:
        queue.enqueue_many(conflict)
    assert caught.value.index == 1
    assert other.counts().enqueued == 0
    done(queue, b"a")


def test_blocked_jobs_are_there_after_a_restart(flowing: World) -> None:
    queue = flowing.queue()
    parent = queue.enqueue(b"a")
    queue.enqueue(NewJob(b"b", after=[parent]))
    store: Store = flowing.reopen()
    again = store.queue("work")
    assert again.counts().blocked == 1
    done(again, b"a")
    done(again, b"b")
