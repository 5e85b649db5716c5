"""Runs a test in a separate process, so that it does not depend on what other tests left in this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def ran_alone(test: str) -> bool:
    """Run the test (`path::name`) in a new process, and fail as it does there. False: this is that process."""
    if os.environ.get("RUN_ALONE") == test:
        return False
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", test],
        cwd=ROOT, env={**environ, "RUN_ALONE": test}, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    return True
