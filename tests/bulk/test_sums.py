"""Sums of many values at once are those of each."""

from __future__ import annotations

import random
from zlib import crc32

import numpy as np
import pytest

from tenure.bulk import arrays, blocks, checksums
from tenure.errors import Corrupt
from tenure.storage.engine import Row


def values(chance: random.Random, count: int, width: int) -> list[bytes]:
    bodies = [b"\x01" + chance.randbytes(width - 5) for _ in range(count)]
    return [body + crc32(body).to_bytes(4, "big") for body in bodies]


@pytest.mark.parametrize(("count", "width"), [(1, 5), (2, 6), (3, 77), (17, 245), (512, 77), (1000, 13), (8192, 77)])
def test_the_sum_of_all_follows_from_the_sums_of_each(count: int, width: int) -> None:
    made = values(random.Random(count), count, width)
    each = np.array([crc32(value) for value in made], np.uint32)
    assert checksums.of_joined(each, width) == crc32(b"".join(made))
    stored = np.array([int.from_bytes(value[-4:], "big") for value in made], ">u4")
    assert (checksums.of_whole(stored) == each).all()


def _rows(made: list[bytes]) -> list[Row]:
    return [(at.to_bytes(20, "big"), value) for at, value in enumerate(made)]


def _damage(at: int) -> None:
    """A decoder that finds nothing wrong."""


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_whichever_bit_is_turned_its_value_is_found(seed: int, mixed: bool) -> None:
    chance = random.Random(seed)
    made = values(chance, 300, 60) + (values(chance, 3, 61) if mixed else [])
    arrays.check(blocks.block(_rows(made), 20, "a table"), 10, _damage)
    bad = chance.randrange(len(made))
    bit = chance.randrange(8 * len(made[bad]))
    number = int.from_bytes(made[bad], "big") ^ (1 << bit)
    made[bad] = number.to_bytes(len(made[bad]), "big")
    with pytest.raises(Corrupt) as told:
        arrays.check(blocks.block(_rows(made), 20, "a table"), 10, _damage)
    assert told.value.key == bad.to_bytes(20, "big")
