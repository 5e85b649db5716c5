"""Helpers for tests of workers: waiting for conditions, and an environment without other settings."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TENURE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[list[str]]]:
    """What handlers of `tests.worker.apps` wrote, here or in any process."""
    file = tmp_path / "trace"
    monkeypatch.setenv("TRACE", str(file))
    monkeypatch.setenv("EFFECTS", str(tmp_path / "effects.db"))
    return lambda: [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)
