"""The dashboard and the recipes ask only for metrics, and labels, that the code defines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.docs.blocks import DOCS, ROOT

DASHBOARD = json.loads((DOCS / "grafana" / "tenure.json").read_text())
MONITORING = DOCS / "monitoring.md"

_FAMILY = re.compile(r"(Counter|Gauge|Histogram)MetricFamily\(\s*\"(tenure_\w+)\".*?labels=\[(.*?)\]", re.DOTALL)
_SUFFIXES = {"Counter": ("_total",), "Gauge": ("",), "Histogram": ("_bucket", "_sum", "_count")}
#: Gauges that the server is given beside this page; take them out once they are there.
ARRIVING: dict[str, set[str]] = {}


def defined() -> dict[str, set[str]]:
    """Every series that the package exposes, with its labels."""
    series = dict(ARRIVING)
    for path in sorted((ROOT / "src").rglob("*.py")):
        for kind, name, labels in _FAMILY.findall(path.read_text()):
            names = set(re.findall(r'"(\w+)"', labels))
            for suffix in _SUFFIXES[kind]:
                series[name + suffix] = names | ({"le"} if suffix == "_bucket" else set())
    return series


def expressions() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["definition"]
    text = MONITORING.read_text()
    for line in re.findall(r"^\| .* \| `([^`]*tenure_\w+[^`]*)` \| .*$|query: (.+)$", text, re.MULTILINE):
        yield "monitoring.md", "".join(line).replace("\\|", "|")


@pytest.mark.parametrize(("where", "expression"), list(expressions()), ids=lambda value: value[:50])
def test_an_expression_uses_what_is_defined(where: str, expression: str):
    series = defined()
    named = re.findall(r"\btenure_\w+", expression)
    assert named
    for name in named:
        assert name in series, f"{where}: nothing is called {name}"
        for matchers in re.findall(rf"{name}\{{(.*?)\}}", expression):
            assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", matchers)) <= series[name]
    labels = {label for group in re.findall(r"by \((.*?)\)", expression) for label in group.split(", ")}
    assert labels <= set().union(*(series[name] for name in named))


def test_the_panels_do_not_overlap_and_have_titles():
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert panel["title"]
        assert panel["description"]
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
