"""Power cuts while threads work: every image of the disk opens to a prefix of the history, whole, or is refused.

POWER_IMAGES sets how many images an engine has (48 if not said; `make test-crash` says 20,000). Each case records a working
process once for every few hundred of its images.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.power_images import Kind, cut_the_power

IMAGES = int(os.environ.get("POWER_IMAGES", "48"))

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: apt-get install strace"),
    pytest.mark.timeout(300 + IMAGES),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where the system has room for files there: a sync is then free."""
    shared = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="tenure-power-", dir=shared if os.access(shared, os.W_OK) else None))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize("logs", ["driver", "own"])
@pytest.mark.parametrize("threads", [1, 4, 16])
@pytest.mark.parametrize("durability", ["os", "disk"])
def test_power_cut(folder: Path, durability: str, threads: int, logs: str) -> None:
    told = cut_the_power(folder, Kind("rocksdb", durability, threads, logs), max(1, IMAGES // 12))
    assert not told.wrong, "\n".join(told.wrong[:10])


@pytest.mark.parametrize("threads", [1, 4])
def test_power_cut_of_lmdb(folder: Path, threads: int) -> None:
    """Pages that were written in place and not synced are missing or torn, one by one."""
    told = cut_the_power(folder, Kind("lmdb", "disk", threads, "driver"), max(1, IMAGES // 2))
    assert not told.wrong, "\n".join(told.wrong[:10])
    assert not told.refused
    assert told.cut
