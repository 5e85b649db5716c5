"""Runs several histories in this process; called by a pool of processes."""

from __future__ import annotations

import gc
import logging
import signal
import time
from typing import NamedTuple

from tests.simulation.shrinking import failure_of
from tests.simulation.world import History

#: The garbage collector runs after this many histories.
_COLLECTED = 25


class Tally(NamedTuple):
    """The totals of several histories."""

    histories: int = 0
    steps: int = 0
    events: int = 0
    power_cuts: int = 0
    #: Claims that were answered, and claims that a power loss undid.
    claims_lost: int = 0
    cpu_seconds: float = 0.0
    #: The checksums of the histories' journals, added: equal for the same seeds on every machine.
    journals: int = 0
    #: Seed and failure of each failed history.
    failures: tuple[tuple[int, str], ...] = ()

    def plus(self, other: Tally) -> Tally:
        return Tally(*(a + b for a, b in zip(self, other, strict=True)))  # type: ignore[operator]  # numbers and tuples


def leave_interrupts() -> None:
    """A terminal sends Ctrl-C to all processes: only the first one decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def simulate(seeds: range) -> Tally:
    """Run the histories of these seeds."""
    before, collecting = logging.root.manager.disable, gc.isenabled()
    logging.disable(logging.CRITICAL)
    gc.disable()  # the collector took a fifth of the time, and the cycles of a history fit into memory
    gc.freeze()  # imported modules contain no garbage
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
        counts = history.steps, history.events, history.power_cuts, history.claims_lost
        tally = tally.plus(Tally(1, *counts, 0.0, history.journal, found))
    return tally._replace(cpu_seconds=time.process_time() - began)
