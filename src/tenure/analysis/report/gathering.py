"""The facts of a report, asked of a history's tables: the same statements on DuckDB and on Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tenure.analysis import attempts, causes, metrics
from tenure.analysis.report.facts import Facts, Row, Series, SlowJob, Step, WorkerRow
from tenure.analysis.report.formatting import DAY, HOUR, MINUTE, SECOND
from tenure.analysis.report.history import History, Table
from tenure.analysis.sql import Engine
from tenure.analysis.summary import Told

#: Charts have at most about this many steps.
_STEPS = 96
_SIZES = (
    SECOND, 5 * SECOND, 10 * SECOND, 30 * SECOND, MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR,
    6 * HOUR, 12 * HOUR, DAY, 7 * DAY,
)  # fmt: skip
_SLOWEST, _CAUSES, _WORKERS, _HEAT_ROWS = 15, 12, 20, 16
Found = dict[str, Any]
"""A row of an answer."""

_AT = "unix_millis(hour) AS at"
_SLOWEST_LIVES = f"""
SELECT tenant, queue, queue_number, job_id, life, outcome, attempts, error, unix_millis(opened_at) AS opened_ms,
  unix_millis(ended_at) AS ended_ms
FROM {{lives}} WHERE outcome IN ('done', 'dead') AND opened_at IS NOT NULL
ORDER BY unix_millis(ended_at) - unix_millis(opened_at) DESC, job_id LIMIT {_SLOWEST}"""
_WORKERS_SEEN = f"""
SELECT coalesce(worker, '') AS worker, count(*) AS deliveries, count(DISTINCT queue_number) AS queues,
  CAST(sum(CASE WHEN outcome = 'done' THEN 1 ELSE 0 END) AS BIGINT) AS done,
  CAST(sum(CASE WHEN outcome IN ('retried', 'died') AND NOT expired THEN 1 ELSE 0 END) AS BIGINT) AS failed,
  CAST(sum(CASE WHEN expired THEN 1 ELSE 0 END) AS BIGINT) AS lost,
  CAST(sum(run_ms) AS BIGINT) AS busy_ms, unix_millis(max(ended_at)) AS last_ms
FROM {{attempts}} GROUP BY coalesce(worker, '') ORDER BY deliveries DESC, worker LIMIT {_WORKERS}"""
_STOCK = "SELECT tenant, queue, state, count(*) AS jobs FROM {carry} GROUP BY tenant, queue, state"
_UNBALANCED = (
    "SELECT count(*) AS hours FROM {partials} WHERE entered - `left` <> d_waiting + d_leased + d_done + d_dead"
)


class Gathering:
    """Asks an engine for everything that a report shows."""

    def __init__(self, engine: Engine, history: History, told: Told) -> None:
        self._engine, self._history, self._told = engine, history, told
        text = "SELECT unix_millis(min(time)) AS begin_ms, count(*) AS events FROM {events}"
        (found,) = engine.rows(text, events=history.events)
        self._begin, self._events, self._end = found["begin_ms"], found["events"], history.end_ms
        self._step = next((size for size in _SIZES if (self._end - self._begin) / size <= _STEPS), _SIZES[-1])
        self._now = engine.rows(_STOCK, carry=history.carry)
        first, last = self._begin // self._step, self._end // self._step
        self._times = [number * self._step for number in range(first, last + 1)]
        self._place = {at: index for index, at in enumerate(self._times)}

    def facts(self, title: str) -> Facts:
        self._told("reading the numbers")
        steps = self._by_step()
        hours = {
            name: self._engine.keep(f"merged_{name}", metrics.merged(name), partials=partials)
            for name, partials in self._history.partials.items()
        }
        flows = self._timed(metrics.merged("flows", ("hour",)), steps["flows"])
        tenants, queues = self._rows(hours, ("tenant",)), self._rows(hours, ("tenant", "queue"))
        (totals,) = self._rows(hours, ())
        life = self._merged("ends", hours["ends"], (), f"count, attempts, {metrics.percentiles()}", "outcome = 'done'")[
            0
        ]
        unbalanced = self._engine.rows(_UNBALANCED, partials=hours["flows"])[0]["hours"]
        self._told("looking for the slowest jobs")
        return Facts(
            title=title,
            store=self._history.store,
            begin_ms=self._begin,
            end_ms=self._end,
            step_ms=self._step,
            source=self._history.source,
            events=self._events,
            totals=totals,
            attempts_per_done=life["attempts"] / life["count"] if life["count"] else None,
            life_p50=life["p50_ms"],
            life_p95=life["p95_ms"],
            oldest_ms=self._oldest(),
            slo_seconds=self._history.slo_seconds,
            times=self._times,
            flows=self._rates(flows),
            stocks=self._stocks(flows),
            waits=self._percentiles("waits", steps["waits"]),
            run_times=self._percentiles("runs", steps["runs"], "NOT expired"),
            slo=self._in_time(steps["slo"]),
            heat=self._heat(steps["waits"], queues),
            causes=self._causes(hours["causes"]),
            tenants=tenants,
            queues=queues,
            workers=self._workers(),
            slowest=self._slowest(),
            conserved=unbalanced == 0,
            exact=self._history.exact,
        )

    def _by_step(self) -> Mapping[str, Table]:
        """Numbers by the report's own step: from the hourly ones, unless it is shorter; then there is little to read."""
        keep, history, step = self._engine.keep, self._history, self._step
        if step >= HOUR:
            return {
                name: keep(f"step_{name}", metrics.widened(name, step), partials=history.partials[name])
                for name in ("flows", "waits", "runs", "slo")
            }
        chains = keep("step_chains", attempts.CHAINS, events=history.events)
        tried = keep("step_attempts", attempts.ATTEMPTS, chains=chains)
        lives = keep("step_lives", attempts.LIVES, chains=chains)
        span = metrics.Span(None, self._end)
        return {
            "flows": keep("step_flows", metrics.flows(step), chains=chains),
            "waits": keep("step_waits", metrics.waits(step), attempts=tried),
            "runs": keep("step_runs", metrics.runs(step), attempts=tried),
            "slo": keep("step_slo", metrics.slo(history.slo_seconds, span, step), lives=lives),
        }

    def _merged(
        self, table: str, partials: Table, by: tuple[str, ...], columns: str, where: str = "TRUE"
    ) -> list[Found]:
        text = f"SELECT {columns} FROM ({metrics.merged(table, by, where)}) AS merged"
        return self._engine.rows(text, partials=partials)

    # ── over time ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _timed(self, text: str, partials: Table, columns: str = "*") -> dict[int, Found]:
        """Rows by the place of their step."""
        found = self._engine.rows(f"SELECT {columns}, {_AT} FROM ({text}) AS merged", partials=partials)
        return {self._place[row["at"]]: row for row in found if row["at"] in self._place}

    def _series(
        self, name: str, colour: str, rows: Mapping[int, Found], value: Callable[[Found], Any], empty: float | None = 0
    ) -> Series:
        return Series(name, [value(rows[i]) if i in rows else empty for i in range(len(self._times))], colour)

    def _rates(self, flows: Mapping[int, Found]) -> list[Series]:
        """Jobs per second."""
        seconds = self._step / SECOND
        return [
            self._series("enqueued", "blue", flows, lambda row: (row["enqueued"] + row["restored"]) / seconds),
            self._series("done", "green", flows, lambda row: row["done"] / seconds),
            self._series("retried or expired", "amber", flows, lambda row: (row["retried"] + row["expired"]) / seconds),
            self._series("dead", "red", flows, lambda row: row["died"] / seconds),
        ]

    def _stocks(self, flows: Mapping[int, Found]) -> list[Series]:
        """How many jobs there were at the end of each step.

        Counted backwards from the end, where every job's state is known: in a journal that was trimmed, jobs leave that
        it never saw enter.
        """
        found = []
        for name, colour in (("waiting", "blue"), ("leased", "violet"), ("dead", "red")):
            stock, values = float(sum(row["jobs"] for row in self._now if row["state"] == name)), []
            for place in reversed(range(len(self._times))):
                values.append(max(0.0, stock))
                stock -= flows[place][f"d_{name}"] if place in flows else 0
            found.append(Series(name, list(reversed(values)), colour))
        return found

    def _percentiles(self, table: str, partials: Table, where: str = "TRUE") -> list[Series]:
        text = metrics.merged(table, ("hour",), where)
        rows = self._timed(text, partials, metrics.percentiles())
        return [
            self._series(f"p{p}", colour, rows, lambda row, p=p: row[f"p{p}_ms"], None)  # type: ignore[misc] # p is bound
            for p, colour in ((50, "blue"), (95, "amber"), (99, "red"))
        ]

    def _in_time(self, partials: Table) -> list[Series]:
        rows = self._timed(metrics.merged("slo", ("hour",)), partials)
        return [
            self._series("in time", "blue", rows, lambda row: row["met"]),
            self._series("late", "amber", rows, lambda row: row["missed"]),
        ]

    def _heat(self, waits: Table, queues: Sequence[Row]) -> list[tuple[str, list[float | None]]]:
        found = self._merged("waits", waits, metrics.HOUR, f"tenant, queue, {_AT}, {metrics.percentiles()}")
        cells: dict[str, list[float | None]] = defaultdict(lambda: [None] * len(self._times))
        for row in found:
            if row["at"] in self._place:
                cells[f"{row['tenant']}/{row['queue']}"][self._place[row["at"]]] = row["p95_ms"]
        busiest = [row.name for row in queues][:_HEAT_ROWS]
        return [(name, cells[name]) for name in busiest if name in cells]

    # ── over all ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _rows(self, hours: Mapping[str, Table], by: tuple[str, ...]) -> list[Row]:
        """One row a group, the busiest first."""
        keys = "".join(f"{name}, " for name in by)

        def grouped(found: list[Found]) -> dict[tuple[str, ...], Found]:
            return {tuple(row[name] for name in by): row for row in found}

        percentiles = f"{keys}{metrics.percentiles()}"
        flows = grouped(self._merged("flows", hours["flows"], by, "*"))
        waits = grouped(self._merged("waits", hours["waits"], by, percentiles))
        settled = grouped(self._merged("runs", hours["runs"], by, percentiles, "NOT expired"))
        spent = grouped(self._merged("runs", hours["runs"], by, f"{keys}sum_ms"))
        wasted = grouped(self._merged("runs", hours["runs"], by, f"{keys}sum_ms", "outcome <> 'done'"))
        slo = grouped(self._merged("slo", hours["slo"], by, "*"))
        paused: dict[tuple[str, ...], int] = defaultdict(int)
        for (tenant, queue), ms in self._history.paused.items():
            paused[(tenant, queue)[: len(by)]] += ms
        waiting: dict[tuple[str, ...], int] = defaultdict(int)
        for row in self._now:
            if row["state"] == "waiting":
                waiting[tuple(row[name] for name in by)] += row["jobs"]
        none: Found = defaultdict(lambda: None)
        found = []
        for key, flow in flows.items():
            wait, run, met = waits.get(key, none), settled.get(key, none), slo.get(key, none)
            judged = (met["met"] or 0) + (met["missed"] or 0)
            found.append(
                Row(
                    name="/".join(key) or "all",
                    enqueued=(flow["enqueued"] or 0) + (flow["restored"] or 0),
                    done=flow["done"] or 0,
                    dead=flow["died"] or 0,
                    waiting=waiting[key],
                    wait_p50=wait["p50_ms"],
                    wait_p95=wait["p95_ms"],
                    run_p50=run["p50_ms"],
                    run_p95=run["p95_ms"],
                    slo=met["met"] / judged if judged else None,
                    wasted_ms=wasted.get(key, none)["sum_ms"] or 0,
                    lease_ms=spent.get(key, none)["sum_ms"] or 0,
                    paused_ms=paused[key],
                )
            )
        return sorted(found, key=lambda row: (-row.enqueued, row.name))

    def _oldest(self) -> int | None:
        text = (
            "SELECT min(unix_millis(visible_at)) AS since FROM {carry}"
            f" WHERE state = 'waiting' AND unix_millis(visible_at) <= {self._end}"
        )
        since = self._engine.rows(text, carry=self._history.carry)[0]["since"]
        return None if since is None else self._end - since

    def _causes(self, hours: Table) -> list[tuple[str, int, int]]:
        counted = f"({metrics.merged('causes', ('cause',))})"
        text = causes.top(f"{counted} AS counted", "died * 1000000 + retried", _CAUSES)
        rows = self._engine.rows(text, partials=hours)
        ranked = sorted(
            rows, key=lambda row: (row["cause"] == causes.OTHER, -row["died"], -row["retried"], row["cause"])
        )
        return [(row["cause"], row["died"], row["retried"]) for row in ranked]

    def _workers(self) -> list[WorkerRow]:
        return [WorkerRow(**row) for row in self._engine.rows(_WORKERS_SEEN, attempts=self._history.attempts)]

    # ── the slowest ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _slowest(self) -> list[SlowJob]:
        lives = self._engine.rows(_SLOWEST_LIVES, lives=self._history.lives)
        tried = self._attempts_of(lives)
        found = []
        for life in lives:
            key = (life.pop("queue_number"), life["job_id"], life.pop("life"))
            job = SlowJob(**life)
            of_job = tried.get(key, [])
            # A job that is done in the end has no error of its own, and those on its way tell why it took long.
            job.error = job.error or next((row["error"] for row in reversed(of_job) if row["error"]), None)
            job.steps = list(_steps(job, of_job))
            found.append(job)
        return found

    def _attempts_of(self, lives: Sequence[Found]) -> dict[tuple[int, str, int], list[Found]]:
        found: dict[tuple[int, str, int], list[Found]] = defaultdict(list)
        if not lives:
            return found
        ids = ", ".join(f"'{life['job_id']}'" for life in lives)  # hex digits, as this program made them
        text = (
            "SELECT queue_number, job_id, life, attempt, outcome, expired, error, unix_millis(claimed_at) AS claimed_ms,"
            f" unix_millis(ended_at) AS ended_ms FROM {{attempts}} WHERE job_id IN ({ids}) ORDER BY token"
        )
        for row in self._engine.rows(text, attempts=self._history.attempts):
            found[row["queue_number"], row["job_id"], row["life"]].append(row)
        return found


def _steps(job: SlowJob, tried: Iterable[Found]) -> Iterable[Step]:
    at = job.opened_ms
    for row in tried:
        claimed, ended = row["claimed_ms"], row["ended_ms"]
        if claimed > at:
            yield Step("waiting", at, claimed, f"waiting {(claimed - at) / 1000:g} s")
        kind = "expired" if row["expired"] else row["outcome"]
        said = f": {row['error']}" if row["error"] else ""
        text = f"attempt {row['attempt']}, {kind} after {(ended - claimed) / 1000:g} s{said}"
        yield Step(kind, claimed, ended, text[:300])
        at = ended
    if at < job.ended_ms:
        yield Step("waiting", at, job.ended_ms, f"waiting {(job.ended_ms - at) / 1000:g} s")
