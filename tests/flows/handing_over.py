"""The process that is killed: each job enqueues the next one with its ack, from queue to queue, for ever.

python -m tests.flows.handing_over URL DURABILITY QUEUE,QUEUE… [LOG COUNT]
    prints the number of each job once its ack has returned; or writes it to the file LOG, and ends after COUNT
"""

from __future__ import annotations

import os
import sys

import tenure
from tenure import NewJob


def work(url: str, durability: str, names: str, log: str = "", count: str = "0") -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if log else 1
    with tenure.open(url, durability=durability, sweep=False) as store:  # type: ignore[arg-type]
        queues = [store.queue(name) for name in names.split(",")]
        if not any(queue.counts().enqueued for queue in queues):
            queues[0].enqueue(b"0")
        os.write(out, b"open\n")
        done = 0
        while not log or done < int(count):
            for place, queue in enumerate(queues):
                for delivery in queue.claim(lease=3600):
                    number = int(delivery.payload)
                    after = queues[(place + 1) % len(queues)].name.queue
                    queue.ack(delivery, then=[NewJob(b"%d" % (number + 1), queue=after)])
                    os.write(out, b"%d\n" % number)
                    done += 1


if __name__ == "__main__":
    work(*sys.argv[1:])
