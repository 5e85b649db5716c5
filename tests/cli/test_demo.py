"""`make demo` is the first thing anyone runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_demo_shows_what_it_promises(tmp_path: Path):
    ran = subprocess.run(
        [sys.executable, str(DEMO)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={"PATH": "/nowhere", "TMPDIR": str(tmp_path), "COLUMNS": "120"},
    )
    assert ran.returncode == 0, ran.stderr
    for part in (
        "password reset (9), order 17 (5), newsletter (0)",
        "duplicate=True, the same job",
        "attempt 3 of 3, token 3: failed, dead (max_attempts)",
        "attempt 2, token 2",
        "LeaseLost",
        "replayed: 1",
        "each exactly once: yes",
        "check(): clean",
        "left out: Spark needs Java 17",
        "enqueue emails",
    ):
        assert part in ran.stdout, part
    assert list(tmp_path.iterdir()) == []  # it tidies up
