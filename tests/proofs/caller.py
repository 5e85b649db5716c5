"""A process that makes random calls on a store until its input ends, and logs each call before it is made and after it
was answered. `call_history` reads the log.

Run as `python -m tests.proofs.caller URL LOG NAME`. A line of the log is a list:

    ["call", number, moment, ms, verb, details]     moment: of the monotonic clock, which all processes of a host share
    ["answer", number, moment, ms, answer, details]
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

import tenure
from tenure import Backoff, NewJob, Policy
from tenure.errors import AlreadySettled, CommitUnknown, LeaseLost, StoreError
from tenure.model.lease import Delivery, Settled
from tests.proofs.crowd import opened

QUEUES = ("a", "b", "c", "d")
POLICY = Policy(max_attempts=3, backoff=Backoff.fixed(0))
#: Of many calls, which are made: most are those of workers.
VERBS = (
    ("enqueue",) * 5 + ("claim",) * 7 + ("settle",) * 9 + ("settle_all", "extend", "look", "look", "cancel", "replay")
)
SETTLES = ("ack", "ack", "ack", "nack", "fail", "release", "snooze")


class Held(msgspec.Struct):
    """A delivery, live or expired; and the other deliveries of its claim."""

    queue: str
    delivery: Delivery
    claim: list[Delivery]


class Caller:
    def __init__(self, store: tenure.Store, log: str, name: str) -> None:
        self._store = store
        self._file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._name = name
        self._chance = random.Random(name)
        self._number = 0
        self._held: list[Held] = []
        self._jobs: list[tuple[str, str]] = []

    def step(self) -> None:
        """Make one call. A call that raises an error of the store's state has an unknown outcome."""
        getattr(self, f"_{self._chance.choice(VERBS)}")()

    def _call(self, verb: str, details: object, run: Callable[[], object]) -> Any:
        """Make a call and log it. Returns its result; None if it raised."""
        self._number += 1
        self._write("call", verb, details)
        try:
            result = run()
        except AlreadySettled:
            self._write("answer", "settled", None)
        except LeaseLost:
            self._write("answer", "lost", None)
        except (StoreError, CommitUnknown) as error:
            self._write("answer", "unknown", repr(error)[:200])
        else:
            self._write("answer", "ok", _told(result))
            return result
        return None

    def _write(self, kind: str, what: str, details: object) -> None:
        """Write a line with a single call of the system: it survives a kill."""
        line = (kind, self._number, time.monotonic_ns(), time.time_ns() // 1_000_000, what, details)
        os.write(self._file, msgspec.json.encode(line) + b"\n")

    def _enqueue(self) -> None:
        name = self._chance.choice(QUEUES)
        payloads = [f"{self._name}/{self._number}/{place}" for place in range(self._chance.choice((1, 1, 2)))]
        jobs = [NewJob(payload.encode()) for payload in payloads]
        added = self._call("enqueue", [name, payloads], lambda: self._store.queue(name).enqueue_many(jobs))
        self._jobs += [(name, each.id) for each in added or ()]

    def _claim(self) -> None:
        name, lease = self._chance.choice(QUEUES), self._chance.choice((0.3, 1.0, 3.0))
        limit, wait = self._chance.choice((1, 1, 3)), self._chance.choice((0, 0, 0.05))
        run = lambda: self._store.queue(name).claim(limit, lease=lease, wait=wait)  # noqa: E731 - its type is known
        claim = self._call("claim", [name, lease * 1000], run)
        deliveries = list(claim or ())
        self._held = [*self._held, *(Held(name, delivery, deliveries) for delivery in deliveries)][-12:]
        self._jobs += [(name, delivery.id) for delivery in deliveries]
        if not self._chance.randrange(8):
            time.sleep(self._chance.choice((0.1, 0.5)))  # longer than the shortest lease

    def _settle(self) -> None:
        if not self._held:
            return
        held, verb = self._chance.choice(self._held), self._chance.choice(SETTLES)
        more = {"delay": 0.1} if verb == "snooze" else {}
        queue = self._store.queue(held.queue)
        self._call(verb, [held.queue, _proof(held.delivery)], lambda: getattr(queue, verb)(held.delivery, **more))

    def _settle_all(self) -> None:
        if not self._held:
            return
        held = self._chance.choice(self._held)
        run = lambda: self._store.queue(held.queue).ack_many(held.claim)  # noqa: E731
        self._call("ack_many", [held.queue, [_proof(delivery) for delivery in held.claim]], run)

    def _extend(self) -> None:
        if not self._held:
            return
        held, seconds = self._chance.choice(self._held), self._chance.choice((0.2, 2.0))
        run = lambda: self._store.queue(held.queue).extend(held.delivery, seconds)  # noqa: E731
        self._call("extend", [held.queue, [_proof(each) for each in held.claim], seconds * 1000], run)

    def _look(self) -> None:
        if self._jobs:
            self.look_at(*self._chance.choice(self._jobs[-20:]))

    def _cancel(self) -> None:
        if self._jobs:
            name, job = self._chance.choice(self._jobs[-20:])
            self._call("cancel", [name, job], lambda: self._store.queue(name).cancel(job))

    def drain(self, name: str) -> None:
        """Claim and ack all jobs of a queue."""
        queue = self._store.queue(name)
        until = time.monotonic() + 60
        while (counts := queue.counts()).waiting or counts.leased:
            assert time.monotonic() < until, f"jobs are leased to nobody: {counts}"
            claim = self._call("claim", [name, 60_000], lambda: queue.claim(100, lease=60, wait=1))
            for delivery in claim:
                self._call("ack", [name, _proof(delivery)], lambda delivery=delivery: queue.ack(delivery))  # type: ignore[misc]

    def look_at(self, name: str, job: str) -> None:
        self._call("get", [name, job], lambda: self._store.queue(name).get(job))

    def _replay(self) -> None:
        name = self._chance.choice(QUEUES)
        self._call("replay", [name], lambda: self._store.queue(name).replay(limit=5))


def _proof(delivery: Delivery) -> tuple[str, str, int]:
    return delivery.id, delivery.lease.hex(), delivery.token


def _told(result: object) -> object:
    """The part of an answer that `call_history` compares."""
    if isinstance(result, tenure.Claim):
        until = 0 if result._leased is None else result._leased.until_ms
        return [until, [(*_proof(delivery), delivery.payload.decode()) for delivery in result]]
    if isinstance(result, list):
        return [added.id for added in result]
    if isinstance(result, Settled):
        return [result.done, result.damaged]
    if isinstance(result, tenure.Job):
        return [result.state, result.token]
    return next((getattr(result, name) for name in ("until_ms", "ids") if hasattr(result, name)), result)


def main(url: str, log: str, name: str) -> None:
    over = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    with opened(url, timeout=None) as store:
        caller = Caller(store, log, name)
        while not over.is_set():
            caller.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
