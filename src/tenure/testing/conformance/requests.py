"""Requests with an id: a repeated request takes effect once, and gets the first answer."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.contract.backend import Backend
from tenure.errors import InvalidArgument, KeyConflict, LeaseLost, QueueFull, TenureError
from tenure.model.ids import job_id_bytes
from tenure.model.lease import ClaimRequest, Delivery, Settle
from tenure.model.names import QueueName
from tenure.model.request import JobRequest, ReplayRequest
from tenure.model.retry import Policy
from tenure.testing.conformance.world import (
    KEEPING,
    PROMPT,
    World,
    all_events,
    claimed,
    event_types,
    fill,
    footprint,
    kill,
    nothing_written,
    seen,
    sweep_all,
    together,
)
from tenure.testing.harness import backend_of

NAME = QueueName("default", "work")
JOBS = [JobRequest(b"a"), JobRequest(b"b", priority=3, headers={"h": "1"})]


def as_request(store: Store, request: bytes = b"request-1") -> Backend:
    return backend_of(store).once(request)


def answer_of(call: Callable[[], object]) -> object:
    """The call's result, or its error's type, text and facts."""
    try:
        return call()
    except TenureError as error:
        return type(error), str(error), vars(error)


def settling(delivery: Delivery, verb: str = "ack", **more: object) -> Settle:
    return Settle(verb, delivery.proof, **more)  # type: ignore[arg-type]


def pass_a_moment(world: World) -> None:
    """Let at least a millisecond pass."""
    if world.clock is not None:
        world.clock.advance(0.002)
    else:
        time.sleep(0.002)


def error_facts(outcomes: list[TenureError | None]) -> list[object]:
    return [None if error is None else (type(error), str(error)) for error in outcomes]


# ── each verb ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_repeated_enqueue_adds_nothing_and_returns_the_same_ids(store: Store, queue: Queue) -> None:
    first = as_request(store).enqueue(NAME, JOBS)
    with nothing_written(store):
        assert as_request(store).enqueue(NAME, JOBS) == first
    assert queue.counts().waiting == 2
    assert [job.id for job in as_request(store, b"request-2").enqueue(NAME, JOBS)] != [job.id for job in first]
    assert queue.counts().waiting == 4


def test_a_repeated_enqueue_of_one_plain_job_adds_nothing(store: Store, queue: Queue) -> None:
    queue.enqueue(b"so that the queue is known")
    first = as_request(store).enqueue(NAME, [JobRequest(b"x")])
    assert as_request(store).enqueue(NAME, [JobRequest(b"x")]) == first
    assert queue.counts().waiting == 2


def test_a_repeated_request_returns_duplicates_as_the_first_time(store: Store, queue: Queue) -> None:
    job = JobRequest(b"x", key="k")
    first = as_request(store).enqueue(NAME, [job])
    assert (first[0].duplicate, as_request(store).enqueue(NAME, [job])) == (False, first)
    assert as_request(store, b"request-2").enqueue(NAME, [job])[0].duplicate


def test_a_large_answer_is_kept_whole(store: Store) -> None:
    jobs = [JobRequest(b"%d" % n) for n in range(5_000)]
    first = as_request(store).enqueue(NAME, jobs)
    assert as_request(store).enqueue(NAME, jobs) == first
    assert len({job.id for job in first}) == 5_000


@pytest.mark.parametrize("verb", ["ack", "nack", "fail", "release"])
def test_a_repeated_settle_is_not_lost(world: World, verb: str) -> None:
    queue = world.queue(policy=KEEPING)
    queue.enqueue(b"x")
    delivery = claimed(queue)
    items = [settling(delivery, verb), Settle("ack", delivery.proof._replace(job=bytes(16)))]
    first = as_request(world.store).settle(NAME, items)
    assert first[0] is None
    assert isinstance(first[1], LeaseLost)
    after = event_types(queue, delivery.id)
    again = as_request(world.store).settle(NAME, items)
    assert error_facts(again) == error_facts(first)
    assert vars(again[1]) == vars(first[1])
    assert event_types(queue, delivery.id) == after


def test_a_repeated_ack_of_a_job_that_is_not_retained_is_not_lost(store: Store, queue: Queue) -> None:
    queue.enqueue(b"x")
    items = [settling(claimed(queue))]
    assert as_request(store).settle(NAME, items) == [None]
    assert as_request(store).settle(NAME, items) == [None]
    assert isinstance(as_request(store, b"request-2").settle(NAME, items)[0], LeaseLost)


def test_a_repeated_nack_does_not_touch_the_next_delivery(world: World) -> None:
    queue = world.queue(policy=PROMPT)
    job = queue.enqueue(b"x")
    items = [settling(claimed(queue), "nack", error="no")]
    assert as_request(world.store).settle(NAME, items) == [None]
    second = claimed(queue)
    assert as_request(world.store).settle(NAME, items) == [None]
    assert seen(queue, job.id).state == "leased"
    queue.ack(second)


def test_a_repeated_extend_returns_the_first_end(world: World, clock: ManualClock) -> None:
    queue = world.queue()
    queue.enqueue(b"x")
    lease = claimed(queue, lease=10).lease
    first = as_request(world.store).extend(NAME, lease, 30_000)
    clock.advance(5)
    assert as_request(world.store).extend(NAME, lease, 30_000) == first
    assert as_request(world.store, b"request-2").extend(NAME, lease, 30_000).until_ms == first.until_ms + 5_000


def test_a_repeated_progress_does_not_go_back(store: Store, queue: Queue) -> None:
    queue.enqueue(b"x")
    delivery = claimed(queue)
    as_request(store).progress(NAME, delivery.proof, 0.2, "begun")
    queue.progress(delivery, 0.8, "nearly")
    as_request(store).progress(NAME, delivery.proof, 0.2, "begun")
    assert seen(queue, delivery.id).progress == 0.8
    queue.ack(delivery)
    as_request(store).progress(NAME, delivery.proof, 0.2, "begun")


def test_a_repeated_cancel_is_still_true(store: Store, queue: Queue) -> None:
    job = job_id_bytes(queue.enqueue(b"x").id)
    assert as_request(store).cancel(NAME, job)
    assert as_request(store).cancel(NAME, job)
    assert not as_request(store, b"request-2").cancel(NAME, job)


def test_a_repeated_pause_does_not_undo_a_resume(store: Store, queue: Queue) -> None:
    queue.enqueue(b"x")
    as_request(store).set_paused(NAME, True)
    queue.resume()
    as_request(store).set_paused(NAME, True)
    assert len(queue.claim()) == 1


def test_a_repeated_configure_does_not_undo_a_later_one(store: Store, queue: Queue) -> None:
    as_request(store).configure({NAME: Policy(lease=7)})
    queue.configure(Policy(lease=9))
    as_request(store).configure({NAME: Policy(lease=7)})
    assert queue.policy().lease == 9


def test_a_repeated_forget_consumer_is_still_true(store: Store, queue: Queue) -> None:
    queue.enqueue(b"x")
    store.events(consumer="reader")
    assert as_request(store).forget_consumer("reader")
    assert as_request(store).forget_consumer("reader")
    assert not as_request(store, b"request-2").forget_consumer("reader")


def test_a_claim_takes_the_request_for_its_id(store: Store, queue: Queue) -> None:
    fill(queue, 4)
    first = as_request(store).claim([NAME], ClaimRequest(2))
    again = as_request(store).claim([NAME], ClaimRequest(2))
    assert first is not None
    assert again is not None
    assert (again.lease, sorted(d.id for d in again.deliveries)) == (
        first.lease,
        sorted(d.id for d in first.deliveries),
    )
    assert queue.counts().leased == 2


def test_a_repeated_claim_of_several_queues_comes_from_the_same_one(store: Store) -> None:
    store.queue("b").enqueue(b"x")
    names = [QueueName("default", "a"), QueueName("default", "b")]
    first = as_request(store).claim(names, ClaimRequest(1))
    store.queue("a").enqueue(b"y")
    again = as_request(store).claim(names, ClaimRequest(1))
    assert first is not None
    assert again is not None
    assert (again.name, again.lease) == (names[1], first.lease)
    assert store.queue("a").counts().leased == 0


# ── verbs that work in chunks ────────────────────────────────────────────────────────────────────────────────────────


def test_a_repeated_purge_leaves_jobs_that_came_since(store: Store, queue: Queue) -> None:
    fill(queue, 1200)
    assert as_request(store).purge(NAME, "ready") == 1200
    fill(queue, 3)
    assert as_request(store).purge(NAME, "ready") == 1200
    assert queue.counts().ready == 3


def test_a_repeated_replay_leaves_jobs_that_died_since(world: World) -> None:
    queue = world.queue(policy=PROMPT)
    dead = kill(queue, 1100)
    first = as_request(world.store).replay(NAME, ReplayRequest())
    assert sorted(first.ids) == sorted(dead)
    while claim := queue.claim(limit=1000):
        for delivery in claim:
            queue.fail(delivery, "again")
    assert as_request(world.store).replay(NAME, ReplayRequest()) == first
    assert queue.counts().dead == 1100


def test_a_repeated_replay_of_ids_leaves_them(world: World) -> None:
    queue = world.queue(policy=PROMPT)
    dead = kill(queue, 3)
    request = ReplayRequest(ids=tuple(job_id_bytes(job) for job in [*dead, "0" * 32]))
    first = as_request(world.store).replay(NAME, request)
    assert (first.count, first.skipped) == (3, ["0" * 32])
    for delivery in queue.claim(limit=3):
        queue.fail(delivery, "again")
    assert as_request(world.store).replay(NAME, request) == first
    assert queue.counts().dead == 3


class _Cut(Exception):
    """Simulates the end of the process."""


def test_a_repeated_purge_continues_after_an_interruption(world: World) -> None:
    queue, store = world.queue(), world.store
    fill(queue, 1200)

    def cut(done: int, of: int | None) -> None:
        if done >= 500:
            raise _Cut

    with contextlib.suppress(_Cut):  # a store may do it in one step
        as_request(store).purge(NAME, "ready", cut)
    assert queue.counts().ready < 1200
    pass_a_moment(world)
    fill(queue, 7)
    assert as_request(store).purge(NAME, "ready") == 1200
    assert (queue.counts().removed, queue.counts().ready) == (1200, 7)


def test_a_repeated_replay_continues_after_an_interruption(world: World) -> None:
    queue = world.queue(policy=PROMPT)
    dead = kill(queue, 1200)

    def cut(done: int, of: int | None) -> None:
        raise _Cut

    with contextlib.suppress(_Cut):
        as_request(world.store).replay(NAME, ReplayRequest(), cut)
    assert queue.counts().dead < 1200
    assert sorted(as_request(world.store).replay(NAME, ReplayRequest()).ids) == sorted(dead)
    assert [e.type for e in all_events(world.store)].count("replayed") == 1200


def test_a_repeated_cleanup_leaves_jobs_that_ended_since(world: World) -> None:
    queue = world.queue(policy=KEEPING)
    later = backend_of(world.store).now_ms() + 10**9
    for _ in range(2):
        fill(queue, 3)
        queue.ack_many(queue.claim(limit=3))
        assert as_request(world.store).cleanup(later, 100) == 3
    assert queue.counts().done == 3


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_refusal_is_an_answer_that_stays(world: World) -> None:
    queue = world.queue(policy=Policy(max_waiting=2))
    fill(queue, 2)

    def ask() -> object:
        return as_request(world.store).enqueue(NAME, [JobRequest(b"x")])

    first = answer_of(ask)
    assert isinstance(first, tuple)
    assert first[0] is QueueFull
    queue.ack_many(queue.claim(limit=2))
    assert answer_of(ask) == first, "the caller may have acted on the first refusal"
    assert queue.counts().enqueued == 2


def test_a_repeated_request_gets_every_fact_of_its_error(world: World) -> None:
    queue = world.queue()
    queue.enqueue(b"x", key="k")
    jobs = [JobRequest(b"fine"), JobRequest(b"y", key="k")]
    conflict = [answer_of(lambda: as_request(world.store).enqueue(NAME, jobs)) for _ in range(2)]
    assert conflict[0] == conflict[1]
    assert isinstance(conflict[0], tuple)
    assert conflict[0][0] is KeyConflict
    assert conflict[0][2]["index"] == 1
    lost = [answer_of(lambda: as_request(world.store, b"2").extend(NAME, bytes(16), 1000)) for _ in range(2)]
    assert lost[0] == lost[1]
    assert isinstance(lost[0], tuple)
    assert lost[0][0] is LeaseLost


def test_an_id_stands_for_one_request(store: Store, queue: Queue) -> None:
    queue.enqueue(b"x")
    as_request(store).enqueue(NAME, JOBS)
    others: list[Callable[[], object]] = [
        lambda: as_request(store).enqueue(NAME, JOBS[:1]),
        lambda: as_request(store).enqueue(NAME, [JOBS[0], JOBS[1]._replace(headers={"h": "2"})]),
    ]
    before = footprint(store)
    for other in others:
        with pytest.raises(InvalidArgument):
            other()
    assert footprint(store) == before


def test_an_id_of_another_operation_or_queue_gives_no_answer_of_it(store: Store, queue: Queue) -> None:
    """A store refuses it; through a server, ids of different operations are different requests."""
    queue.enqueue(b"x")
    first = as_request(store).enqueue(NAME, JOBS)
    others: list[Callable[[], object]] = [
        lambda: as_request(store).enqueue(QueueName("default", "other"), JOBS),
        lambda: as_request(store).enqueue(QueueName("another", "work"), JOBS),
        lambda: as_request(store).cancel(NAME, bytes(16)),
        lambda: as_request(store).set_paused(NAME, True),
    ]
    for other in others:
        with contextlib.suppress(InvalidArgument):
            assert other() != first


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_outcome_is_kept_for_ten_minutes(world: World, clock: ManualClock) -> None:
    queue = world.queue()
    first = as_request(world.store).enqueue(NAME, JOBS)
    clock.advance(599)
    sweep_all(world.store)
    assert as_request(world.store).enqueue(NAME, JOBS) == first
    clock.advance(2)
    swept = world.store.sweep()
    assert swept.requests_forgotten == 1
    assert queue.counts().enqueued == 2
    assert as_request(world.store).enqueue(NAME, JOBS) != first


def test_outcomes_of_every_size_are_forgotten(world: World, clock: ManualClock) -> None:
    for number in range(5):
        as_request(world.store, b"r%d" % number).enqueue(NAME, [JobRequest(b"x")] * 10 ** min(number, 4))
    clock.advance(601)
    swept = world.store.sweep()
    assert not swept.more
    # If a batch is cut into several transactions, each stores an outcome.
    assert swept.requests_forgotten > 5 if world.store.traits.cuts_batches else swept.requests_forgotten == 5


def test_an_outcome_survives_a_restart(world: World) -> None:
    first = as_request(world.store).enqueue(NAME, JOBS)
    world.reopen()
    assert as_request(world.store).enqueue(NAME, JOBS) == first
    assert world.queue().counts().waiting == 2


# ── at the same time ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_of_many_equal_requests_at_once_one_acts_and_all_get_its_answer(live: World) -> None:
    queue = live.queue()
    answers = together([lambda: as_request(live.store).enqueue(NAME, JOBS)] * 8)
    assert all(answer == answers[0] for answer in answers)
    assert queue.counts().waiting == 2


def test_a_refusal_and_a_success_at_once_are_one_answer(live: World) -> None:
    """While the queue fills and empties, all callers of one request get the outcome that was stored first."""
    queue = live.queue(policy=Policy(max_waiting=1, retention=0))
    over = threading.Event()

    def disturb() -> object:
        while not over.is_set():
            answer_of(lambda: queue.enqueue(b"in the way"))
            queue.ack_many(queue.claim(limit=1))
        return None

    def ask(number: int) -> Callable[[], object]:
        return lambda: answer_of(
            lambda: as_request(live.store, b"%d" % number).enqueue(NAME, [JobRequest(b"%d" % number)])
        )

    def round_of_four() -> object:
        try:
            for number in range(25):
                answers = together([ask(number)] * 4)
                assert all(answer == answers[0] for answer in answers), answers
        finally:
            over.set()
        return None

    together([disturb, round_of_four])


# ── what is not a request's ──────────────────────────────────────────────────────────────────────────────────────────


def test_queries_of_a_request_view_work_and_it_closes_nothing(store: Store, queue: Queue) -> None:
    job = job_id_bytes(queue.enqueue(b"x").id)
    view = as_request(store)
    with nothing_written(store):
        found = view.get(NAME, job)
        assert found is not None
        assert found.payload == b"x"
        assert view.counts(NAME).ready == 1
        assert len(view.queues(None, 10, None).queues) == 1
        view.close()
    assert view.url == store.url
    queue.enqueue(b"y")
