"""Charts as SVG: lines, filled areas, a heat map, bars and timelines. Colours are names that the page's style gives values.

Every chart carries its numbers as JSON beside it, for the few lines of script that show them under the pointer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from html import escape

from tenure.spark.report.facts import Series, SlowJob
from tenure.spark.report.formatting import count, moment, nice_steps, span, span_steps, tick

WIDTH, HEIGHT = 560, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 26
Say = Callable[[float | None], str]


class _Plot:
    """Where values are on paper."""

    def __init__(self, times: Sequence[int], step_ms: int, low: float, high: float, logarithmic: bool) -> None:
        self.times, self.step = times, step_ms
        self._low, self._high, self._log = low, high, logarithmic
        self.width, self.height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

    def x(self, at: int) -> float:
        first, last = self.times[0], self.times[-1] + self.step
        return _LEFT + (at - first) / (last - first) * self.width

    def middle(self, index: int) -> float:
        return self.x(self.times[index] + self.step // 2)

    def y(self, value: float) -> float:
        if self._log:
            low, high = math.log(self._low), math.log(self._high)
            part = (math.log(max(value, self._low)) - low) / (high - low or 1)
        else:
            part = (value - self._low) / (self._high - self._low or 1)
        return _TOP + (1 - part) * self.height

    def frame(self, steps: Sequence[float], say: Say) -> list[str]:
        parts = []
        for value in steps:
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="axis" x="{_LEFT - 7}" y="{y + 3.5:.1f}" text-anchor="end">{say(value)}</text>')
        every = max(1, math.ceil(len(self.times) / 7))
        return parts + [
            f'<text class="axis" x="{self.x(at):.1f}" y="{HEIGHT - 8}">{escape(tick(at, self.step * every))}</text>'
            for at in self.times[::every]
        ]


def lines(times: Sequence[int], step_ms: int, series: Sequence[Series], *, durations: bool = False) -> str:
    """Lines over time; durations on a logarithmic axis."""
    say: Say = span if durations else count
    values = [v for s in series for v in s.values if v is not None]
    if not times or not values:
        return _nothing()
    if durations:
        steps = span_steps(max(1, min(values)), max(2, *values, 1))
        steps = steps if len(steps) > 1 else [steps[0], steps[0] * 10]
        plot = _Plot(times, step_ms, steps[0], steps[-1], True)
    else:
        steps = nice_steps(max(values))
        plot = _Plot(times, step_ms, 0, steps[-1], False)
    parts = plot.frame(steps, say)
    for one in series:
        for run in _unbroken(one.values):
            points = " ".join(f"{plot.middle(i):.1f},{plot.y(v):.1f}" for i, v in run)
            if len(run) == 1:
                x, y = points.split(",")
                parts.append(f'<circle class="dot {one.colour}" cx="{x}" cy="{y}" r="2.6"/>')
            else:
                parts.append(f'<polyline class="line {one.colour}" points="{points}"/>')
    return _svg(parts, times, step_ms, series, say)


def areas(times: Sequence[int], step_ms: int, series: Sequence[Series]) -> str:
    """Stocks, one upon the other."""
    if not times or not any(any(s.values) for s in series):
        return _nothing()
    floor = [0.0] * len(times)
    tops: list[tuple[Series, list[float], list[float]]] = []
    for one in series:
        top = [low + max(0.0, value or 0.0) for low, value in zip(floor, one.values, strict=True)]
        tops.append((one, floor, top))
        floor = top
    steps = nice_steps(max(floor))
    plot = _Plot(times, step_ms, 0, steps[-1], False)
    parts = plot.frame(steps, count)
    for one, low, top in tops:
        edge = [f"{plot.middle(i):.1f},{plot.y(v):.1f}" for i, v in enumerate(top)]
        base = [f"{plot.middle(i):.1f},{plot.y(v):.1f}" for i, v in reversed(list(enumerate(low)))]
        parts.append(f'<polygon class="area {one.colour}" points="{" ".join([*edge, *base])}"/>')
        parts.append(f'<polyline class="line {one.colour}" points="{" ".join(edge)}"/>')
    return _svg(parts, times, step_ms, series, count)


def columns(times: Sequence[int], step_ms: int, series: Sequence[Series]) -> str:
    """Shares of a whole, as stacked columns that fill the height."""
    totals = [sum(s.values[i] or 0 for s in series) for i in range(len(times))]
    if not times or not any(totals):
        return _nothing()
    plot = _Plot(times, step_ms, 0, 1, False)
    parts = plot.frame([0, 0.25, 0.5, 0.75, 1], lambda v: f"{v or 0:.0%}")
    wide = plot.width / len(times)
    for index, total in enumerate(totals):
        at = 0.0
        for one in series if total else []:
            part = (one.values[index] or 0) / total
            y, bottom = plot.y(at + part), plot.y(at)
            parts.append(
                f'<rect class="fill {one.colour}" x="{plot.x(times[index]) + wide * 0.08:.1f}" y="{y:.1f}"'
                f' width="{max(0.6, wide * 0.84):.1f}" height="{max(0, bottom - y):.1f}"/>'
            )
            at += part
    return _svg(parts, times, step_ms, series, count)


def heat(times: Sequence[int], step_ms: int, rows: Sequence[tuple[str, Sequence[float | None]]]) -> str:
    """A cell a queue and bucket: the darker, the longer the wait, by a logarithmic scale."""
    values = [v for _, cells in rows for v in cells if v is not None]
    if not values:
        return _nothing(1140)
    width, left, tall = 1140, 150, 24
    low, high = math.log(max(1, min(values)) + 1), math.log(max(values) + 2)
    wide = (width - left - 12) / len(times)
    parts = []
    for number, (name, cells) in enumerate(rows):
        y = 4 + number * tall
        parts.append(
            f'<text class="axis" x="{left - 8}" y="{y + tall / 2 + 3:.1f}" text-anchor="end">{escape(_short(name, 22))}</text>'
        )
        for index, value in enumerate(cells):
            x = left + index * wide
            gap = min(1.5, wide * 0.1)
            if value is None:
                look = 'class="cell none"'
            else:
                part = (math.log(value + 1) - low) / ((high - low) or 1)
                look = f'class="cell" style="--heat:{max(0.04, min(1, part)):.2f}"'
            said = f"{name} · {moment(times[index])} · {'nothing claimed' if value is None else 'p95 ' + span(value)}"
            parts.append(
                f'<rect {look} x="{x:.1f}" y="{y}" width="{wide - gap:.1f}" height="{tall - 2}"><title>{escape(said)}</title></rect>'
            )
    bottom = 4 + len(rows) * tall
    every = max(1, math.ceil(len(times) / 12))
    parts += [
        f'<text class="axis" x="{left + index * wide:.1f}" y="{bottom + 16}">{escape(tick(times[index], step_ms * every))}</text>'
        for index in range(0, len(times), every)
    ]
    return (
        f'<svg class="wide" viewBox="0 0 {width} {bottom + 24}" role="img" aria-label="waits by queue and time">'
        f"{''.join(parts)}</svg>"
    )


def bars(rows: Sequence[tuple[str, int, int]], colours: tuple[str, str]) -> str:
    """Two counts a row, side by side in one bar."""
    if not rows:
        return '<p class="nothing">Nothing failed.</p>'
    top = max(first + second for _, first, second in rows)
    made = []
    for name, first, second in rows:
        made.append(
            f'<tr><td class="name" title="{escape(name)}">{escape(_short(name, 44))}</td><td class="bar">'
            f'<span class="{colours[0]}" style="width:{first / top * 100:.1f}%"></span>'
            f'<span class="{colours[1]}" style="width:{second / top * 100:.1f}%"></span></td>'
            f'<td class="number">{count(first)}</td><td class="number faint">{count(second)}</td></tr>'
        )
    return f'<table class="bars"><thead><tr><th>cause</th><th></th><th class="number">died</th><th class="number">retried</th></tr></thead><tbody>{"".join(made)}</tbody></table>'


def timeline(job: SlowJob) -> str:
    """A job's life from left to right: when it waited, when it ran, how each attempt ended."""
    width, height = 520, 18
    whole = max(1, job.ended_ms - job.opened_ms)
    parts = [f'<rect class="track" x="0" y="7" width="{width}" height="4" rx="2"/>']
    for step in job.steps:
        x = (step.begin_ms - job.opened_ms) / whole * width
        wide = max(1.5, (step.end_ms - step.begin_ms) / whole * width)
        tall, y = (4, 7) if step.kind == "waiting" else (14, 2)
        parts.append(
            f'<rect class="step {step.kind}" x="{min(x, width - 1.5):.1f}" y="{y}" width="{wide:.1f}" height="{tall}" rx="2">'
            f"<title>{escape(step.text)}</title></rect>"
        )
    return f'<svg class="timeline" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" aria-label="timeline">{"".join(parts)}</svg>'


def _svg(parts: Sequence[str], times: Sequence[int], step_ms: int, series: Sequence[Series], say: Say) -> str:
    shown = {
        "left": _LEFT,
        "right": WIDTH - _RIGHT,
        "width": WIDTH,
        "times": [moment(at) for at in times],
        "series": [{"name": s.name, "colour": s.colour, "values": [say(v) for v in s.values]} for s in series],
    }
    inside = json.dumps(shown).replace("<", "\\u003c")  # no name of a queue ends the script
    legend = "".join(f'<span><i class="key {s.colour}"></i>{escape(s.name)}</span>' for s in series)
    return (
        f'<div class="chart"><div class="legend">{legend}</div>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(", ".join(s.name for s in series))}">'
        f'{"".join(parts)}<line class="cursor" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}" x1="0" x2="0"/></svg>'
        f'<script type="application/json">{inside}</script></div>'
    )


def _nothing(width: int = WIDTH) -> str:
    return f'<svg viewBox="0 0 {width} 80"><text class="axis" x="{width / 2}" y="44" text-anchor="middle">nothing happened</text></svg>'


def _unbroken(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    runs: list[list[tuple[int, float]]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((index, value))
    return [run for run in runs if run]


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip("…") + "…"
