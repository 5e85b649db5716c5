"""The conformance suite's program for other processes: `python -m tenure.testing.child VERB URL QUEUE ARGUMENT`.

A child prints `ready` once its store is open, waits for a line on its standard input, runs the verb, and prints its
answer as one line of JSON. It does not import pytest.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import tenure
from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.errors import StoreClosed, TenureError


def drain(store: Store, queue: Queue, argument: str) -> object:
    """Claim and ack until the queue is empty. Returns the delivered jobs and their leases."""
    delivered: list[str] = []
    leases: list[str | None] = []
    while claim := queue.claim(limit=int(argument), lease=120, worker=f"pid-{os.getpid()}"):
        delivered += [delivery.id for delivery in claim]
        leases.append(claim.id)
        settled = queue.ack_many(claim)
        assert not settled.lost, settled.lost
    return {"delivered": delivered, "leases": leases}


def hold(store: Store, queue: Queue, argument: str) -> object:
    """Claim one job and keep it: the parent kills this process."""
    claim = queue.claim(lease=float(argument), wait=30)
    _say([delivery.receipt for delivery in claim])
    sys.stdin.readline()
    return None


def wait(store: Store, queue: Queue, argument: str) -> object:
    """Wait for a job, and ack it."""
    claim = queue.claim(lease=60, wait=float(argument))
    return queue.ack_many(claim).done


def serve(store: Store, queue: Queue, argument: str) -> object:
    """Wait for that many jobs, one at a time, and ack each as it comes."""
    served = 0
    while served < int(argument):
        claim = queue.claim(lease=60, wait=30)
        served += len(queue.ack_many(claim).done)
        if not claim:
            break
    return served


def enqueue_keys(store: Store, queue: Queue, argument: str) -> object:
    """Enqueue that many keys, each of which other processes enqueue too."""
    added = [queue.enqueue(b"same", key=f"key-{n}") for n in range(int(argument))]
    return [[e.id, e.duplicate] for e in added]


def ack(store: Store, queue: Queue, argument: str) -> object:
    """Ack with a receipt of another process."""
    try:
        queue.ack(argument)
    except TenureError as error:
        return type(error).__name__
    return "acked"


def fork(store: Store, queue: Queue, argument: str) -> object:
    """Use the open store in a forked child. Returns the child's error."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            queue.enqueue(b"from a fork")
            told = "enqueued"
        except StoreClosed:
            told = "StoreClosed"
        except BaseException as error:
            told = repr(error)
        os.write(writing, told.encode())
        os._exit(0)
    os.waitpid(child, 0)
    told = os.read(reading, 10_000).decode()
    queue.enqueue(b"from the parent")
    return told


VERBS: dict[str, Callable[[Store, Queue, str], object]] = {
    verb.__name__: verb for verb in (drain, hold, wait, serve, enqueue_keys, ack, fork)
}


def _say(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    verb, url, queue, argument = sys.argv[1:]
    try:
        store = tenure.open(url, sweep=False)
    except TenureError as error:
        _say({"error": type(error).__name__, "message": str(error)})
        return
    with store:
        _say("ready")
        sys.stdin.readline()
        _say(VERBS[verb](store, store.queue(queue), argument))


if __name__ == "__main__":
    main()
