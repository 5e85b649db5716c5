"""Bugs that were planted are found: three of them in every run, all in `make test-crash` (PLANTED=all)."""

from __future__ import annotations

import os

import pytest

from tests.planted.bugs import BUGS, Bug
from tests.planted.hunt import hunt


def test_every_bug_can_be_planted() -> None:
    """A change that rewrites the code of a bug has to plant it anew, or the bug would silently be hunted no more."""
    assert [f"{bug.name} ({bug.file})" for bug in BUGS if not bug.fits()] == []


@pytest.mark.crash
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", BUGS if "PLANTED" in os.environ else BUGS[::10][:3], ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    catch = hunt(bug)
    print(f"{bug.name}: {catch.seconds:.1f} s, {catch.cpu:.1f} s of a core, seed {catch.seed}: {catch.how[:200]}")
    assert catch.how
    assert "it does not start" not in catch.how
