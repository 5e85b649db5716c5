"""Costs that rows do not show (tombstones): times, compared with each other on the same machine, with a wide margin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cost.million import claims, sweeps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def within_ratio(times: float, measured: Callable[[Path], list[float]], folder: Path) -> bool:
    """Whether the second time is at most `times` the first. Measured again if not: the machine may have been loaded."""
    for turn in range(3):
        first, second = measured(folder / str(turn))
        print(f"{first:.1f} µs, then {second:.1f} µs")
        if second < times * first:
            return True
    return False


def test_a_claim_takes_as_long_after_60000_consumed_jobs_as_after_1000(tmp_path: Path) -> None:
    assert within_ratio(2.5, lambda folder: claims(folder, (1000, 60_000)), tmp_path)


def test_sweeping_ten_leases_takes_as_long_in_50000_jobs_as_in_1000(tmp_path: Path) -> None:
    assert within_ratio(3, lambda folder: sweeps(folder, (1000, 50_000)), tmp_path)
