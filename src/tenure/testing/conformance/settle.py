"""Settling: only the holder of a live lease can settle a job, and only once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import AlreadySettled, InvalidArgument, LeaseLost, TooLarge
from tenure.model.ids import job_id_bytes
from tenure.model.job import MAX_ERROR_CHARS, MAX_PAYLOAD
from tenure.model.lease import Delivery, Settle, receipt
from tenure.model.retry import Backoff, Policy
from tenure.testing.conformance.world import (
    KEEPING,
    PROMPT,
    World,
    claim_all,
    claimed,
    each_of,
    event_types,
    fill,
    ids,
    job_events,
    must_refuse,
    nothing_written,
    seen,
)

Verb = Callable[[Queue, Delivery | str], object]

SETTLING: dict[str, Verb] = {
    "ack": lambda queue, delivery: queue.ack(delivery),
    "ack with result": lambda queue, delivery: queue.ack(delivery, result=b"result"),
    "nack": lambda queue, delivery: queue.nack(delivery, error="late"),
    "nack with delay": lambda queue, delivery: queue.nack(delivery, delay=0),
    "fail": lambda queue, delivery: queue.fail(delivery, error="late"),
    "release": lambda queue, delivery: queue.release(delivery),
}
HOLDING: dict[str, Verb] = SETTLING | {
    "extend": lambda queue, delivery: queue.extend(delivery, 60),
    "progress": lambda queue, delivery: queue.progress(delivery, 0.5),
}
a_settling_verb = pytest.mark.parametrize("verb", SETTLING)
a_holders_verb = pytest.mark.parametrize("verb", HOLDING)


# ── ack ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_ack_removes_a_job_that_is_not_retained(store: Store, queue: Queue) -> None:
    job_id = queue.enqueue(b"x").id
    queue.ack(claimed(queue))
    assert queue.get(job_id) is None
    counts = queue.counts()
    assert (counts.waiting, counts.leased, counts.done, counts.removed, counts.enqueued) == (0, 0, 0, 1, 1)
    assert store.check().jobs == 0
    assert event_types(queue, job_id) == ["enqueued", "claimed", "done"]


def test_ack_with_a_result_keeps_it(queue: Queue) -> None:
    job_id = queue.enqueue(b"x").id
    queue.ack(claimed(queue), result=b"42")
    job = seen(queue, job_id)
    assert (job.state, job.result) == ("done", b"42")
    assert job.ended_at_ms is not None
    assert queue.counts().done == 1


@pytest.mark.parametrize("size", [0, 2**16, 2**16 + 1, 2**20, MAX_PAYLOAD], ids=lambda n: f"{n}B")
def test_results_of_any_size_are_kept(world: World, size: int) -> None:
    queue = world.queue()
    result = bytes(range(256)) * (size // 256) + bytes(size % 256)
    job_id = queue.enqueue(b"x").id
    queue.ack(claimed(queue), result=result)
    assert seen(queue, job_id).result == result
    assert queue.purge("done") == 1
    assert queue.get(job_id) is None


def test_a_result_over_the_limit_is_refused_and_the_lease_lives_on(store: Store, queue: Queue) -> None:
    queue.enqueue(b"x")
    delivery = claimed(queue)
    with nothing_written(store), pytest.raises(TooLarge):
        queue.ack(delivery, result=bytes(MAX_PAYLOAD + 1))
    queue.ack(delivery)


def test_ack_keeps_a_job_for_its_retention(world: World) -> None:
    queue = world.queue(policy=KEEPING)
    job_id = queue.enqueue(b"x").id
    queue.ack(claimed(queue))
    job = seen(queue, job_id)
    assert (job.state, job.result, job.lease_id, job.worker) == ("done", None, None, None)


# ── proofs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@a_holders_verb
def test_a_receipt_is_as_good_as_its_delivery(queue: Queue, verb: str) -> None:
    queue.enqueue(b"x")
    HOLDING[verb](queue, claimed(queue).receipt)


@a_holders_verb
def test_nothing_but_a_delivery_or_its_receipt_settles(store: Store, queue: Queue, verb: str) -> None:
    fill(queue, 2)
    delivery = claimed(queue)
    job = queue.get(delivery.id)
    proofs = [
        delivery.id, job, 17, None, delivery.job, delivery.receipt.encode(), "", delivery.receipt[:-2],
        delivery.receipt + ".1", delivery.receipt.replace(".", ":"), delivery.proof, [delivery],
    ]  # fmt: skip
    must_refuse(store, InvalidArgument, each_of(partial(HOLDING[verb], queue), proofs))
    queue.ack(delivery)


@a_holders_verb
def test_a_forged_proof_settles_nothing(store: Store, queue: Queue, verb: str) -> None:
    fill(queue, 3)
    mine, other = claimed(queue, worker="me"), claimed(queue, worker="other")
    waiting = job_id_bytes(queue.list("ready").jobs[0].id)
    forged = {
        "unknown lease": receipt(mine.job, bytes(range(16)), mine.token),
        "no lease": receipt(waiting, bytes(16), 0),
    }
    if verb != "extend":  # which extends the whole claim, and ignores the job
        forged |= {
            "unknown job": receipt(bytes(16), mine.lease, mine.token),
            "another's job under my lease": receipt(other.job, mine.lease, mine.token),
            "my job under another's lease": receipt(mine.job, other.lease, mine.token),
            "a waiting job": receipt(waiting, mine.lease, 0),
            "an older token": receipt(mine.job, mine.lease, mine.token - 1),
            "a token to come": receipt(mine.job, mine.lease, mine.token + 1),
        }
    with nothing_written(store):
        for what, proof in forged.items():
            with pytest.raises(LeaseLost) as lost:
                HOLDING[verb](queue, proof)
            assert not isinstance(lost.value, AlreadySettled), what
    queue.ack(mine)
    queue.ack(other)


def test_a_lost_lease_says_whose(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"x")
    delivery = claimed(queue, lease=5)
    clock.advance(6)
    with pytest.raises(LeaseLost) as lost:
        queue.ack(delivery)
    assert (lost.value.job_id, lost.value.token) == (delivery.id, delivery.token)


# ── after the end ────────────────────────────────────────────────────────────────────────────────────────────────────


@a_holders_verb
def test_after_expiry_nothing_settles_even_before_any_sweep(
    store: Store, queue: Queue, clock: ManualClock, verb: str
) -> None:
    job_id = queue.enqueue(b"x").id
    delivery = claimed(queue, lease=10)
    clock.advance(10.001)
    with nothing_written(store), pytest.raises(LeaseLost) as lost:
        HOLDING[verb](queue, delivery)
    assert not isinstance(lost.value, AlreadySettled)
    again = claimed(queue)
    assert (again.id, again.attempt) == (job_id, 2)


@a_holders_verb
def test_up_to_its_end_a_lease_is_good(queue: Queue, clock: ManualClock, verb: str) -> None:
    queue.enqueue(b"x")
    delivery = claimed(queue, lease=10)
    clock.advance(9.999)
    HOLDING[verb](queue, delivery)


@a_holders_verb
@pytest.mark.parametrize("meanwhile", ["swept", "claimed by another", "claimed by the same worker", "done by another"])
def test_an_older_delivery_settles_nothing(world: World, clock: ManualClock, verb: str, meanwhile: str) -> None:
    queue = world.queue(policy=KEEPING)
    queue.enqueue(b"x")
    old = claimed(queue, lease=10, worker="w1")
    clock.advance(10.001)
    new = None
    if meanwhile == "swept":
        assert world.store.sweep().jobs_back == 1
    else:
        new = claimed(queue, worker="w1" if "same" in meanwhile else "w2")
    if new is not None and meanwhile == "done by another":
        queue.ack(new)
    with nothing_written(world.store), pytest.raises(LeaseLost) as lost:
        HOLDING[verb](queue, old)
    assert not isinstance(lost.value, AlreadySettled)
    if new is not None and meanwhile != "done by another":
        queue.ack(new)
        assert seen(queue, old.id).state == "done"


@a_settling_verb
@pytest.mark.parametrize("first", ["ack", "nack", "fail", "release"])
def test_a_delivery_settles_once(world: World, first: str, verb: str) -> None:
    queue = world.queue(policy=KEEPING)
    queue.enqueue(b"x")
    delivery = claimed(queue)
    SETTLING[first](queue, delivery)
    with nothing_written(world.store), pytest.raises(AlreadySettled) as settled:
        SETTLING[verb](queue, delivery)
    assert (settled.value.job_id, settled.value.token) == (delivery.id, delivery.token)
    with nothing_written(world.store), pytest.raises(AlreadySettled):
        SETTLING[verb](queue, delivery.receipt)


def test_a_repeated_ack_of_a_job_that_is_gone_is_lost(store: Store, queue: Queue) -> None:
    queue.enqueue(b"x")
    delivery = claimed(queue)
    queue.ack(delivery)
    with nothing_written(store), pytest.raises(LeaseLost) as lost:
        queue.ack(delivery)
    assert not isinstance(lost.value, AlreadySettled)


def test_a_repeated_ack_of_a_job_with_a_result_is_told_apart(queue: Queue) -> None:
    job_id = queue.enqueue(b"x").id
    delivery = claimed(queue)
    queue.ack(delivery, result=b"first")
    with pytest.raises(AlreadySettled):
        queue.ack(delivery, result=b"second")
    assert seen(queue, job_id).result == b"first"


def test_a_settled_delivery_does_not_settle_the_next_one(world: World) -> None:
    queue = world.queue(policy=PROMPT)
    queue.enqueue(b"x")
    first = claimed(queue)
    queue.nack(first)
    second = claimed(queue)
    with nothing_written(world.store), pytest.raises(LeaseLost):
        queue.ack(first)
    queue.ack(second)


def test_two_deliveries_of_one_claim_are_apart(queue: Queue) -> None:
    """The same lease and job twice: only the token distinguishes a released delivery from the next one."""
    fill(queue, 2)
    claim = queue.claim(limit=2)
    queue.release(claim[0])
    again = claimed(queue)
    assert again.id == claim[0].id
    with pytest.raises(LeaseLost):
        queue.ack(claim[0])
    queue.ack(again)
    queue.ack(claim[1])


# ── part of a claim ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_after_a_partial_ack_only_the_open_jobs_come_back(queue: Queue, clock: ManualClock) -> None:
    made = fill(queue, 5)
    claim = queue.claim(limit=5, lease=10)
    queue.ack(claim[0])
    queue.ack(claim[3])
    clock.advance(10.001)
    assert sorted(ids(queue.claim(limit=10))) == sorted([made[1], made[2], made[4]])


@a_settling_verb
def test_once_all_is_settled_no_lease_is_left_and_nothing_due(
    store: Store, queue: Queue, clock: ManualClock, verb: str
) -> None:
    fill(queue, 3)
    claim = queue.claim(limit=3, lease=10)
    for left in (3, 2, 1):
        assert store.check().leases == 1, f"with {left} jobs open"
        SETTLING[verb](queue, claim[left - 1])
    assert store.check().leases == 0
    clock.advance(11)
    assert store.sweep().leases == 0


# ── many ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_ack_many_says_what_it_settled_and_what_was_lost(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=KEEPING)
    made = fill(queue, 6)
    short, long = queue.claim(limit=2, lease=5), queue.claim(limit=4, lease=60)
    clock.advance(6)
    queue.cancel(long[0].id)
    settled = queue.ack_many([short[0], long[0], long[1].receipt, short[1], long[2]])
    assert settled.done == [made[3], made[4]]
    assert settled.lost == [made[0], made[2], made[1]]
    assert queue.counts().done == 2
    assert seen(queue, made[5]).state == "leased"


def test_ack_many_settles_a_delivery_given_twice_once(world: World) -> None:
    queue = world.queue(policy=KEEPING)
    (job_id,) = fill(queue, 1)
    delivery = claimed(queue)
    settled = queue.ack_many([delivery, delivery])
    assert (settled.done, settled.lost) == ([job_id], [job_id])
    assert queue.counts().done == 1
    assert event_types(queue, job_id) == ["enqueued", "claimed", "done"]


def test_ack_many_over_several_claims(store: Store, queue: Queue) -> None:
    made = fill(queue, 30)
    claims = [queue.claim(limit=10) for _ in range(3)]
    mixed = [claim[n] for n in range(10) for claim in claims]
    assert sorted(queue.ack_many(mixed).done) == sorted(made)
    assert store.check().leases == 0


def test_ack_many_of_a_large_claim(store: Store, queue: Queue) -> None:
    fill(queue, 2500)
    assert len(queue.ack_many(claim_all(queue, 2500)).done) == 2500
    assert (store.check().jobs, store.check().leases) == (0, 0)


def test_ack_many_of_nothing_writes_nothing(store: Store, queue: Queue) -> None:
    with nothing_written(store):
        settled = queue.ack_many([])
        assert (settled.done, settled.lost) == ([], [])


def test_ack_many_with_one_bad_proof_settles_none(store: Store, queue: Queue) -> None:
    fill(queue, 2)
    claim = queue.claim(limit=2)
    with nothing_written(store), pytest.raises(InvalidArgument):
        queue.ack_many([claim[0], claim[1].id])


def test_release_many_gives_all_back(queue: Queue) -> None:
    made = fill(queue, 4)
    claim = queue.claim(limit=4)
    queue.ack(claim[0])
    settled = queue.release_many(claim)
    assert (settled.done, settled.lost) == (made[1:], made[:1])
    assert ids(queue.claim(limit=4)) == made[1:]


def test_different_verdicts_in_one_call(world: World) -> None:
    queue = world.queue(policy=KEEPING)
    made = fill(queue, 5)
    claim = queue.claim(limit=5)
    proofs = [d.proof for d in claim]
    outcomes = queue.settle_many([
        Settle("ack", proofs[0], b"result"), Settle("nack", proofs[1], None, "again", 5000),
        Settle("fail", proofs[2], None, "never"), Settle("release", proofs[3]), Settle("ack", proofs[0]),
    ])  # fmt: skip
    assert outcomes[:4] == [None] * 4
    assert isinstance(outcomes[4], LeaseLost)
    assert [seen(queue, i).state for i in made] == ["done", "scheduled", "dead", "ready", "leased"]
    assert seen(queue, made[0]).result == b"result"
    assert (seen(queue, made[1]).error, seen(queue, made[2]).error) == ("again", "never")


# ── one delivery, two verdicts ───────────────────────────────────────────────────────────────────────────────────────

#: Every verdict, and the state of a job after it if done jobs are retained; `PASSING` retains none.
VERDICTS: dict[str, Callable[[Delivery], Settle]] = {
    "ack": lambda d: Settle("ack", d.proof),
    "ack with result": lambda d: Settle("ack", d.proof, b"result"),
    "nack": lambda d: Settle("nack", d.proof, None, "again"),
    "nack with delay": lambda d: Settle("nack", d.proof, None, None, 60_000),
    "fail": lambda d: Settle("fail", d.proof, None, "never"),
    "release": lambda d: Settle("release", d.proof),
}
_AFTER = {"ack": "done", "ack with result": "done", "nack": "ready", "nack with delay": "scheduled", "fail": "dead",
          "release": "ready"}  # fmt: skip
_PASSING = Policy(backoff=Backoff.fixed(0), result_retention=0)
_KEPT = Policy(backoff=Backoff.fixed(0), retention=3600, result_retention=3600)
the_first_verdict = pytest.mark.parametrize("first", VERDICTS)
kept_or_not = pytest.mark.parametrize("policy", [_KEPT, _PASSING], ids=["kept", "passing"])


def _left(queue: Queue, delivery: Delivery) -> str | None:
    job = queue.get(delivery.id)
    return None if job is None else job.state


def _expected(first: str, policy: Policy) -> str | None:
    return None if policy is _PASSING and first.startswith("ack") else _AFTER[first]


def _for_each_second(world: World, policy: Policy) -> Iterator[tuple[str, Queue]]:
    for number, second in enumerate(VERDICTS):
        yield second, world.queue(f"second-{number}", policy=policy)


@kept_or_not
@the_first_verdict
def test_in_one_call_the_first_verdict_counts(world: World, first: str, policy: Policy) -> None:
    for second, queue in _for_each_second(world, policy):
        fill(queue, 2)
        claim = queue.claim(limit=1)
        delivery, other = claim[0], queue.claim(limit=1)[0]
        outcomes = queue.settle_many([VERDICTS[first](delivery), VERDICTS["ack"](other), VERDICTS[second](delivery)])
        assert outcomes[:2] == [None, None], second
        refused = outcomes[2]
        assert isinstance(refused, AlreadySettled), second
        assert (refused.job_id, refused.token) == (delivery.id, delivery.token)
        assert _left(queue, delivery) == _expected(first, policy), second
        assert len(event_types(queue, delivery.id)) == 3, second  # enqueued, claimed, and the first verdict
    assert world.store.check().leases == 0


@kept_or_not
@the_first_verdict
def test_a_call_of_one_delivery_twice(world: World, first: str, policy: Policy) -> None:
    for second, queue in _for_each_second(world, policy):
        fill(queue, 1)
        delivery = claimed(queue)
        outcomes = queue.settle_many([VERDICTS[first](delivery), VERDICTS[second](delivery)])
        assert [type(outcome) for outcome in outcomes] == [type(None), AlreadySettled], second
        assert _left(queue, delivery) == _expected(first, policy), second


@kept_or_not
@the_first_verdict
def test_across_calls_the_first_verdict_counts(world: World, first: str, policy: Policy) -> None:
    for second, queue in _for_each_second(world, policy):
        fill(queue, 1)
        delivery = claimed(queue)
        assert queue.settle_many([VERDICTS[first](delivery)]) == [None]
        with nothing_written(world.store):
            (outcome,) = queue.settle_many([VERDICTS[second](delivery)])
        # A job that is gone has no record of who settled it.
        assert type(outcome) is (LeaseLost if _expected(first, policy) is None else AlreadySettled), second
        assert _left(queue, delivery) == _expected(first, policy), second


@the_first_verdict
def test_in_one_call_an_expired_delivery_is_lost_twice(world: World, clock: ManualClock, first: str) -> None:
    for second, queue in _for_each_second(world, _KEPT):
        fill(queue, 1)
        delivery = claimed(queue)
        clock.advance(3600)
        outcomes = queue.settle_many([VERDICTS[first](delivery), VERDICTS[second](delivery)])
        assert [type(outcome) for outcome in outcomes] == [LeaseLost, LeaseLost], second


@pytest.mark.parametrize("verb", VERDICTS)
def test_in_one_call_a_forged_proof_does_not_block_the_valid_one(world: World, verb: str) -> None:
    """An older token of the same job, then the delivery itself: only the delivery settles."""
    queue = world.queue(policy=_KEPT)
    fill(queue, 1)
    old = claimed(queue)
    queue.release(old)
    delivery = claimed(queue)
    outcomes = queue.settle_many([VERDICTS[verb](old), VERDICTS[verb](delivery), VERDICTS[verb](old)])
    assert [type(outcome) for outcome in outcomes] == [LeaseLost, type(None), LeaseLost]


# ── fail, release, progress ──────────────────────────────────────────────────────────────────────────────────────────


def test_fail_is_dead_at_once(queue: Queue) -> None:
    job_id = queue.enqueue(b"x", max_attempts=5).id
    queue.fail(claimed(queue), error="no such customer")
    job = seen(queue, job_id)
    assert (job.state, job.reason, job.error, job.attempt) == ("dead", "failed", "no such customer", 1)
    assert event_types(queue, job_id) == ["enqueued", "claimed", "died"]
    assert job_events(queue, job_id)[-1].reason == "failed"
    assert not queue.claim()


def test_release_gives_the_delivery_back(world: World) -> None:
    queue = world.queue()
    job_id = queue.enqueue(b"x", max_attempts=1).id
    tokens = []
    for _ in range(5):
        delivery = claimed(queue)
        assert (delivery.id, delivery.attempt) == (job_id, 1)
        tokens.append(delivery.token)
        queue.release(delivery)
        assert (seen(queue, job_id).state, seen(queue, job_id).attempt) == ("ready", 0)
    assert tokens == sorted(set(tokens))


def test_progress_is_shown_to_every_reader(queue: Queue, clock: ManualClock) -> None:
    job_id = queue.enqueue(b"x").id
    delivery = claimed(queue, lease=10)
    for fraction, note in ((0, None), (0.4, "resizing"), (1.0, "uploading")):
        queue.progress(delivery, fraction, note)
        job = seen(queue, job_id)
        assert (job.progress, job.progress_note) == (fraction, note)
    clock.advance(10.001)
    assert claimed(queue).id == job_id, "progress does not extend the lease"


def test_any_error_text_is_kept_as_far_as_there_is_room(queue: Queue) -> None:
    for error, kept in (("ü" * 20_000, "ü" * MAX_ERROR_CHARS), ("a\ud800b", "a\\ud800b"), ("", "")):
        job_id = queue.enqueue(b"x").id
        queue.fail(claimed(queue), error=error)
        assert (seen(queue, job_id).error or "") == kept


def test_the_payload_and_what_came_with_it_never_change(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=Policy(max_attempts=10))
    payload = bytes(range(256)) * 300
    job_id = queue.enqueue(payload, headers={"a": "b"}, priority=3, key="k").id
    created = seen(queue, job_id).created_at
    for verb in ("nack", "release", "expire", "progress"):
        delivery = claimed(queue, lease=10)
        if verb == "nack":
            queue.nack(delivery, delay=0)
        elif verb == "release":
            queue.release(delivery)
        elif verb == "progress":
            queue.progress(delivery, 0.1)
        clock.advance(11)
    delivery = claimed(queue)
    assert (delivery.payload, delivery.headers, delivery.priority) == (payload, {"a": "b"}, 3)
    assert (delivery.key, delivery.created_at) == ("k", created)
