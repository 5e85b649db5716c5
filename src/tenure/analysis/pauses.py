"""How long queues were paused, hour by hour. Pauses are few: they are counted here, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

_HOUR = 3_600_000
Hours = list[tuple[datetime, str, str, int]]

#: Of `{events}`: when queues were paused and resumed.
CHANGES = """
SELECT tenant, queue, type, unix_millis(time) AS ms FROM {events}
WHERE type IN ('queue_paused', 'queue_resumed') ORDER BY commit, `index`"""


def paused_hours(
    changes: Sequence[Mapping[str, Any]], paused: Mapping[str, int], start_ms: int | None, end_ms: int
) -> tuple[Hours, dict[str, int]]:
    """(hour, tenant, queue, milliseconds) within the run, and which queues are paused at its end, since when.

    `changes` are the rows of `CHANGES`, `paused` what was paused at the end of the run before.
    """
    since = dict(paused)
    spans: list[tuple[str, int, int]] = []
    for row in changes:
        name = f"{row['tenant']}/{row['queue']}"
        if row["type"] == "queue_paused":
            since.setdefault(name, row["ms"])
        elif name in since:
            spans.append((name, since.pop(name), row["ms"]))
    spans += [(name, begin, end_ms) for name, begin in since.items()]
    totals: dict[tuple[int, str], int] = {}
    for name, begin, end in spans:
        begin = max(begin, start_ms or 0)  # what was before is in the runs before
        while begin < end:
            hour = begin // _HOUR
            stop = min(end, (hour + 1) * _HOUR)
            totals[hour, name] = totals.get((hour, name), 0) + stop - begin
            begin = stop
    hours = [
        (datetime.fromtimestamp(hour * _HOUR / 1000, UTC), *_split(name), ms)
        for (hour, name), ms in sorted(totals.items())
    ]
    return hours, since


def _split(name: str) -> tuple[str, str]:
    tenant, _, queue = name.partition("/")
    return tenant, queue
