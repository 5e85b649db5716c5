"""One of several processes on one `rocksdb:` path: puts jobs in and does them until its input ends, and writes down, before
and after each call, what it asks and what it was told. Run as `python -m tests.proofs.neighbour URL LOG NAME`.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading

import tenure
from tenure import LeaseLost

#: Jobs of one that was killed come back after this; nobody works on one for as long.
LEASE = 4.0
#: Seconds between two turns of a thread: what the proof needs is calls under way at each kill, not as many as a core can do.
PAUSE = 0.01


class Diary:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, *words: object) -> None:
        """One call: what is written is there, whoever is killed afterwards."""
        os.write(self._file, (json.dumps(words) + "\n").encode())


def work(store: tenure.Store, diary: Diary, name: str, number: int, over: threading.Event) -> None:
    queue, chance = store.queue("work"), random.Random(f"{name}{number}")
    for turn in itertools.count():
        if over.wait(PAUSE):
            return
        payloads = [f"{name}/{number}/{turn}/{place}" for place in range(chance.choice((1, 1, 3)))]
        diary.write("adding", payloads)
        answers = queue.enqueue_many([payload.encode() for payload in payloads])
        diary.write("added", payloads, [answer.id for answer in answers])
        for delivery in queue.claim(limit=chance.choice((1, 2, 4)), lease=LEASE, wait=chance.choice((0, 0.1))):
            payload = delivery.payload.decode()
            diary.write("acking", payload, delivery.id)
            try:
                queue.ack(delivery)
            except LeaseLost:
                diary.write("lost", payload, delivery.id)
            else:
                diary.write("acked", payload, delivery.id)


def main(url: str, log: str, name: str) -> None:
    diary, over = Diary(log), threading.Event()
    with tenure.open(url, durability="os") as store:
        diary.write("here", os.getpid())

        def run(number: int) -> None:
            try:
                work(store, diary, name, number, over)
            except BaseException as exc:
                diary.write("failed", repr(exc))

        threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        over.set()
        for thread in threads:
            thread.join()
    diary.write("left")


if __name__ == "__main__":
    main(*sys.argv[1:])
