"""A job in each state, and for each reason why it waits: the cases of docs/explain.md, made on a real store.

Each function leads a job there and returns its id. `docs/explain.md` shows what `explain` says of it, word for word.
"""

from __future__ import annotations

from collections.abc import Callable

import tenure
from tenure import Backoff, GroupPolicy, ManualClock, NewJob, Policy, Queue

Case = Callable[[Queue, ManualClock], str]
CASES: dict[str, Case] = {}
#: The sweeper has been there since.
SWEPT = {"gone-retired", "gone-ttl-passed"}


def case(made: Case) -> Case:
    CASES[made.__name__.replace("_", "-")] = made
    return made


def _failing(queue: Queue, clock: ManualClock, job: tenure.Enqueued, seconds: float = 2, delay: float = 60) -> None:
    (delivery,) = queue.claim(worker="w1")
    assert delivery.id == job.id
    clock.advance(seconds)
    queue.nack(
        delivery, error="Traceback (most recent call last):\n  …\nConnectionError: no route to host", delay=delay
    )


@case
def ready(queue: Queue, clock: ManualClock) -> str:
    first = queue.enqueue(b"one")
    queue.ack(queue.claim(worker="w1")[0])
    assert first.id
    queue.enqueue(b"two")
    job = queue.enqueue(b"three")
    clock.advance(12)
    return job.id


@case
def ready_new(queue: Queue, clock: ManualClock) -> str:
    job = queue.enqueue(b"one")
    clock.advance(3)
    return job.id


@case
def ready_no_worker(queue: Queue, clock: ManualClock) -> str:
    queue.enqueue(b"one")
    queue.ack(queue.claim(worker="w1")[0])
    clock.advance(60)
    job = queue.enqueue(b"two")
    clock.advance(180)
    return job.id


@case
def ready_never_claimed(queue: Queue, clock: ManualClock) -> str:
    job = queue.enqueue(b"one", ttl=3600)
    clock.advance(300)
    return job.id


@case
def ready_paused(queue: Queue, clock: ManualClock) -> str:
    job = queue.enqueue(b"one")
    queue.pause()
    clock.advance(30)
    return job.id


@case
def ready_at_the_limit(queue: Queue, clock: ManualClock) -> str:
    queue.configure(Policy(max_leased=2))
    queue.enqueue_many([b"one", b"two"])
    queue.claim(limit=2, worker="w1")
    job = queue.enqueue(b"three")
    clock.advance(10)
    return job.id


@case
def ready_at_a_rate(queue: Queue, clock: ManualClock) -> str:
    queue.configure(Policy(rate="1/30s"))
    queue.enqueue(b"one")
    queue.ack(queue.claim(worker="w1")[0])
    job = queue.enqueue(b"two")
    clock.advance(10)
    return job.id


@case
def ready_group_at_its_limit(queue: Queue, clock: ManualClock) -> str:
    queue.configure(Policy(group=GroupPolicy(max_leased=2)))
    queue.enqueue_many([NewJob(b"one", group="customer-17"), NewJob(b"two", group="customer-17")])
    queue.claim(limit=2, worker="w1")
    job = queue.enqueue(b"three", group="customer-17")
    clock.advance(10)
    return job.id


@case
def ready_group_at_a_rate(queue: Queue, clock: ManualClock) -> str:
    queue.configure(Policy(group=GroupPolicy(rate="1/30s")))
    queue.enqueue(b"one", group="customer-17")
    queue.ack(queue.claim(worker="w1")[0])
    job = queue.enqueue(b"two", group="customer-17")
    clock.advance(10)
    return job.id


@case
def scheduled(queue: Queue, clock: ManualClock) -> str:
    job = queue.enqueue(b"one", delay=600)
    clock.advance(60)
    return job.id


@case
def scheduled_retry(queue: Queue, clock: ManualClock) -> str:
    job = queue.enqueue(b"one")
    _failing(queue, clock, job)
    clock.advance(60)
    _failing(queue, clock, job, delay=240)
    return job.id


@case
def scheduled_after_expiry(queue: Queue, clock: ManualClock) -> str:
    queue.configure(Policy(lease=30, backoff=Backoff.fixed(60, jitter="none"), backoff_on_expiry=True))
    job = queue.enqueue(b"one")
    queue.claim(worker="w1")
    clock.advance(31)
    queue.claim(worker="w2")
    return job.id


@case
def scheduled_replay(queue: Queue, clock: ManualClock) -> str:
    job = queue.enqueue(b"one")
    queue.fail(queue.claim(worker="w1")[0], error="ValueError: no such address")
    clock.advance(60)
    queue.replay(delay=300)
    return job.id


@case
def scheduled_snoozed(queue: Queue, clock: ManualClock) -> str:
    job = queue.enqueue(b"one")
    queue.snooze(queue.claim(worker="w1")[0], 600)
    queue.pause()
    clock.advance(60)
    return job.id


@case
def scheduled_until_a_signal(queue: Queue, clock: ManualClock) -> str:
    job = queue.enqueue(b"one")
    queue.snooze(queue.claim(worker="w1")[0], 50 * 365 * 86_400, until_signal="approval")
    clock.advance(60)
    return job.id


@case
def ready_after_a_signal(queue: Queue, clock: ManualClock) -> str:
    job = queue.enqueue(b"one")
    queue.snooze(queue.claim(worker="w1")[0], 600, until_signal="approval")
    clock.advance(60)
    queue.signal(job.id, "approval", b"yes")
    clock.advance(2)
    return job.id


@case
def leased(queue: Queue, clock: ManualClock) -> str:
    job = queue.enqueue(b"one")
    claim = queue.claim(lease=30, worker="w1")
    clock.advance(20)
    queue.extend(claim, 30)
    queue.progress(next(iter(claim)), 0.4, "resizing")
    clock.advance(5)
    return job.id


@case
def leased_last_attempt(queue: Queue, clock: ManualClock) -> str:
    job = queue.enqueue(b"one", max_attempts=1)
    queue.claim(lease=30)
    clock.advance(5)
    return job.id


@case
def leased_and_late(queue: Queue, clock: ManualClock) -> str:
    job = queue.enqueue(b"one")
    queue.claim(lease=30, worker="w1")
    clock.advance(45)
    return job.id


@case
def done(queue: Queue, clock: ManualClock) -> str:
    queue.configure(Policy(result_retention=3600))
    job = queue.enqueue(b"one")
    (delivery,) = queue.claim(worker="w1")
    clock.advance(2)
    queue.ack(delivery, result=b"ok")
    clock.advance(600)
    return job.id


@case
def dead_max_attempts(queue: Queue, clock: ManualClock) -> str:
    job = queue.enqueue(b"one", max_attempts=2)
    _failing(queue, clock, job)
    clock.advance(60)
    _failing(queue, clock, job)
    clock.advance(300)
    return job.id


@case
def dead_failed(queue: Queue, clock: ManualClock) -> str:
    job = queue.enqueue(b"one")
    queue.fail(queue.claim(worker="w1")[0], error="ValueError: no such address")
    clock.advance(300)
    return job.id


@case
def blocked(queue: Queue, clock: ManualClock) -> str:
    parents = queue.enqueue_many([b"%d" % n for n in range(5)])
    job = queue.enqueue(NewJob(b"report", after=parents))
    clock.advance(5)
    queue.ack_many(queue.claim(limit=2, worker="w1"))
    assert queue.claim(worker="w1")
    return job.id


@case
def blocked_by_a_dead_parent(queue: Queue, clock: ManualClock) -> str:
    parent = queue.enqueue(b"one")
    job = queue.enqueue(NewJob(b"two", after=[parent], on_parent_dead="wait"))
    queue.fail(queue.claim(worker="w1")[0], error="ValueError: no such address")
    clock.advance(60)
    return job.id


@case
def ready_after_its_parents(queue: Queue, clock: ManualClock) -> str:
    job = queue.enqueue(NewJob(b"two", after=[queue.enqueue(b"one")]))
    clock.advance(5)
    queue.ack(queue.claim(worker="w1")[0])
    clock.advance(2)
    return job.id


@case
def gone_done(queue: Queue, clock: ManualClock) -> str:
    job = queue.enqueue(b"one")
    (delivery,) = queue.claim(worker="w1")
    clock.advance(2)
    queue.ack(delivery)
    return job.id


@case
def gone_cancelled(queue: Queue, clock: ManualClock) -> str:
    job = queue.enqueue(b"one")
    clock.advance(5)
    assert queue.cancel(job.id)
    return job.id


@case
def gone_retired(queue: Queue, clock: ManualClock) -> str:
    queue.configure(Policy(retention=60))
    job = queue.enqueue(b"one")
    queue.ack(queue.claim(worker="w1")[0])
    clock.advance(61)
    return job.id


@case
def gone_purged(queue: Queue, clock: ManualClock) -> str:
    job = queue.enqueue(b"one")
    clock.advance(5)
    queue.purge("ready")
    return job.id


@case
def gone_ttl_passed(queue: Queue, clock: ManualClock) -> str:
    job = queue.enqueue(b"one", ttl=60)
    clock.advance(61)
    return job.id


@case
def gone_with_its_parent(queue: Queue, clock: ManualClock) -> str:
    job = queue.enqueue(NewJob(b"two", after=[queue.enqueue(b"one")]))
    clock.advance(5)
    queue.fail(queue.claim(worker="w1")[0], error="ValueError: no such address")
    return job.id
