"""The process that is killed: its threads call all verbs, and log each call before and after.

    python -m tests.crash.worker        reads lines on its standard input: url, log, seed, process number
                                        forks a child that works, prints its pid; "reap <pid>" prints how it ended

The server itself opens no store, so that a fork costs a few milliseconds and inherits no thread.

Each process has one log file, written by single appends, which survive a kill: ["B", call, verb, arguments] before a
call, ["E", call, outcome] after it has returned. A call without its "E" was in flight.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import threading
from typing import Any

import tenure
import tenure.backends.embedded
import tenure.storage.engines.lmdb  # all loaded here, once, for every fork
import tenure.storage.engines.rocksdb
from tenure import NewJob
from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.errors import LeaseLost
from tenure.model.lease import Delivery
from tenure.storage.segments import SegmentedTransaction, SegmentUse

THREADS = 4
QUEUES = ("plain", "kept")
PLENTY = 150  # with more waiting jobs than this, workers consume more than they produce
KEYS = 400


def payload(call: str, index: int, size: int) -> bytes:
    """The payload of job `index` of a call, which the audit can compute too."""
    text = f"{call}/{index};".encode()
    return (text * (size // len(text) + 1))[:size]


class Log:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(self, *what: object) -> None:
        os.write(self._fd, json.dumps(what).encode() + b"\n")


class Worker:
    """One thread of work."""

    def __init__(self, store: Store, log: Log, name: str, seed: int, shared: Shared) -> None:
        self._store = store
        self._log = log
        self._name = name
        self._random = random.Random(seed)
        self._shared = shared
        self._calls = 0
        self._held: list[tuple[Queue, Delivery]] = []

    def run(self) -> None:
        verbs = [
            (self._enqueue, 20), (self._enqueue_many, 12), (self._claim, 28), (self._ack, 26), (self._ack_many, 8),
            (self._nack, 10), (self._fail, 3), (self._release, 6), (self._extend, 6), (self._progress, 3),
            (self._cancel, 4), (self._replay, 3), (self._sweep, 3),
        ]  # fmt: skip
        functions = [verb for verb, _ in verbs]
        weights = [weight for _, weight in verbs]
        while not self._shared.stop.is_set():
            self._random.choices(functions, weights)[0]()

    def _call(self, verb: str, arguments: dict[str, Any], work: Any) -> Any:
        """Log the call, run it, log its outcome. `work` returns (outcome for the log, result)."""
        call = f"{self._name}.{self._calls}"
        self._calls += 1
        self._log.say("B", call, verb, arguments)
        try:
            outcome, result = work(call)
        except LeaseLost as lost:
            self._log.say("E", call, {"lost": type(lost).__name__})
            return None
        except BaseException as error:
            self._log.say("E", call, {"error": repr(error)})
            raise
        self._log.say("E", call, outcome)
        return result

    # ── in ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _job(self) -> dict[str, Any]:
        roll = self._random.random
        job: dict[str, Any] = {"size": 70_000 + int(roll() * 150_000) if roll() < 0.04 else 20 + int(roll() * 300)}
        if roll() < 0.25:
            job["key"] = f"k{self._random.randrange(KEYS)}"
            job["size"] = 30  # every use of a key has the same payload
        if roll() < 0.25:
            job["delay"] = round(roll() * 0.3, 3)
        if roll() < 0.3:
            job["priority"] = self._random.randrange(10)
        if roll() < 0.3:
            job["group"] = f"g{self._random.randrange(5)}"
        if roll() < 0.05:
            job["ttl"] = round(0.01 + roll() * 0.5, 3)
        return job

    def _enqueue(self) -> None:
        self._enqueue_jobs("enqueue", [self._job()])

    def _enqueue_many(self) -> None:
        count = self._random.randint(2, 20)
        if self._random.random() < 0.5:  # plain jobs, which may be stored as one segment
            self._enqueue_jobs("enqueue_many", [{"size": self._random.randint(20, 300)} for _ in range(count)])
        else:
            self._enqueue_jobs("enqueue_many", [self._job() for _ in range(count)])

    def _enqueue_jobs(self, verb: str, jobs: list[dict[str, Any]]) -> None:
        if self._shared.waiting > PLENTY:
            self._claim()
            return
        queue = self._queue()

        def work(call: str) -> tuple[Any, Any]:
            made = [
                NewJob(
                    payload(job.get("key", call), 0 if "key" in job else index, job["size"]),
                    delay=job.get("delay"),
                    priority=job.get("priority", 0),
                    key=job.get("key"),
                    ttl=job.get("ttl"),
                    group=job.get("group"),
                )
                for index, job in enumerate(jobs)
            ]
            answers = [queue.enqueue(made[0])] if verb == "enqueue" else queue.enqueue_many(made)
            fresh = [answer.id for answer in answers if not answer.duplicate]
            self._shared.waiting += len(fresh)
            self._shared.ids = (self._shared.ids + [(queue, job) for job in fresh])[-50:]
            return [[answer.id, answer.duplicate] for answer in answers], None

        self._call(verb, {"queue": queue.name.queue, "jobs": jobs}, work)

    # ── out ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _claim(self) -> None:
        if len(self._held) > 40:
            self._ack_many()
            return
        queue = self._queue()
        limit = self._random.choice([1, 1, 3, 20])
        lease = self._random.choice([0.02, 0.3, 0.8])

        def work(call: str) -> tuple[Any, Any]:
            claim = queue.claim(limit=limit, lease=lease, worker=self._name)
            self._shared.waiting -= len(claim)
            return [claim.id, [[d.id, d.token, d.attempt] for d in claim]], claim

        claim = self._call("claim", {"queue": queue.name.queue, "limit": limit}, work)
        self._held += [(queue, delivery) for delivery in claim]

    def _settle(self, verb: str, work: Any, *, keep: bool = False) -> None:
        if not self._held:
            self._claim()
            return
        at = self._random.randrange(len(self._held))
        queue, delivery = self._held[at] if keep else self._held.pop(at)
        arguments = {"queue": queue.name.queue, "jobs": [[delivery.id, delivery.token]], "lease": delivery.lease.hex()}
        self._call(verb, arguments, lambda call: (work(queue, delivery), None))

    def _ack(self) -> None:
        result = b"r" * self._random.choice([10, 100, 70_000]) if self._random.random() < 0.2 else None
        self._settle("ack", lambda queue, delivery: queue.ack(delivery, result))

    def _nack(self) -> None:
        delay = self._random.choice([None, 0, 0.05])
        self._settle("nack", lambda queue, delivery: queue.nack(delivery, "it did not work", delay))

    def _fail(self) -> None:
        self._settle("fail", lambda queue, delivery: queue.fail(delivery, "never"))

    def _release(self) -> None:
        self._settle("release", lambda queue, delivery: queue.release(delivery))

    def _progress(self) -> None:
        self._settle("progress", lambda queue, delivery: queue.progress(delivery, 0.5, "half"), keep=True)

    def _extend(self) -> None:
        seconds = self._random.choice([0.1, 0.5, 1])
        self._settle("extend", lambda queue, delivery: queue.extend(delivery, seconds).until_ms, keep=True)

    def _ack_many(self) -> None:
        queue = self._queue()
        chosen = [held for held in self._held if held[0] is queue]
        if not chosen:
            return
        self._held = [held for held in self._held if held[0] is not queue]
        jobs = [[delivery.id, delivery.token] for _, delivery in chosen]

        def work(call: str) -> tuple[Any, Any]:
            settled = queue.ack_many([delivery for _, delivery in chosen])
            return {"done": settled.done, "lost": settled.lost}, None

        self._call("ack_many", {"queue": queue.name.queue, "jobs": jobs}, work)

    # ── mending ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _cancel(self) -> None:
        if self._shared.ids:
            queue, job = self._random.choice(self._shared.ids)
            self._call("cancel", {"queue": queue.name.queue, "job": job}, lambda call: (queue.cancel(job), None))

    def _replay(self) -> None:
        queue = self._queue()
        limit = self._random.choice([1, 50])
        self._call(
            "replay", {"queue": queue.name.queue, "limit": limit}, lambda call: (queue.replay(limit=limit).ids, None)
        )

    def _sweep(self) -> None:
        self._call("sweep", {}, lambda call: (self._store.sweep().leases, None))

    def _queue(self) -> Queue:
        return self._store.queue(self._random.choice(QUEUES))


class Shared:
    """State shared by the threads of a process, without locks: it may be inexact."""

    def __init__(self) -> None:
        self.waiting = 0
        self.ids: list[tuple[Queue, str]] = []
        self.stop = threading.Event()


def work(url: str, durability: str, path: str, seed: int, name: str) -> None:
    log = Log(path)
    faulthandler.register(signal.SIGUSR1)  # prints the stacks of a hanging worker
    store = tenure.open(url, durability=durability, sweep=0.02)  # type: ignore[arg-type]
    shared = Shared()
    signal.signal(signal.SIGTERM, lambda *_: shared.stop.set())
    shared.waiting = sum(info.counts.waiting for info in store.queues())
    workers = [Worker(store, log, f"{name}.{n}", seed + n, shared) for n in range(THREADS)]
    threads = [threading.Thread(target=_run, args=(worker, log), daemon=True) for worker in workers]
    log.say("working")
    for thread in threads:
        thread.start()
    while not shared.stop.wait(0.05):
        pass
    for thread in threads:
        thread.join(20)
    store.close()
    log.say("closed")


def _run(worker: Worker, log: Log) -> None:
    try:
        worker.run()
    except BaseException as error:
        log.say("died", repr(error))


def serve() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for line in sys.stdin:
        words = json.loads(line)
        if words[0] == "reap":
            _, status = os.waitpid(words[1], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                sys.stdin.close()
                work(*words)
                code = 0
            finally:
                os._exit(code)
        print(pid, flush=True)


if __name__ == "__main__":
    # Batches become segments even if the queue's recent claims would make them rows.
    SegmentedTransaction.LEAST, SegmentUse.RESTS = 2, 0
    serve()
