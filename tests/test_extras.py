"""Hints about missing packages: one sentence, worded in one place, with a command that names an extra that exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tenure.errors import SettingsError
from tenure.extras import needs, require

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    with pytest.raises(SettingsError) as caught:
        require("server", "tenure serve", "json", "no_such_package.inner")
    assert str(caught.value) == (
        "tenure serve: the package no_such_package is not installed. Install it with: pip install 'tenure[server]'"
    )


def test_a_module_of_ours_that_is_missing_is_our_mistake():
    with pytest.raises(ModuleNotFoundError), needs("server", "x"):
        import tenure.nowhere  # type: ignore[import-not-found]  # noqa: F401


def test_every_hint_is_worded_here_and_names_an_extra():
    named = set()
    for path in sorted((ROOT / "src").rglob("*.py")):
        if path.name == "extras.py":
            continue
        code = re.sub(r'""".*?"""|help="[^"]*"', "", path.read_text(), flags=re.DOTALL)
        assert "pip install" not in code, f"{path} words its own hint"
        named |= set(re.findall(r"""\b(?:needs|require)\("(\w+)", """, code))
        named |= set(re.findall(r"""\bmissing\(.*, "(\w+)"\)""", code))
    assert {"server", "capnp", "redis", "spark", "delta"} <= named <= set(EXTRAS)
