"""The process that is killed: one job hands over to the next, from queue to queue, for ever.

python -m tests.flows.handing_over URL DURABILITY      prints the number of each job once its ack has returned
"""

from __future__ import annotations

import os
import sys

import tenure
from tenure import NewJob


def work(url: str, durability: str) -> None:
    with tenure.open(url, durability=durability, sweep=False) as store:  # type: ignore[arg-type]
        queues = [store.queue("even"), store.queue("odd")]
        os.write(1, b"open\n")
        while True:
            for queue in queues:
                for delivery in queue.claim(lease=3600):
                    number = int(delivery.payload)
                    other = "odd" if queue.name.queue == "even" else "even"
                    queue.ack(delivery, then=[NewJob(b"%d" % (number + 1), queue=other)])
                    os.write(1, b"%d\n" % number)


if __name__ == "__main__":
    work(*sys.argv[1:])
