"""Makes flows, steps, signals and schedules in a store, and compares them with another store's."""

from __future__ import annotations

from tenure import NewJob, Policy, Queue, Store
from tenure.model.schedule import Schedule

#: The number of flows that `make` enqueues, each of four jobs.
FLOWS = 3


def make(store: Store, queues: tuple[str, str] = ("site", "reports")) -> None:
    """Enqueue half-done flows over two queues (or one), a job with steps, and a job that waits for a signal."""
    first, last = [store.queue(name) for name in queues]
    for queue in (first, last):
        queue.configure(Policy(retention=86_400, max_attempts=1))
    for number in range(FLOWS):
        parse = [NewJob(b"parse %d" % number, name="parse", priority=9), NewJob(b"fetch", name="fetch", priority=9)]
        parsed, fetched = first.enqueue_many(parse)
        (index,) = last.enqueue_many([NewJob(b"index", after=[parsed, fetched], on_parent_dead="wait")])
        last.enqueue_many([NewJob(b"report", after=[index, fetched], on_parent_dead="wait")])
    for delivery in first.claim(limit=FLOWS):
        first.ack(delivery, result=delivery.payload)
    first.fail(first.claim()[0], error="no page")
    first.enqueue(b"charge", priority=9)
    delivery = first.claim()[0]
    first.record_step(delivery, "charge", b"42")
    first.signal(delivery.id, "approval", b"yes")
    first.snooze(delivery, 3600, until_signal="go")
    made = Schedule(name="nightly", tenant="default", queue=queues[1], payload=b"tick", cron="0 3 * * *")
    store.add_schedule(made)
    store.pause_schedule("nightly")


def told(queue: Queue) -> dict[str, object]:
    """Everything of a queue's jobs that travels, besides what the jobs themselves say."""
    found: dict[str, object] = {}
    for state in ("blocked", "scheduled", "ready", "done", "dead"):
        for job in queue.list(state, limit=1000).jobs:
            parents = [(parent.id, parent.queue, parent.state, parent.result) for parent in queue.parents(job.id)]
            found[job.id] = (state, job.on_parent_dead, job.waits_for, parents, queue.steps(job.id))
    return found


def finish(store: Store, queues: tuple[str, str] = ("site", "reports")) -> list[bytes]:
    """Replay the dead parent, send the signal, and run all jobs. Returns their payloads in order."""
    first, last = [store.queue(name) for name in queues]
    (waits,) = [job for job in first.list("scheduled") if job.waits_for]
    assert first.signal(waits.id, "go")
    first.replay()
    ran: list[bytes] = []
    while True:
        claims = [queue.claim(limit=1) for queue in (first, last)]
        if not any(claims):
            return ran
        for queue, claim in zip((first, last), claims, strict=True):
            for delivery in claim:
                if delivery.payload == b"index":
                    assert all(parent.state == "done" for parent in queue.parents(delivery))
                ran.append(delivery.payload)
                queue.ack(delivery, result=b"done")
