"""Injected faults: the same seed and the same calls give the same faults."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

Fate = Literal["", "conflict", "unknown_done", "unknown_not_done", "late", "recovery"]


@dataclass(frozen=True)
class Rates:
    """The probability of each fault for a commit (`too_old`: for a read)."""

    #: A conflict (1020).
    conflict: float = 0.0
    #: The answer is lost (1021); whether the transaction committed is drawn too.
    unknown: float = 0.0
    #: The answer is lost (1039), and the transaction commits later, after some that were sent after it.
    late: float = 0.0
    #: The cluster recovers: versions jump by 100 million, and running transactions fail.
    recovery: float = 0.0
    #: A read fails because its version is too old (1007).
    too_old: float = 0.0


class Faults:
    """Draws faults. A test sets `on` to False while it prepares or verifies."""

    def __init__(self, seed: int = 0, rates: Rates | None = None) -> None:
        self.random = Random(seed)
        self.rates = rates or Rates()
        self.on = rates is not None
        #: The number of drawn faults, by kind.
        self.drawn: dict[str, int] = {}

    def of_commit(self) -> Fate:
        if not self.on:
            return ""
        draw, rates = self.random.random(), self.rates
        fate: Fate
        for fate, rate in (("conflict", rates.conflict), ("late", rates.late), ("recovery", rates.recovery)):
            if draw < rate:
                return self._count(fate)
            draw -= rate
        if draw < rates.unknown:
            return self._count("unknown_done" if self.random.random() < 0.5 else "unknown_not_done")
        return ""

    def of_read(self) -> bool:
        """Whether a read fails because its version is too old."""
        if not self.on or not self.rates.too_old or self.random.random() >= self.rates.too_old:
            return False
        self.drawn["too_old"] = self.drawn.get("too_old", 0) + 1
        return True

    def delay(self) -> int:
        """How many later commits overtake a delayed one."""
        return self.random.randint(1, 5)

    def _count(self, fate: Fate) -> Fate:
        self.drawn[fate] = self.drawn.get(fate, 0) + 1
        return fate
