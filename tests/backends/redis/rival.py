"""One of two processes that claim and repair at the same moment: `python -m tests.backends.redis.rival URL CLAIMS`."""

from __future__ import annotations

import json
import sys

import tenure


def main() -> None:
    url, claims = sys.argv[1], int(sys.argv[2])
    deliveries: list[tuple[str, int, int]] = []
    settled: list[str] = []
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("work")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        for turn in range(claims):
            claim = queue.claim(limit=3, lease=0.001)
            deliveries += [(d.id, d.token, d.attempt) for d in claim]
            if turn % 50 == 0 and claim:  # most are left to run out; now and then one is settled in time, or not
                settled += queue.ack_many(list(claim)[:1]).done
    sys.stdout.write(json.dumps({"deliveries": deliveries, "settled": settled}) + "\n")


if __name__ == "__main__":
    main()
