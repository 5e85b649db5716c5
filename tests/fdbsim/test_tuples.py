"""Compares our tuple layer with the binding's own, byte for byte."""

from __future__ import annotations

import math
import sys
import uuid
from itertools import pairwise
from random import Random
from types import SimpleNamespace

import pytest

from tenure.testing.fdb import tuples
from tests.fdbsim.streams import random_item

real = pytest.importorskip("fdb.tuple", reason="the package foundationdb is not installed")

PLAIN = [
    (), (None,), (b"",), ("",), (b"\0", "\0"), (0, 1, -1, 255, -255, 256, 2**63, -(2**63), 2**64 - 1, -(2**64 - 1)),
    (2**64, -(2**64), 2**2000, -(2**2000)), (1.5, -1.5, 0.0, -0.0, math.inf, -math.inf), (True, False),
    (uuid.UUID(int=5),), ((None, (b"\0", None), ()), "x"),
]  # fmt: skip


def _for_real(item):
    if isinstance(item, tuples.SingleFloat):
        return real.SingleFloat(item.value)
    if isinstance(item, tuples.Versionstamp):
        return real.Versionstamp(item.tr_version, item.user_version)
    return tuple(map(_for_real, item)) if isinstance(item, (tuple, list)) else item


def _agree(items):
    packed = real.pack(_for_real(items))
    assert tuples.pack(items) == packed
    assert real.pack(_for_real(tuples.unpack(packed))) == packed
    return packed


@pytest.mark.parametrize("items", PLAIN, ids=repr)
def test_plain_tuples(items):
    assert tuples.unpack(_agree(items)) == items


def test_random_tuples_and_their_order():
    random = Random(15)
    made = [tuple(random_item(random) for _ in range(random.randint(0, 5))) for _ in range(5_000)]
    for items, other in pairwise(made):
        _agree(items)
        assert tuples.compare(items, other) == real.compare(items, other)
        where = real.range(items)
        assert tuples.range(items) == where


def test_floats_and_stamps(monkeypatch):
    # The binding checks for the class of a read's result, which does not exist without its native library.
    monkeypatch.setattr(sys.modules["fdb"], "impl", SimpleNamespace(Value=SimpleNamespace), raising=False)
    for number in (0.0, -0.0, 1.25, -3.5, math.inf):
        _agree((tuples.SingleFloat(number),))
    _agree((tuples.Versionstamp(b"0123456789", 7),))
    incomplete = ("log", tuples.Versionstamp(user_version=3), 5)
    assert tuples.pack_with_versionstamp(incomplete, b"pre") == real.pack_with_versionstamp(
        _for_real(incomplete), b"pre"
    )
    assert tuples.has_incomplete_versionstamp(incomplete)
    for wrong in ((1,), (tuples.Versionstamp(), tuples.Versionstamp())):
        with pytest.raises(ValueError, match=r"ncomplete|ersionstamp"):
            tuples.pack_with_versionstamp(wrong)
        with pytest.raises(ValueError, match=r"ncomplete|ersionstamp"):
            real.pack_with_versionstamp(_for_real(wrong))
