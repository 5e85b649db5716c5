"""What cannot be counted in rows: tombstones. Times, compared with each other on the same machine, generously."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cost.million import claims, sweeps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_claim_takes_as_long_after_60000_consumed_jobs_as_after_1000(tmp_path: Path) -> None:
    early, late = claims(tmp_path, (1000, 60_000))
    assert late < 2.5 * early, f"{early:.1f} µs at the 1,000th claim, {late:.1f} µs at the 60,000th"


def test_sweeping_ten_leases_takes_as_long_in_50000_jobs_as_in_1000(tmp_path: Path) -> None:
    small, large = sweeps(tmp_path, (1000, 50_000))
    assert large < 3 * small, f"{small:.0f} µs in 1,000 jobs, {large:.0f} µs in 50,000"
