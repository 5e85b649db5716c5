"""No flipped byte goes unnoticed (see `flips`). DAMAGE_FLIPS sets the number of flips for both engines together."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path

import pytest

from tests.damage import flips

CUT_STEP = int(os.environ.get("CUT_STEP", "150"))
COUNT = int(os.environ.get("DAMAGE_FLIPS", "80")) // 2


@pytest.mark.crash
@pytest.mark.timeout(120 + COUNT)
@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_no_flipped_byte_is_silent(engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("DAMAGE_SEED") or random.SystemRandom().randrange(2**32))
    choose = partial(flips.sample, engine, count=COUNT, chance=random.Random(seed))
    tried = flips.trial(engine, tmp_path, choose)
    with capsys.disabled():
        print(f"\nDAMAGE_SEED={seed}\n{flips.table({engine: tried})}", flush=True)
    assert len(tried) == COUNT
    assert [one for one in tried if one.outcome in flips.WRONG] == []
    loud = sum(one.outcome in flips.LOUD for one in tried)
    assert loud > COUNT // 4, "hardly any flip was noticed: were the files damaged at all?"


@pytest.mark.crash
@pytest.mark.timeout(3600)
def test_no_log_that_ends_early_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """RocksDB's logs end after each byte in turn (CUT_STEP=1, `make test-crash`), or after one of so many."""
    choose = partial(flips.cuts, step=CUT_STEP, chance=random.Random(CUT_STEP))
    tried = flips.trial("rocksdb", tmp_path, choose, small=True)
    with capsys.disabled():
        print(f"\n{flips.table({'rocksdb': tried})}", flush=True)
    assert [one for one in tried if one.outcome in flips.WRONG] == []
    assert sum(one.outcome == "refused at open" for one in tried) > len(tried) // 2


def test_a_wrong_answer_is_detected(tmp_path: Path) -> None:
    """Tests the judge: a store that gives other answers without an error is `silent`."""
    known = flips.build("lmdb", tmp_path)
    flips.copy(tmp_path / "data", tmp_path / "copy" / "data", None)
    good, outcome, _ = flips.answers(f"lmdb:{tmp_path / 'copy' / 'data'}", known)
    assert outcome == ""
    lost = next(name for name in good if name.startswith("get "))
    assert flips.judge(f"lmdb:{tmp_path / 'data'}", known, good | {lost: "something else"})[0] == "silent"
