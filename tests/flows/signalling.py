"""The process that is killed: one job repeatedly records a step, waits for a signal, and gets it.

python -m tests.flows.signalling URL DURABILITY LOG ROUNDS
    writes a line to the file LOG once each verb has returned
"""

from __future__ import annotations

import os
import sys

import tenure


def work(url: str, durability: str, log: str, rounds: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with tenure.open(url, durability=durability, sweep=False) as store:  # type: ignore[arg-type]
        queue = store.queue("work")
        job = queue.enqueue(b"job").id
        os.write(out, b"open\n")
        for n in map(str, range(int(rounds))):
            (delivery,) = queue.claim(lease=3600)
            queue.record_step(delivery, n, n.encode())
            os.write(out, b"step\n")
            queue.snooze(delivery, 3600, until_signal=n)
            os.write(out, b"wait\n")
            assert queue.signal(job, n, n.encode())
            os.write(out, b"signal\n")


if __name__ == "__main__":
    work(*sys.argv[1:])
