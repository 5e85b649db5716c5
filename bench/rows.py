"""The results of a benchmark: rows that name batch, payload, clients and durability, and what they are compared with.

    Setting   the conditions                 Row   one figure, its spread, its ratio to a baseline, its target

A ratio is taken within one run and one setting, never across durabilities.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

KIB = 1024


@dataclass(frozen=True)
class Setting:
    """The conditions of a measurement; None if one does not apply."""

    durability: str = "os"
    batch: int | None = 100
    payload: int | None = 128
    clients: int | None = 1
    kind: str = "client"  # the kind of client: client (of a server), thread, process

    def columns(self) -> tuple[str, str, str, str]:
        plural = "" if self.clients == 1 else "es" if self.kind.endswith("s") else "s"
        clients = "-" if self.clients is None else f"{self.clients} {self.kind}{plural}"
        return (
            "-" if self.batch is None else f"{self.batch:,}",
            "-" if self.payload is None else size(self.payload),
            clients,
            self.durability,
        )


@dataclass(frozen=True)
class Target:
    """A target of issue 3 for a row, and whether it is met."""

    text: str
    met: bool
    #: False: the next mark, which would be good to reach.
    must: bool = True

    def __str__(self) -> str:
        if self.must:
            return f"{self.text}: {'met' if self.met else 'MISSED'}"
        return f"next mark {self.text}: {'reached' if self.met else 'not yet'}"


@dataclass
class Row:
    section: str
    what: str
    setting: Setting
    value: float | None = None
    unit: str = "lives/s"
    low: float | None = None
    high: float | None = None
    ratio: float | None = None
    #: What the ratio compares: "Tenure / this", "to 1 thread".
    ratio_of: str = ""
    targets: list[Target] = field(default_factory=list)
    note: str = ""
    #: Why it could not be measured, and how to install what is missing.
    skipped: str = ""

    @property
    def missed(self) -> bool:
        return any(target.must and not target.met for target in self.targets)

    def expect(self, text: str, met: bool, *, must: bool = True) -> Row:
        self.targets.append(Target(text, met, must))
        return self


def spread(values: list[float]) -> tuple[float, float, float]:
    """(median, lowest, highest)."""
    return median(values), min(values), max(values)


def paired_ratio(ours: list[float], theirs: list[float]) -> float:
    """Return the median of the ratios round by round: what slowed the machine down in a round slowed both."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def size(number: int) -> str:
    if number >= KIB and number % KIB == 0:
        return f"{number // KIB} KiB"
    return f"{number} B"


def number(value: float | None, unit: str = "") -> str:
    if value is None:
        return "-"
    if unit == "":
        return f"{value:.2f}"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
