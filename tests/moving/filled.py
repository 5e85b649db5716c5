"""Fills a store with a given number of jobs, in every state."""

from __future__ import annotations

import random

from tenure import Backoff, NewJob, Policy, Store
from tenure.model.lease import Settle


def fill(store: Store, jobs: int, seed: int = 1) -> None:
    chance = random.Random(seed)
    queues = [store.queue("emails"), store.queue("reports"), store.queue("emails", tenant="acme")]
    for queue in queues:
        queue.configure(Policy(retention=86_400, max_attempts=3, backoff=Backoff.fixed(0), lease=3600))
    made = 0
    while made < jobs:
        queue = queues[made // 1000 % len(queues)]
        count = min(1000, jobs - made)
        queue.enqueue_many([_job(chance, made + n) for n in range(count)])
        verdicts = []
        for delivery in queue.claim(limit=count * 2 // 3, worker="w"):
            verb = chance.choice(["ack", "nack", "fail", "release", ""])
            if verb:
                result = b"result" if verb == "ack" and chance.random() < 0.5 else None
                error = "Broken: é" if verb in ("nack", "fail") else None
                verdicts.append(Settle(verb, delivery.proof, result, error))
        queue.settle_many(verdicts)
        queue.replay(limit=20)
        made += count
    queues[1].pause()


def _job(chance: random.Random, number: int) -> NewJob:
    kind = chance.randrange(40)
    return NewJob(
        b"x" * 100_000 if kind == 0 and number % 1000 < 40 else chance.randbytes(chance.randrange(200)),
        priority=chance.randrange(10),
        delay=3600 if kind == 1 else None,
        ttl=7200 if kind == 2 else None,
        key=f"order-{number}" if kind in (3, 4) else None,
        headers={"trace": str(number), "é": "ü"} if kind < 10 else None,
    )
