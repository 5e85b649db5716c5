"""Some histories after each other, in this process: what a pool of processes calls."""

from __future__ import annotations

import gc
import logging
import time
from typing import NamedTuple

from tests.simulation.shrinking import failure_of
from tests.simulation.world import History

#: After how many histories cycles are collected.
_COLLECTED = 25


class Tally(NamedTuple):
    """What some histories came to."""

    histories: int = 0
    steps: int = 0
    events: int = 0
    power_cuts: int = 0
    #: Claims that were answered, and that a power cut took.
    claims_lost: int = 0
    cpu_seconds: float = 0.0
    #: Seed and failure of those that failed.
    failures: tuple[tuple[int, str], ...] = ()

    def plus(self, other: Tally) -> Tally:
        return Tally(*(a + b for a, b in zip(self, other, strict=True)))  # type: ignore[operator]  # numbers and tuples


def simulate(seeds: range) -> Tally:
    """Run the histories of these seeds."""
    before, collecting = logging.root.manager.disable, gc.isenabled()
    logging.disable(logging.CRITICAL)
    gc.disable()  # a history makes no more cycles than fit into memory: looking for them took a fifth of the time
    gc.freeze()  # nor is any to be found in what was imported
    try:
        return _simulate(seeds)
    finally:
        gc.unfreeze()
        logging.disable(before)
        if collecting:
            gc.enable()


def _simulate(seeds: range) -> Tally:
    began, tally = time.process_time(), Tally()
    for seed in seeds:
        if seed % _COLLECTED == 0:
            gc.collect()
        history = History(seed)
        failed = failure_of(history)
        found = () if failed is None else ((seed, failed),)
        tally = tally.plus(Tally(1, history.steps, history.events, history.power_cuts, history.claims_lost, 0.0, found))
    return tally._replace(cpu_seconds=time.process_time() - began)
