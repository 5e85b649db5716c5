"""The page: tiles with the numbers that matter, then charts, then tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tenure.spark.report import charts
from tenure.spark.report.facts import Facts, Row
from tenure.spark.report.formatting import count, moment, share, span
from tenure.spark.report.style import CSS, SCRIPT


def page(facts: Facts) -> str:
    """The whole report as one HTML document that needs nothing else."""
    f = facts
    body = [
        (f'<header><h1>{escape(f.title)}</h1><p><code>{escape(f.store)}</code> · {moment(f.begin_ms)} to {moment(f.end_ms)} UTC'
        f" · {count(f.events)} events in {f.runs} run{'s' if f.runs != 1 else ''}, by {span(f.step_ms)}</p></header>"),
        _tiles(f),
        '<div class="grid2">',
        _card("Throughput", f"jobs in each {span(f.step_ms)}", charts.lines(f.times, f.step_ms, f.flows)),
        _card("Backlog", "what is there at the end of each step", charts.areas(f.times, f.step_ms, f.stocks)),
        _card("Waiting", "from visible to claimed", charts.lines(f.times, f.step_ms, f.waits, durations=True)),
        _card("Running", "from claimed to settled; leases that ran out are not among them",
              charts.lines(f.times, f.step_ms, f.run_times, durations=True)),
        "</div>",
        _card("Where jobs wait", "the 95th percentile of waits by queue and time: the darker, the longer",
              charts.heat(f.times, f.step_ms, f.heat), full=True),
        '<div class="grid2">',
        _card("What jobs fail of", "errors by their class", charts.bars(f.causes, ("red", "amber"))),
        _card("In time", f"first claimed within {span(f.slo_seconds * 1000)} of becoming visible",
              charts.columns(f.times, f.step_ms, f.slo)),
        "</div>",
        _card("Tenants", "", _table("tenant", f.tenants), full=True) if len(f.tenants) > 1 else "",
        _card("Queues", "", _table("queue", f.queues), full=True),
        _card("Slowest jobs", "from enqueue or replay to the end: grey waits, green done, amber retried, violet lease lost, red dead",
              _slowest(f), full=True),
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
    tiles = [
        (count(f.totals.enqueued), "enqueued", ""),
        (count(f.totals.done), "done", ""),
        (count(f.totals.dead), "died", "bad" if f.totals.dead else ""),
        (share(f.totals.done / ended if ended else None), "of those that ended", ""),
        (count(f.totals.waiting), "waiting now", ""),
        (span(f.oldest_ms), "oldest ready now", ""),
        (span(f.totals.wait_p95), "wait, p95", ""),
        (span(f.totals.run_p95), "run, p95", ""),
        (span(f.life_p95), "time to done, p95", ""),
        (share(f.totals.slo), f"claimed within {span(f.slo_seconds * 1000)}", _judged(f.totals.slo)),
        (count(f.attempts_per_done), "attempts a done job", ""),
        (share(f.totals.wasted_ms / f.totals.lease_ms if f.totals.lease_ms else None), "of lease time wasted", ""),
    ]
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile {look}"><b>{value}</b><span>{escape(what)}</span></div>' for value, what, look in tiles
        )
        + "</div>"
    )


def _judged(value: float | None) -> str:
    return "" if value is None else "good" if value >= 0.99 else "bad" if value < 0.9 else ""


def _card(title: str, why: str, inside: str, *, full: bool = False) -> str:
    said = f'<p class="why">{escape(why)}</p>' if why else ""
    return f'<section class="card{" full" if full else ""}"><h2>{escape(title)}</h2>{said}{inside}</section>'


def _table(what: str, rows: Sequence[Row]) -> str:
    heads = (
        "enqueued",
        "done",
        "died",
        "waiting",
        "wait p50",
        "wait p95",
        "run p50",
        "run p95",
        "in time",
        "wasted",
        "paused",
    )
    made = []
    for row in rows:
        slo = row.slo
        meter = "" if slo is None else f'<span class="meter"><i style="width:{slo * 100:.0f}%"></i></span>'
        cells = (
            count(row.enqueued), count(row.done), count(row.dead), count(row.waiting), span(row.wait_p50), span(row.wait_p95),
            span(row.run_p50), span(row.run_p95), share(slo) + meter, span(row.wasted_ms) if row.wasted_ms else "–",
            span(row.paused_ms) if row.paused_ms else "–",
        )  # fmt: skip
        inside = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        made.append(f'<tr><td class="name">{escape(row.name)}</td>{inside}</tr>')
    head = "".join(f'<th class="number">{name}</th>' for name in heads)
    return f'<div class="scroll"><table><thead><tr><th>{what}</th>{head}</tr></thead><tbody>{"".join(made)}</tbody></table></div>'


def _slowest(f: Facts) -> str:
    if not f.slowest:
        return '<p class="nothing">No job has ended yet.</p>'
    made = [
        f'<tr><td class="name">{escape(job.tenant)}/{escape(job.queue)}<br><code class="faint">{job.job_id}</code></td>'
        f'<td class="number">{span(job.ended_ms - job.opened_ms)}</td><td>{escape(job.outcome)}</td>'
        f'<td class="number">{job.attempts}</td><td>{charts.timeline(job)}</td></tr>'
        for job in f.slowest
    ]
    heads = '<th>job</th><th class="number">took</th><th>outcome</th><th class="number">attempts</th><th>its life</th>'
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(made)}</tbody></table></div>'


def _footer(f: Facts) -> str:
    kept = (
        "entered − left = waiting + leased + done + dead, in every hour"
        if f.conserved
        else "DOES NOT ADD UP: run tenure spark audit"
    )
    return f"<footer>Conservation: {kept}. Percentiles are from sketches, right to about 1.3 % in rank. Definitions: docs/tables.md.</footer>"
