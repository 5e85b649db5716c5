"""Bugs that were planted are found: three of them in every run, all in `make test-crash` (PLANTED=all)."""

from __future__ import annotations

import os

import pytest

from tests.planted.bugs import BUGS, Bug
from tests.planted.hunt import ROOT, hunt

SOME = {"a lease that has ended still settles", "a retried job is in no index", "a token is given twice"}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted(bug: Bug) -> None:
    assert (ROOT / "src" / "tenure" / bug.file).read_text().count(bug.right) == 1


@pytest.mark.crash
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "bug", [bug for bug in BUGS if bug.name in SOME or "PLANTED" in os.environ], ids=lambda bug: bug.name
)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    catch = hunt(bug, 300)  # on a busy machine; the table in docs/testing.md tells how long it takes on a quiet one
    print(f"{bug.name}: {catch.seconds:.1f} s, seed {catch.seed}: {catch.how[:200]}")
    assert catch.how
    assert "it does not start" not in catch.how
