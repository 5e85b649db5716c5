"""The tests that the tools name exist: a renamed one would be traced again, or left out, without a word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = [
    (tool.name, *named)
    for tool in sorted((ROOT / "tools").glob("*.py"))
    for named in re.findall(r'"(tests/[\w/]+\.py)::(test_\w+)"', tool.read_text())
]


@pytest.mark.parametrize(("tool", "file", "test"), NAMED)
def test_a_test_that_a_tool_names_exists(tool: str, file: str, test: str) -> None:
    assert re.search(rf"^def {test}\(", (ROOT / file).read_text(), re.MULTILINE), f"{tool} names {file}::{test}"


def test_tools_name_tests() -> None:
    assert NAMED
