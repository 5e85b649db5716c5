"""Group dead jobs by cause of death.

Two errors have the same cause if they differ only in numbers, ids and quoted values: `Timeout: host 10.0.0.7 after 30
s` and `Timeout: host 10.0.0.9 after 31 s` are `Timeout: host #.#.#.# after # s`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from tenure.model.explanation import headline
from tenure.model.job import Job

_MASKED = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8,}\b|'[^']{0,200}'|\"[^\"]{0,200}\"|\d+")
MASK = "#"
_IDS = 5


class Cause(Struct):
    """A cause. Every error of it contains the text `part`, which a replay by error searches for."""

    cause: str
    part: str
    reason: str
    jobs: int
    first_ms: int
    last_ms: int
    #: The ids of some of the jobs.
    ids: list[str]


def causes_of(jobs: Sequence[Job]) -> list[Cause]:
    """Return the causes of these jobs, the most common first."""
    found: dict[tuple[str, str], Cause] = {}
    for job in jobs:
        cause = masked(headline(job.error)) or "(no error was given)"
        key = cause, job.reason or ""
        ended_ms = job.ended_at_ms or 0
        group = found.get(key)
        if group is None:
            group = found[key] = Cause(
                cause, common_part(cause) if job.error else "", key[1], 0, ended_ms, ended_ms, []
            )
        group.jobs += 1
        group.first_ms, group.last_ms = min(group.first_ms, ended_ms), max(group.last_ms, ended_ms)
        if len(group.ids) < _IDS:
            group.ids.append(job.id)
    return sorted(found.values(), key=lambda cause: -cause.jobs)


def masked(line: str) -> str:
    return _MASKED.sub(MASK, line)


def common_part(cause: str) -> str:
    """Return the longest text of a masked line that all its errors contain."""
    return max(cause.replace("…", MASK).split(MASK), key=len).strip()
