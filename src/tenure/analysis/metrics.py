"""Numbers by time and queue, as partials of one run each, which merge into the whole.

    flows      how many events of each kind, in the hour they happened; what entered, left, and moved between states
    waits      from visible to claimed, in the hour of the claim
    runs       from claimed to settled, in the hour of the settling, by outcome; expired ones apart
    ends       lives that ended, in that hour, by outcome: time from opening to end, attempts, wasted lease time
    ready      jobs that could be claimed and were not, and since when, at the hour's end: stocks, not flows
    slo        lives first claimed in time, and those that were not, in the hour they became visible
    causes     what was failed of and died of, in the hour it happened

A run looks at the moments from the end of the run before to its own last event, so that runs, however they are cut,
add up to the same. Counts, sums, minima and maxima merge exactly; percentiles by KLL sketches, within their error
(DuckDB keeps every value instead, and is exact).
"""

from __future__ import annotations

from dataclasses import dataclass

from tenure.analysis.attempts import between
from tenure.analysis.causes import cause

HOUR = ("hour", "tenant", "queue")
TYPES = (
    "enqueued", "claimed", "done", "retried", "died", "released", "expired", "cancelled", "replayed", "ttl_passed",
    "purged", "retired", "restored", "repaired",
)  # fmt: skip
STATES = ("waiting", "leased", "done", "dead")
#: A job that waits for others counts as waiting.
_COUNTED_AS = {name: "('waiting', 'blocked')" if name == "waiting" else f"('{name}')" for name in STATES}
PERCENTILES = (0.5, 0.9, 0.95, 0.99)
#: Rank error about 1.3 % (k = 200); a sketch is at most 3 kB however many values it saw.
K = 200
#: Partials are by the hour; a report of a short time asks for shorter steps.
STEP = 3_600_000


@dataclass(frozen=True)
class Span:
    """The moments a run looks at, in milliseconds: from `start` (None: since ever) up to `end`, which is not one of
    them.
    """

    start: int | None
    end: int

    def holds(self, ms: str) -> str:
        before_end = f"{ms} < {self.end}"
        return before_end if self.start is None else f"({before_end} AND {ms} >= {self.start})"


def _step(name: str, step_ms: int) -> str:
    return f"timestamp_millis(CAST(floor(unix_millis({name}) / {step_ms}) AS BIGINT) * {step_ms})"


def _count_where(condition: str, name: str) -> str:
    return f"CAST(sum(CASE WHEN {condition} THEN 1 ELSE 0 END) AS BIGINT) AS {name}"


def _measured(name: str) -> str:
    return (
        f"count({name}) AS count, CAST(sum({name}) AS BIGINT) AS sum_ms, max({name}) AS max_ms,"
        f" kll_sketch_agg_bigint({name}, {K}) AS sketch"
    )


def _by_hour(rows: str, *more: str, aggregates: str) -> str:
    keys = ", ".join((*HOUR, *more))
    return f"SELECT {keys}, {aggregates} FROM ({rows}) AS timed GROUP BY {keys}"


# ── one run ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def flows(step_ms: int = STEP) -> str:
    """Of `{chains}`."""
    counted = [_count_where(f"type = '{name}'", name) for name in TYPES]
    moved = [
        f"CAST(sum(CASE WHEN state IN {names} THEN 1 ELSE 0 END - CASE WHEN prev_state IN {names} THEN 1 ELSE 0 END) AS BIGINT)"
        f" AS d_{name}"
        for name, names in _COUNTED_AS.items()
    ]
    crossed = [_count_where("prev_state = 'gone'", "entered"), _count_where("state = 'gone'", "`left`")]
    rows = f"SELECT {_step('time', step_ms)} AS hour, tenant, queue, type, state, prev_state FROM {{chains}} WHERE NOT carried"
    return _by_hour(rows, aggregates=", ".join((*counted, *moved, *crossed)))


def waits(step_ms: int = STEP) -> str:
    """Of `{attempts}`: the claims made in this run."""
    rows = (
        f"SELECT *, {_step('claimed_at', step_ms)} AS hour FROM {{attempts}} WHERE NOT carried AND wait_ms IS NOT NULL"
    )
    return _by_hour(rows, aggregates=_measured("wait_ms"))


def runs(step_ms: int = STEP) -> str:
    """Of `{attempts}`: those that ended in this run."""
    rows = f"SELECT *, {_step('ended_at', step_ms)} AS hour FROM {{attempts}} WHERE ended_at IS NOT NULL"
    return _by_hour(rows, "outcome", "expired", aggregates=_measured("run_ms"))


def ends(step_ms: int = STEP) -> str:
    """Of `{closed}`, the lives that ended."""
    life = between("opened_at", "ended_at")
    rows = f"SELECT *, {_step('ended_at', step_ms)} AS hour, {life} AS life_ms FROM {{closed}}"
    more = (
        "CAST(sum(attempts) AS BIGINT) AS attempts, CAST(sum(wasted_ms) AS BIGINT) AS wasted_ms,"
        f" kll_sketch_agg_bigint(attempts, {K}) AS attempts_sketch"
    )
    return _by_hour(rows, "outcome", aggregates=f"{_measured('life_ms')}, {more}")


def ready(span: Span, step_ms: int = STEP) -> str:
    """Of `{chains}`: how many jobs were ready at each hour's end, and since when the oldest of them was."""
    # A wait is counted at every hour's end it covers; first gathered by the hours it begins and ends in, which are few.
    # A released job has its old place, and so a `visible_at` from before it waited again.
    start = f"greatest(unix_millis(visible_at), unix_millis(time){'' if span.start is None else f', {span.start}'})"
    end = f"least(coalesce(unix_millis(next_time), {span.end}), {span.end})"
    return f"""
WITH waited AS (
  SELECT tenant, queue, visible_at, CAST(ceil({start} / {step_ms}) AS BIGINT) AS first,
    CAST(ceil({end} / {step_ms}) AS BIGINT) - 1 AS last
  FROM {{chains}} WHERE state = 'waiting' AND visible_at IS NOT NULL
), gathered AS (
  SELECT tenant, queue, first, last, count(*) AS ready, min(visible_at) AS oldest
  FROM waited WHERE first <= last GROUP BY tenant, queue, first, last
), at_ends AS (
  SELECT tenant, queue, ready, oldest, explode(sequence(first, last)) AS number FROM gathered
)
SELECT timestamp_millis((number - 1) * {step_ms}) AS hour, tenant, queue, CAST(sum(ready) AS BIGINT) AS ready,
  min(oldest) AS oldest
FROM at_ends GROUP BY timestamp_millis((number - 1) * {step_ms}), tenant, queue"""


def slo(seconds: float, span: Span, step_ms: int = STEP) -> str:
    """Of `{lives}`: those first claimed within `seconds` of becoming visible, and those that were not.

    A life counts as in time in the hour of its claim, and as late in the hour its time was up: once over all runs.
    """
    due = f"(unix_millis(first_visible_at) + {round(seconds * 1000)})"
    claimed, ended = "unix_millis(first_claimed_at)", "unix_millis(ended_at)"
    late = f"CASE WHEN first_claimed_at IS NOT NULL THEN {claimed} > {due} ELSE ended_at IS NULL OR {ended} > {due} END"
    rows = f"""SELECT {_step("first_visible_at", step_ms)} AS hour, tenant, queue,
      CASE WHEN {claimed} <= {due} AND NOT claimed_before THEN 1 ELSE 0 END AS met,
      CASE WHEN ({late}) AND {span.holds(due)} THEN 1 ELSE 0 END AS missed
    FROM {{lives}} WHERE first_visible_at IS NOT NULL AND NOT over"""
    counted = _by_hour(rows, aggregates="CAST(sum(met) AS BIGINT) AS met, CAST(sum(missed) AS BIGINT) AS missed")
    return f"SELECT * FROM ({counted}) AS judged WHERE met + missed > 0"


def causes(step_ms: int = STEP) -> str:
    """Of `{chains}`."""
    rows = f"""SELECT {_step("time", step_ms)} AS hour, tenant, queue, {cause("error")} AS cause, type
    FROM {{chains}} WHERE NOT carried AND type IN ('retried', 'died')"""
    counted = ", ".join(_count_where(f"type = '{name}'", name) for name in ("retried", "died"))
    return _by_hour(rows, "cause", aggregates=counted)


def partials(slo_seconds: float, span: Span, step_ms: int = STEP) -> dict[str, str]:
    """Every table of a run, by its name."""
    return {
        "flows": flows(step_ms),
        "waits": waits(step_ms),
        "runs": runs(step_ms),
        "ends": ends(step_ms),
        "ready": ready(span, step_ms),
        "slo": slo(slo_seconds, span, step_ms),
        "causes": causes(step_ms),
    }


# ── merging ──────────────────────────────────────────────────────────────────────────────────────────────────────────

TABLES = ("flows", "waits", "runs", "ends", "ready", "slo", "causes")
_KEYS = {"runs": ("outcome", "expired"), "ends": ("outcome",), "causes": ("cause",)}
_MEASURED = ("count", "sum_ms", "max_ms", "sketch")
_COLUMNS = {
    "flows": (*TYPES, *(f"d_{state}" for state in STATES), "entered", "`left`"),
    "waits": _MEASURED,
    "runs": _MEASURED,
    "ends": (*_MEASURED, "attempts", "wasted_ms", "attempts_sketch"),
    "ready": ("ready", "oldest"),
    "slo": ("met", "missed"),
    "causes": ("retried", "died"),
}


def merged(table: str, by: tuple[str, ...] | None = None, where: str = "TRUE") -> str:
    """`{partials}` of any number of runs as one; `by` merges further: ("tenant", "queue") over all hours, say."""
    keys = (*HOUR, *_KEYS.get(table, ())) if by is None else by
    parts = ", ".join((*keys, *(f"{_merge(name)} AS {name}" for name in _COLUMNS[table])))
    grouped = f" GROUP BY {', '.join(keys)}" if keys else ""
    return f"SELECT {parts} FROM {{partials}} WHERE {where}{grouped}"


def widened(table: str, step_ms: int) -> str:
    """`{partials}` by a step longer than theirs, still to be merged."""
    columns = ", ".join(("tenant", "queue", *_KEYS.get(table, ()), *_COLUMNS[table]))
    return f"SELECT {_step('hour', step_ms)} AS hour, {columns} FROM {{partials}}"


def _merge(name: str) -> str:
    if name.endswith("sketch"):
        return f"kll_merge_agg_bigint({name})"
    if name in ("max_ms", "oldest"):
        return f"{'max' if name == 'max_ms' else 'min'}({name})"
    return f"CAST(sum({name}) AS BIGINT)"


def percentiles(sketch: str = "sketch") -> str:
    """p50_ms, p90_ms, p95_ms and p99_ms of a sketch of milliseconds; null of an empty one."""
    return ", ".join(
        f"CASE WHEN kll_sketch_get_n_bigint({sketch}) > 0 THEN"
        f" kll_sketch_get_quantile_bigint({sketch}, CAST({p} AS DOUBLE)) END AS p{round(p * 100)}_ms"
        for p in PERCENTILES
    )
