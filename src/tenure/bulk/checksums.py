"""CRC-32 of many values at once.

A CRC is linear: the CRC of two joined strings is the first's, shifted by the second's length, XOR the second's. So the
CRC of a thousand joined values can be computed from their stored CRCs alone. If it equals the CRC of the joined bytes,
every value is intact: one pass over the bytes checks all of them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Sums = npt.NDArray[np.uint32]
Tables = tuple[Sums, Sums]
"""A linear map of 32-bit numbers, as two tables: its images of the lower and of the upper 16 bits."""


def _byte_table() -> Sums:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, np.uint32(0xEDB88320) ^ (table >> 1), table >> 1).astype(np.uint32)
    return table


_CRC = _byte_table()
_BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)


def of_whole(stored: npt.NDArray[Any]) -> Sums:
    """The CRC of each whole value, trailer included, computed from its trailer (the stored CRC of the bytes before it).

    A value's CRC equals this number exactly if its body has the CRC that the trailer says.
    """
    sums = stored.astype(np.uint32)
    return _applied(_trailer(), sums) ^ _with_trailer(np.zeros(1, np.uint32))


def of_joined(sums: Sums, width: int) -> int:
    """The CRC of joined values of one width, from the CRC of each."""
    while len(sums) > 1:
        if len(sums) % 2:
            sums = np.concatenate([np.zeros(1, np.uint32), sums])  # the CRC of the empty string
        sums = _applied(_moving(width), sums[0::2]) ^ sums[1::2]
        width *= 2
    return int(sums[0])


def _with_trailer(stored: Sums) -> Sums:
    register = ~stored
    for shift in (24, 16, 8, 0):
        register = _CRC[(register ^ (stored >> np.uint32(shift))) & 0xFF] ^ (register >> np.uint32(8))
    return ~register


@lru_cache(maxsize=1)
def _trailer() -> Tables:
    return _tables(_with_trailer(_BITS) ^ _with_trailer(np.zeros(1, np.uint32)))


@lru_cache(maxsize=48)
def _moving(width: int) -> Tables:
    return _tables(_moved(width))


@lru_cache(maxsize=1024)
def _moved(width: int) -> Sums:
    """The image of each bit of a CRC when `width` zero bytes follow."""
    if width == 1:
        return _byte_after(_BITS)
    half = _tables(_moved(width // 2))
    moved = _applied(half, _applied(half, _BITS))
    return _byte_after(moved) if width % 2 else moved


def _byte_after(sums: Sums) -> Sums:
    moved: Sums = _CRC[sums & 0xFF] ^ (sums >> np.uint32(8))
    return moved


def _tables(images: Sums) -> Tables:
    halves = []
    for bits in (images[:16], images[16:]):
        table = np.zeros(1, np.uint32)
        for image in bits:
            table = np.concatenate([table, table ^ image])
        halves.append(table)
    return halves[0], halves[1]


def _applied(tables: Tables, sums: Sums) -> Sums:
    low, high = tables
    return low.take(sums & 0xFFFF) ^ high.take(sums >> np.uint32(16))
