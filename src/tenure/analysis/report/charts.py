"""Charts as SVG: lines, filled areas, a heat map, bars and timelines. Colours are names that the page's style gives
values.

Every chart carries its numbers as JSON beside it, for the few lines of script that show them under the pointer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from html import escape

from tenure.analysis.report.facts import Series, SlowJob
from tenure.analysis.report.formatting import axis_rate, count, moment, nice_steps, rate, span, span_steps, ticks

WIDTH, HEIGHT = 560, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 26
Say = Callable[[float | None], str]


class _Plot:
    """Where values are on paper."""

    def __init__(self, times: Sequence[int], step_ms: int, low: float, high: float, logarithmic: bool = False) -> None:
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
        return parts + [
            _tick(self.x(at), HEIGHT - 8, label, WIDTH - _RIGHT)
            for at, label in ticks(self.times[0], self.times[-1] + self.step, 6)
        ]


def _tick(x: float, y: float, label: str, edge: float) -> str:
    """A label under its moment, kept within the chart."""
    anchor = ' text-anchor="end"' if x + 6 * len(label) > edge else ""
    return f'<text class="axis" x="{min(x, edge):.1f}" y="{y}"{anchor}>{escape(label)}</text>'


def rates(times: Sequence[int], step_ms: int, series: Sequence[Series]) -> str:
    """Lines of jobs per second."""
    return _lines(times, step_ms, series, rate, axis_rate)


def durations(times: Sequence[int], step_ms: int, series: Sequence[Series]) -> str:
    """Lines of durations, on a logarithmic axis."""
    return _lines(times, step_ms, series, span, span, logarithmic=True)


def _lines(
    times: Sequence[int], step_ms: int, series: Sequence[Series], say: Say, axis: Say, *, logarithmic: bool = False
) -> str:
    values = [v for s in series for v in s.values if v is not None]
    if not times or not values:
        return _nothing()
    if logarithmic:
        steps = span_steps(max(1, min(values)), max(2, *values, 1))
        steps = steps if len(steps) > 1 else [steps[0], steps[0] * 10]
    else:
        steps = nice_steps(max(values))
    plot = _Plot(times, step_ms, steps[0], steps[-1], logarithmic)
    parts = plot.frame(steps, axis)
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
    """Stocks, one upon the other. A stock is drawn only where it is there: nothing outlines those below it."""
    if not times or not any(any(s.values) for s in series):
        return _nothing()
    floor = [0.0] * len(times)
    tops: list[tuple[Series, list[float], list[float]]] = []
    for one in series:
        top = [low + max(0.0, value or 0.0) for low, value in zip(floor, one.values, strict=True)]
        tops.append((one, floor, top))
        floor = top
    steps = nice_steps(max(floor))
    plot = _Plot(times, step_ms, 0, steps[-1])
    parts = plot.frame(steps, count)
    for one, low, top in tops:
        for run in _there(low, top):
            edge = [f"{plot.middle(i):.1f},{plot.y(top[i]):.1f}" for i in run]
            base = [f"{plot.middle(i):.1f},{plot.y(low[i]):.1f}" for i in reversed(run)]
            parts.append(f'<polygon class="area {one.colour}" points="{" ".join([*edge, *base])}"/>')
    return _svg(parts, times, step_ms, series, count)


def _there(low: Sequence[float], top: Sequence[float]) -> list[range]:
    """Where a stacked series is more than nothing, with the empty step on either side that it rises from and falls to."""
    full = [high > base for base, high in zip(low, top, strict=True)]
    runs: list[range] = []
    for index, is_full in enumerate(full):
        if not is_full:
            continue
        first, stop = max(0, index - 1), min(len(full), index + 2)
        if runs and first < runs[-1].stop:
            runs[-1] = range(runs[-1].start, stop)
        else:
            runs.append(range(first, stop))
    return runs


def columns(times: Sequence[int], step_ms: int, series: Sequence[Series]) -> str:
    """Shares of a whole, as stacked columns that fill the height."""
    totals = [sum(s.values[i] or 0 for s in series) for i in range(len(times))]
    if not times or not any(totals):
        return _nothing()
    plot = _Plot(times, step_ms, 0, 1)
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


_HEAT_WIDTH, _HEAT_LEFT, _HEAT_TALL = 1140, 176, 24
#: Letters of a queue's name that fit beside the cells, also in the larger letters that a phone shows.
_HEAT_LETTERS = 20


def heat(times: Sequence[int], step_ms: int, rows: Sequence[tuple[str, Sequence[float | None]]]) -> str:
    """A cell a queue and step: the darker, the longer the wait, by a logarithmic scale that stands below."""
    values = [v for _, cells in rows for v in cells if v is not None]
    if not values:
        return _nothing(_HEAT_WIDTH)
    scale = span_steps(max(1, min(values)), max(2, *values, 1))
    scale = scale if len(scale) > 1 else [scale[0], scale[0] * 10]
    low, high = math.log(scale[0]), math.log(scale[-1])

    def shade(value: float) -> float:
        return max(0.04, min(1.0, (math.log(max(value, scale[0])) - low) / (high - low)))

    wide = (_HEAT_WIDTH - _HEAT_LEFT - 12) / len(times)
    parts = []
    for number, (name, cells) in enumerate(rows):
        y = 4 + number * _HEAT_TALL
        parts.append(
            f'<text class="axis" x="{_HEAT_LEFT - 8}" y="{y + _HEAT_TALL / 2 + 3:.1f}" text-anchor="end">'
            f"{escape(_short(name, _HEAT_LETTERS))}</text>"
        )
        parts += [_cell(name, times[i], value, i, y, wide, shade) for i, value in enumerate(cells)]
    bottom = 4 + len(rows) * _HEAT_TALL
    for at, label in ticks(times[0], times[-1] + step_ms, 10):
        x = _HEAT_LEFT + (at - times[0]) / step_ms * wide
        parts.append(_tick(x, bottom + 16, label, _HEAT_WIDTH - 12))
    return (
        f'<div class="scroll"><svg class="wide" viewBox="0 0 {_HEAT_WIDTH} {bottom + 24}" role="img"'
        f' aria-label="waits by queue and time">{"".join(parts)}</svg></div>{_scale(scale, shade)}'
    )


def _cell(
    name: str, at: int, value: float | None, index: int, y: float, wide: float, shade: Callable[[float], float]
) -> str:
    gap = min(1.5, wide * 0.1)
    look = 'class="cell none"' if value is None else f'class="cell" style="--heat:{shade(value):.2f}"'
    said = f"{name} · {moment(at)} · {'no claims' if value is None else 'p95 ' + span(value)}"
    return (
        f'<rect {look} x="{_HEAT_LEFT + index * wide:.1f}" y="{y}" width="{wide - gap:.1f}" height="{_HEAT_TALL - 2}">'
        f"<title>{escape(said)}</title></rect>"
    )


def _scale(steps: Sequence[float], shade: Callable[[float], float]) -> str:
    keys = "".join(f'<span><i class="swatch" style="--heat:{shade(s):.2f}"></i>{span(s)}</span>' for s in steps)
    return f'<div class="scale"><span>wait, p95:</span>{keys}<span><i class="swatch none"></i>no claims</span></div>'


def bars(rows: Sequence[tuple[str, int, int]], colours: tuple[str, str]) -> str:
    """Two counts a row, side by side in one bar."""
    if not rows:
        return '<p class="nothing">No failures.</p>'
    top = max(first + second for _, first, second in rows)
    made = []
    for name, first, second in rows:
        made.append(
            f'<tr><td class="name" title="{escape(name)}">{escape(_short(name, 44))}</td><td class="bar">'
            f'<span class="{colours[0]}" style="width:{first / top * 100:.1f}%"></span>'
            f'<span class="{colours[1]}" style="width:{second / top * 100:.1f}%"></span></td>'
            f'<td class="number">{count(first)}</td><td class="number">{count(second)}</td></tr>'
        )
    heads = (
        '<th>error</th><th class="bar"></th>'
        f'<th class="number"><i class="key {colours[0]}"></i>deaths</th>'
        f'<th class="number"><i class="key {colours[1]}"></i>retries</th>'
    )
    return f'<table class="bars"><thead><tr>{heads}</tr></thead><tbody>{"".join(made)}</tbody></table>'


def timeline(job: SlowJob) -> str:
    """A job's life from left to right: when it waited, when it ran, how each attempt ended."""
    width, height = 520, 18
    whole = max(1, job.ended_ms - job.opened_ms)
    parts = [f'<rect class="track" x="0" y="7" width="{width}" height="4" rx="2"/>']
    for step in job.steps:
        x = (step.begin_ms - job.opened_ms) / whole * width
        wide = max(3, (step.end_ms - step.begin_ms) / whole * width)
        tall, y = (4, 7) if step.kind == "waiting" else (14, 2)
        parts.append(
            f'<rect class="step {step.kind}" x="{min(x, width - 3):.1f}" y="{y}" width="{wide:.1f}" height="{tall}" rx="2">'
            f"<title>{escape(step.text)}</title></rect>"
        )
    return (
        f'<svg class="timeline" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img"'
        f' aria-label="timeline">{"".join(parts)}</svg>'
    )


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
    return f'<svg viewBox="0 0 {width} 80"><text class="axis" x="{width / 2}" y="44" text-anchor="middle">no data</text></svg>'


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
