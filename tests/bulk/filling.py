"""A store with a bit of everything: states, keys, headers, large payloads and results, leases, errors, several queues."""

from __future__ import annotations

from tenure import Backoff, NewJob, Policy
from tenure.api.store import Store
from tenure.clock import ManualClock

KEEPING = Policy(retention=3600, backoff=Backoff.fixed(86_400), max_attempts=3)


def fill(store: Store, clock: ManualClock | None = None, scale: int = 1) -> None:
    def wait(seconds: float) -> None:
        if clock is not None:
            clock.advance(seconds)

    mail = store.queue("emails", tenant="acme")
    mail.configure(KEEPING)
    plain = store.queue("plain")
    other = store.queue("thumbs", tenant="zebra")
    other.configure(Policy(max_waiting=10**6, retention=60))
    mail.enqueue_many([NewJob(f"mail {n}".encode(), priority=n % 10) for n in range(300 * scale)])
    wait(1)
    mail.enqueue(b"", key="order-17", headers={"trace": "é-1", "n": "2"})
    mail.enqueue(b"later", delay=86_400, ttl=90_000)  # nothing becomes due while a test runs, however slowly
    mail.enqueue(b"x" * 65_536)
    mail.enqueue(bytes(range(256)) * 1024, headers={"size": "large"})
    plain.enqueue_many([b"p" * (n % 40) for n in range(100)])
    grouped = [None, "g1", "g2", None]
    other.enqueue_many([NewJob(b"o", key=f"k{n}", group=grouped[n % len(grouped)]) for n in range(20)])
    wait(1)
    claim = mail.claim(limit=40, worker="wörker-1", id="claim-1")
    for n, delivery in enumerate(claim):
        if n < 10:
            mail.ack(delivery, result=b"r" * n)
        elif n == 10:
            mail.ack(delivery, result=b"R" * 200_000)
        elif n < 15:
            mail.nack(delivery, error=f"TimeoutError: {n}")
        elif n < 20:
            mail.fail(delivery, error=f"ValueError: ü{n}")
        elif n < 22:
            mail.release(delivery)
        elif n == 22:
            mail.progress(delivery, 0.25, "a quarter")
    mail.extend(claim, 90)
    mail.cancel(claim.deliveries[30].id)
    wait(1)
    for _ in range(3):
        d = other.claim(limit=2, worker="w2")
        other.ack_many(d.deliveries)
    plain.claim(limit=5)
    plain.pause()
