"""Jobs that wait for jobs in every way, and jobs with steps and signals."""

from __future__ import annotations

from typing import NamedTuple

from tenure import NewJob, Policy
from tenure.api.store import Store


class Flows(NamedTuple):
    """Ids of the jobs that wait, and of one that has steps."""

    #: Of three parents one is done and gone, one is done and kept, one waits.
    half: str
    #: Its only parent is dead, and it waits for it to be replayed.
    patient: str
    #: Its parents are dead and ready; the dead one counts as ended.
    runs: str
    #: Ran: both its parents are done.
    ready: str
    #: Has two steps, a signal, and waits for another signal.
    stepped: str


def fill_flows(store: Store) -> Flows:
    """Needs a store that has no queue named `flows`, `kept` or `steps`."""
    queue, kept, stepped = store.queue("flows"), store.queue("kept"), store.queue("steps")
    queue.configure(Policy(retention=0, max_attempts=1))
    kept.configure(Policy(retention=3600, max_attempts=1))
    gone = queue.enqueue(b"gone", priority=9).id
    done = kept.enqueue(b"done", priority=9).id
    waits = queue.enqueue(b"waits").id
    half, ready = queue.enqueue_many(
        [NewJob(b"half", after=[gone, done, waits]), NewJob(b"ready", priority=1, after=[gone, done])]
    )
    queue.ack(queue.claim()[0])
    kept.ack(kept.claim()[0], result=b"r")
    dead = kept.enqueue(b"dead", priority=9).id
    patient, _, runs = queue.enqueue_many(
        [
            NewJob(b"patient", after=[dead], on_parent_dead="wait"),
            NewJob(b"p", name="p"),
            NewJob(b"runs", after=["#p", dead], on_parent_dead="run"),
        ]
    )
    kept.fail(kept.claim()[0], error="no")
    job = stepped.enqueue(b"stepped").id
    delivery = stepped.claim()[0]
    stepped.record_step(delivery, "charge", b"42")
    stepped.signal(job, "approval", b"yes")
    stepped.record_step(delivery, "ship", bytes(10_000))
    stepped.snooze(delivery, 3600, until_signal="go")
    return Flows(half.id, patient.id, runs.id, ready.id, job)
