"""The page: tiles with the numbers that matter, then charts, then tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tenure.analysis.report import charts
from tenure.analysis.report.facts import Facts, Row, SlowJob, WorkerRow
from tenure.analysis.report.formatting import count, moment, rate, share, span
from tenure.analysis.report.style import CSS, SCRIPT

#: From this share in time on a meter is good, below the other it is bad.
GOOD, BAD = 0.99, 0.9


def page(facts: Facts) -> str:
    """The whole report as one HTML document that needs nothing else."""
    f = facts
    body = [
        (f'<header><h1>{escape(f.title)}</h1><p><code>{escape(f.store)}</code> · {moment(f.begin_ms)} to {moment(f.end_ms)} UTC'
        f" · {count(f.events)} events {escape(f.source)} · steps of {span(f.step_ms)}</p></header>"),
        _tiles(f),
        '<div class="grid2">',
        _card("Throughput", "jobs per second", charts.rates(f.times, f.step_ms, f.flows)),
        _card("Backlog", "jobs in the store at the end of each step", charts.areas(f.times, f.step_ms, f.stocks)),
        _card("Wait times", "from visible to claimed", charts.durations(f.times, f.step_ms, f.waits)),
        _card("Run times", "from claimed to settled, without expired leases",
              charts.durations(f.times, f.step_ms, f.run_times)),
        "</div>",
        _card("Wait times by queue", "95th percentile in each step", charts.heat(f.times, f.step_ms, f.heat), full=True),
        '<div class="grid2">',
        _card("Errors", "by class", charts.bars(f.causes, ("red", "amber"))),
        _card("Service level", f"share of jobs first claimed within {span(f.slo_seconds * 1000)} of becoming visible",
              charts.columns(f.times, f.step_ms, f.slo)),
        "</div>",
        _card("Tenants", "", _table("tenant", f.tenants), full=True) if len(f.tenants) > 1 else "",
        _card("Queues", "", _table("queue", f.queues), full=True),
        _card("Workers", "deliveries that ended, by the worker's name", _workers(f), full=True),
        _card("Slowest jobs", "from enqueue or replay to the end", _KEYS + _slowest(f.slowest), full=True),
        _footer(f),
    ]  # fmt: skip
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(f.title)}</title><style>{CSS}</style></head><body><main>{''.join(body)}</main>"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _tiles(f: Facts) -> str:
    ended = f.totals.done + f.totals.dead
    seconds = max(1, f.end_ms - f.begin_ms) / 1000
    tiles = [
        (count(f.totals.enqueued), "jobs enqueued", ""),
        (count(f.totals.done), "jobs done", ""),
        (f"{rate(f.totals.done / seconds)}/s", "throughput, mean", ""),
        (count(f.totals.dead), "deaths", "bad" if f.totals.dead else ""),
        (share(f.totals.done / ended if ended else None), "success rate", ""),
        (count(f.totals.waiting), "backlog now", ""),
        (span(f.oldest_ms), "oldest ready job", ""),
        (span(f.totals.wait_p95), "wait time, p95", ""),
        (span(f.totals.run_p95), "run time, p95", ""),
        (span(f.life_p95), "time to done, p95", ""),
        (share(f.totals.slo), f"claimed within {span(f.slo_seconds * 1000)}", _judged(f.totals.slo)),
        (share(f.totals.wasted_ms / f.totals.lease_ms if f.totals.lease_ms else None), "lease time wasted", ""),
    ]
    made = "".join(
        f'<div class="tile {look}"><b>{value}</b><span>{escape(what)}</span></div>' for value, what, look in tiles
    )
    return f'<div class="tiles">{made}</div>'


def _judged(value: float | None) -> str:
    return "" if value is None else "good" if value >= GOOD else "bad" if value < BAD else "fair"


def _card(title: str, why: str, inside: str, *, full: bool = False) -> str:
    said = f'<p class="why">{escape(why)}</p>' if why else ""
    return f'<section class="card{" full" if full else ""}"><h2>{escape(title)}</h2>{said}{inside}</section>'


def _rows(what: str, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A table of a name and numbers."""
    head = "".join(f'<th class="number">{name}</th>' for name in heads)
    made = "".join(
        f'<tr><td class="name" title="{escape(name)}">{escape(name)}</td>'
        + "".join(f'<td class="number">{cell}</td>' for cell in cells)
        + "</tr>"
        for name, cells in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr><th>{what}</th>{head}</tr></thead><tbody>{made}</tbody></table></div>'
    )


def _table(what: str, rows: Sequence[Row]) -> str:
    heads = (
        "enqueued", "done", "dead", "backlog", "wait p50", "wait p95", "run p50", "run p95", "in time", "wasted", "paused",
    )  # fmt: skip
    made = [
        (
            row.name,
            (
                count(row.enqueued), count(row.done), count(row.dead), count(row.waiting), span(row.wait_p50),
                span(row.wait_p95), span(row.run_p50), span(row.run_p95), share(row.slo) + _meter(row.slo),
                span(row.wasted_ms) if row.wasted_ms else "–", span(row.paused_ms) if row.paused_ms else "–",
            ),
        )
        for row in rows
    ]  # fmt: skip
    return _rows(what, heads, made)


def _meter(value: float | None) -> str:
    if value is None:
        return ""
    return f'<span class="meter {_judged(value)}"><i style="width:{value * 100:.0f}%"></i></span>'


def _workers(f: Facts) -> str:
    if not f.workers:
        return '<p class="nothing">No delivery has ended yet.</p>'
    whole = max(1, f.end_ms - f.begin_ms)
    heads = ("deliveries", "done", "failed", "leases lost", "lease time", "mean jobs held", "queues", "last seen")
    return _rows("worker", heads, [(row.worker or "(no name)", _worker(row, whole)) for row in f.workers])


def _worker(row: WorkerRow, whole_ms: int) -> tuple[str, ...]:
    lost = f'<b class="bad">{count(row.lost)}</b>' if row.lost else "0"
    held = (row.busy_ms or 0) / whole_ms
    return (
        count(row.deliveries), count(row.done), count(row.failed), lost, span(row.busy_ms), f"{held:.2f}",
        count(row.queues), moment(row.last_ms),
    )  # fmt: skip


_KEYS = "".join(
    f'<span><i class="key step {kind}"></i>{name}</span>'
    for kind, name in (
        ("waiting", "waiting"), ("done", "done"), ("retried", "retried"), ("expired", "lease lost"), ("died", "dead"),
        ("released", "released"),
    )
)  # fmt: skip
_KEYS = f'<div class="legend">{_KEYS}</div>'


def _slowest(jobs: Sequence[SlowJob]) -> str:
    if not jobs:
        return '<p class="nothing">No job has ended yet.</p>'
    made = [
        f'<tr><td class="name">{escape(job.tenant)}/{escape(job.queue)}<br><code class="faint">{job.job_id}</code></td>'
        f'<td class="number">{span(job.ended_ms - job.opened_ms)}</td><td>{escape(job.outcome)}</td>'
        f'<td class="number">{job.attempts} ×</td><td class="lifeline">{charts.timeline(job)}</td>'
        f'<td class="error{"" if job.error else " none"}" title="{escape((job.error or "")[:1000])}">{escape(_line(job.error))}</td></tr>'
        for job in jobs
    ]
    heads = (
        '<th>job</th><th class="number">time</th><th>outcome</th><th class="number">attempts</th><th>timeline</th>'
        "<th>last error</th>"
    )
    return f'<div class="scroll"><table class="slow"><thead><tr>{heads}</tr></thead><tbody>{"".join(made)}</tbody></table></div>'


def _line(error: str | None) -> str:
    """An error's last line: of a traceback, the error itself."""
    lines = (error or "").strip().splitlines()
    return lines[-1].strip()[:160] if lines else "–"


def _footer(f: Facts) -> str:
    kept = (
        "entered − left = waiting + leased + done + dead, in every hour"
        if f.conserved
        else "DOES NOT ADD UP: run tenure audit"
    )
    exact = "Percentiles are exact." if f.exact else "Percentiles are from sketches, right to about 1.3 % in rank."
    return f"<footer>Conservation: {kept}. {exact} Definitions: docs/tables.md.</footer>"
