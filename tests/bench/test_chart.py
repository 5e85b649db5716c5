"""The chart of docs/performance.md is that of the published run."""

from __future__ import annotations

from xml.etree import ElementTree

from bench.chart import CHART, RUN, bars_of, drawn


def test_it_is_drawn_from_the_published_run():
    assert CHART.read_text() == drawn(RUN.read_text()), "draw it anew: python -m bench.chart"


def test_each_contender_has_a_bar_and_its_figure():
    document = RUN.read_text()
    texts = [found.text for found in ElementTree.fromstring(drawn(document)).iter("{http://www.w3.org/2000/svg}text")]
    for section in ("batches-os", "batches-disk", "singles-os", "singles-disk"):
        bars = bars_of(document, section)
        assert "Tenure" in [bar.name for bar in bars]
        assert len(bars) >= 4
        assert {f"{bar.lives:,.0f}" for bar in bars} <= set(texts)
        assert bars == sorted(bars, key=lambda bar: -bar.lives)
