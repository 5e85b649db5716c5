"""`make simulate`: runs many histories on all cores; the first that fails is shrunk and printed, and can be replayed.

python -m tests.simulation --histories 2000
python -m tests.simulation --seconds 120
python -m tests.simulation --histories 1000000 --record runs.jsonl       goes on where a stopped run left off
python -m tests.simulation --histories 0 --record runs.jsonl             the totals of all that it records
python -m tests.simulation --seed 17                       one history, printed
python -m tests.simulation --seed 17 --steps 3,8,41        … with these steps only
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count
from multiprocessing import get_context
from pathlib import Path

from tests.simulation.batch import Tally, leave_interrupts, simulate
from tests.simulation.record import Record
from tests.simulation.shrinking import failure_of, shrunk
from tests.simulation.world import STEPS, History

_CHUNK = 50


def _chunks(first: int, histories: int | None) -> Iterator[range]:
    for begin in count(first, _CHUNK):
        if histories is not None and begin >= first + histories:
            return
        yield range(begin, begin + _CHUNK if histories is None else min(begin + _CHUNK, first + histories))


def run(first: int, histories: int | None, seconds: float | None, processes: int, record: Record) -> bool:
    """Run histories until the number or the time is reached, or one has failed. Seeds that are recorded are left out.

    Ctrl-C begins no more of them, and waits for those that run. Returns False after it.
    """
    chunks = (seeds for seeds in _chunks(first, histories) if not record.has(seeds))
    until = None if seconds is None else time.monotonic() + seconds
    with ProcessPoolExecutor(processes, get_context("forkserver"), leave_interrupts) as pool:
        running: dict[Future[Tally], range] = {}
        failed = interrupted = False
        while True:
            late = until is not None and time.monotonic() > until
            while len(running) < 2 * processes and not (late or failed or interrupted):
                seeds = next(chunks, None)
                if seeds is None:
                    break
                running[pool.submit(simulate, seeds)] = seeds
            if not running:
                return not interrupted
            try:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
            except KeyboardInterrupt:
                interrupted = True
                continue
            for future in done:
                tally = future.result()
                record.add(running.pop(future), tally)
                failed = failed or bool(tally.failures)


def tell(seed: int, numbers: Sequence[int]) -> int:
    """Run one history and print its calls. Returns 1 if it fails."""
    history = History(seed, numbers, talk=True)
    failed = failure_of(history)
    print("step     time  call: answer")
    print("\n".join(history.log or ()))
    print(failed or "every promise was kept")
    return 0 if failed is None else 1


def explain(seed: int, failed: str) -> None:
    """Print a failed history: shrunk, and how to replay it."""
    print(f"\nseed {seed} fails: {failed}")
    numbers = shrunk(seed, range(STEPS), seconds=30)
    print(f"\nOf its {STEPS} steps, these {len(numbers)} are enough:")
    tell(seed, numbers)
    steps = ",".join(map(str, numbers))
    print(f"\nReplay: python -m tests.simulation --seed {seed} --steps {steps}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Run simulated histories.")
    parser.add_argument("--histories", type=int, help="how many")
    parser.add_argument("--seconds", type=float, help="for how long")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--record", type=Path, help="a file of what was run: its seeds are not run again, but counted")
    parser.add_argument("--seed", type=int, help="run one history, and tell of it")
    parser.add_argument("--steps", help="of that history, only these steps")
    given = parser.parse_args(arguments)
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return _carry_out(given)
    finally:
        logging.disable(before)


def _carry_out(given: argparse.Namespace) -> int:
    if given.seed is not None:
        return tell(given.seed, range(STEPS) if given.steps is None else [int(n) for n in given.steps.split(",")])
    histories = given.histories if given.histories is not None or given.seconds is not None else 1000
    began, record = time.monotonic(), Record(given.record)
    whole = run(given.first, histories, given.seconds, given.processes, record)
    took, tally = time.monotonic() - began, record.total()
    print(
        f"{tally.histories:,} histories, {tally.steps:,} steps, {tally.events:,} events, {tally.power_cuts:,} power cuts, "
        f"{tally.claims_lost:,} claims lost, journals {tally.journals:x} "
        f"in {took:.0f} s: {tally.histories / max(tally.cpu_seconds, 0.001):.0f} histories a second of one core; "
        f"{len(tally.failures)} failed"
    )
    for seed, failed in tally.failures[:1]:
        explain(seed, failed)
    if not whole:
        print(f"stopped; the same command goes on after what {given.record} records" if given.record else "stopped")
    return 1 if tally.failures else 0 if whole else 130


if __name__ == "__main__":
    sys.exit(main())
