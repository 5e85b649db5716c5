"""tools/run_tests.py: a test that fails twice has failed; one that passes alone is named; many are not repeated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "run_tests.py"
#: Fails the first FAILURES times in `first`, always in `always`.
TESTS = """
import os, pathlib, pytest

@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("name", ["a", "b@c"])
def test_first(name):
    seen = pathlib.Path(name)
    if os.environ["FAIL"] == "first" and not seen.exists():
        seen.touch()
        pytest.fail("the first time")

def test_bytecode_is_written():
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ

@pytest.mark.parametrize("number", range(int(os.environ.get("MANY", 1))))
def test_always(number):
    assert os.environ["FAIL"] != "always"
"""


def run(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p xdist -p no:cacheprovider\n")
    (folder / "test_some.py").write_text(TESTS)
    return subprocess.run(
        [sys.executable, str(TOOL)],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("environment", "code", "told"),
    [
        ({"FAIL": "never"}, 0, "4 passed"),
        ({"FAIL": "first"}, 0, "  test_some.py::test_first[a]\n  test_some.py::test_first[b@c]\n"),
        ({"FAIL": "always"}, 1, "1 failed: once more, alone"),
        ({"FAIL": "always", "MANY": "6"}, 1, "6 failed"),
    ],
    ids=["none", "only the first time", "always", "many"],
)
def test_failures_are_repeated_once(environment: dict[str, str], code: int, told: str, tmp_path: Path):
    ended = run(tmp_path, **environment)
    assert (ended.returncode, told in ended.stdout.replace(" \n", "\n")) == (code, True), ended.stdout + ended.stderr
    assert ("once more" in ended.stdout) == (environment["FAIL"] != "never" and "MANY" not in environment)
