"""Hints about missing packages: one sentence, worded in one place, with a command that names an extra that exists."""

from __future__ import annotations

import re
import subprocess
import sys
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


#: Commands of a plain install, and the extra that each needs.
PLAIN = {
    "export jobs --csv jobs.csv": "analysis",
    "audit": "analysis",
    "report report.html": "analysis",
    "spark load cities cities.csv": "spark",
    "spark history history": "spark",
    "serve": "server",
    "dashboard": "server",
    "token": "server",
}


def test_without_extras_a_command_names_the_one_it_needs(tmp_path: Path):
    """In one process that finds none of the packages of extras, as after `pip install tenure`."""
    program = f"""
import sys
from pathlib import Path
from click.testing import CliRunner
for package in ("numpy", "pyarrow", "duckdb", "pandas", "pyspark", "uvicorn", "jwt"):
    sys.modules[package] = None
import tenure
from tenure.cli.main import cli
with tenure.open("rocksdb:./data") as store:
    store.queue("cities").enqueue(b"Bonn")
for line in {list(PLAIN)!r}:
    ran = CliRunner().invoke(cli, line.split())
    print(ran.exit_code, ran.stderr.splitlines()[-1:])
try:
    with tenure.open("rocksdb:./data") as store:
        store.tables()
except tenure.SettingsError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    *said, tables = done.stdout.splitlines()
    for (line, extra), found in zip(PLAIN.items(), said, strict=True):
        assert found.startswith("2 "), f"{line}: {found}"
        assert f"pip install 'tenure[{extra}]'" in found, f"{line}: {found}"
        assert "a bug in Tenure" not in found
    assert tables.endswith("pip install 'tenure[analysis]'"), done.stderr


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
