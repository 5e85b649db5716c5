"""The benchmark runs: every section, small, without peers. Its figures mean nothing here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.sections import SECTIONS

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(400)  # half a minute, and several on a busy machine
def test_quick_run(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--dir", str(tmp_path), "--results", str(tmp_path / "results")],
        cwd=ROOT, capture_output=True, text=True, timeout=380, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "results" / "quick.json").read_text())
    listed = subprocess.run(
        [sys.executable, "-m", "bench", "--list"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {line.split()[0] for line in listed} == {section.name for section in SECTIONS}
    quick = {section.name for section in SECTIONS if "quick" in section.sizes}
    assert {row["section"] for row in found["rows"]} == quick
    assert all(row["value"] is not None for row in found["rows"])
    text = (tmp_path / "results" / "quick.md").read_text()
    assert all(f"### {name}" in text for name in quick)
    assert [path.name for path in tmp_path.iterdir()] == ["results"]  # nothing is left behind
