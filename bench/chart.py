"""The chart of docs/performance.md: lives a second of Tenure and its peers, from the published run.

`python -m bench.chart` draws it again; `python -m bench --publish` does so after each run.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[1] / "docs"
RUN = DOCS / "internals" / "benchmarks.md"
CHART = DOCS / "images" / "peers.svg"
_PANELS = {
    "batches-os": "batches of 100, os",
    "batches-disk": "batches of 100, disk",
    "singles-os": "one job at a time, os",
    "singles-disk": "one job at a time, disk",
}
_WIDTH, _NAMES, _BARS, _LINE, _BAR = 760, 210, 440, 22, 14
_OURS, _THEIRS, _TEXT, _MUTED = "#2563eb", "#9ca3af", "#111827", "#4b5563"


class Bar(NamedTuple):
    name: str
    lives: float


def bars_of(document: str, section: str) -> list[Bar]:
    """Return the measurements of a section, fastest first. The bare layout is no queue, and left out."""
    _, _, rest = document.partition(f"\n### {section}\n")
    table = rest.partition("\n### ")[0]
    bars = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        figure = re.fullmatch(r"([\d,.]+) lives/s", cells[5]) if len(cells) > 5 else None
        if figure is not None and cells[0] != "bare layout":
            bars.append(Bar(cells[0].partition(" (")[0], float(figure[1].replace(",", ""))))
    return sorted(bars, key=lambda bar: -bar.lives)


def drawn(document: str) -> str:
    """Return the chart as SVG. Each panel has its own scale."""
    parts: list[str] = []
    y = 10
    for section, title in _PANELS.items():
        bars = bars_of(document, section)
        if not bars:
            continue
        y += 22
        parts.append(_text(0, y, f"{title}: lives a second", _TEXT, "bold"))
        y += 8
        for name, lives in bars:
            width = max(1, round(_BARS * lives / bars[0].lives))
            color = _OURS if name == "Tenure" else _THEIRS
            parts.append(_text(8, y + _BAR - 2, name, _MUTED))
            parts.append(f'<rect x="{_NAMES}" y="{y}" width="{width}" height="{_BAR}" rx="2" fill="{color}"/>')
            parts.append(_text(_NAMES + width + 6, y + _BAR - 2, f"{lives:,.0f}", _TEXT))
            y += _LINE
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y + 8}" viewBox="0 0 {_WIDTH} {y + 8}" '
        'role="img" aria-label="Lives a second, Tenure beside other queues" font-family="sans-serif" font-size="13">'
    )
    background = f'<rect width="{_WIDTH}" height="{y + 8}" fill="#ffffff"/>'
    return "\n".join([head, background, *parts, "</svg>"]) + "\n"


def _text(x: int, y: int, text: str, color: str, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" fill="{color}" font-weight="{weight}">{text}</text>'


def draw() -> None:
    CHART.write_text(drawn(RUN.read_text()))


if __name__ == "__main__":
    draw()
