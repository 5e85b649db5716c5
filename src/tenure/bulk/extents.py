"""Cutting a space into parts of about equal size from the engine's extents (rows between two keys), without reading
rows.

Keys are assumed to lie evenly within an extent. Ids begin with a time, so this holds where jobs come steadily. Where
they come in bursts, a part may be too large by as many rows as one file of the engine has.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from tenure.bulk.query import Range
from tenure.storage import keyspace
from tenure.storage.engine import Extent, Reader

#: Keys as numbers, of this many bytes: a queue's number and an id.
_WIDTH = 20
#: Densities (rows per key) are integers with this many fraction bits: sums over the wide gaps between keys stay exact.
_POINT = 200
#: Keys that one walked extent covers.
_WALKED = 5_000
#: Below this many rows per core, starting a second reader costs more than it saves.
_FEW = 20_000


@dataclass(frozen=True)
class _Stretch:
    """Keys [begin, end) of the n-th range, over which rows lie evenly."""

    range: int
    begin: int
    end: int
    rows: float


@dataclass(frozen=True)
class Spread:
    ranges: Sequence[Range]
    stretches: Sequence[_Stretch]

    @property
    def rows(self) -> float:
        return sum(stretch.rows for stretch in self.stretches)

    def cut(self, parts: int) -> list[tuple[Range, ...]]:
        """Cut all ranges into at most `parts` parts of about equal numbers of rows."""
        share = self.rows / parts
        cuts: list[list[bytes]] = [[] for _ in self.ranges]
        passed, number = 0.0, 1
        for stretch in self.stretches:
            # Where the next shares end within it.
            while number < parts and number * share < passed + stretch.rows:
                into = max(0.0, number * share - passed) / stretch.rows
                key = stretch.begin + int((stretch.end - stretch.begin) * into)
                cuts[stretch.range].append(key.to_bytes(_WIDTH, "big"))
                number += 1
            passed += stretch.rows
        made: list[tuple[Range, ...]] = []
        current: list[Range] = []
        for (begin, end), keys in zip(self.ranges, cuts, strict=True):
            at = begin
            for cut in keys:
                if at < cut < end:
                    made.append((*current, (at, cut)))
                    current, at = [], cut
            current.append((at, end))
        return [*made, tuple(current)] if current else made


def within_queues(reader: Reader, extents: Sequence[Extent]) -> list[Extent]:
    """Replace extents that cover several queues by extents of one queue each.

    Such an extent says nothing about where its rows lie: the key range between two queues is wide and empty. Its keys are
    walked instead. That is rare, since the files of a large queue mostly hold that queue alone.
    """
    found: list[Extent] = []
    for together in _overlapping(extents):
        first, last = min(extent.first for extent in together), max(extent.last for extent in together)
        if all(_queue(extent.first) == _queue(extent.last) for extent in together):
            found += together
        else:
            found += _walked(reader, first, last)
    return found


def _overlapping(extents: Sequence[Extent]) -> list[list[Extent]]:
    """Group extents that overlap. Extents of different groups have no key in common."""
    groups: list[list[Extent]] = []
    reach = b""
    for extent in sorted(extents):
        if groups and extent.first <= reach:
            groups[-1].append(extent)
        else:
            groups.append([extent])
        reach = max(reach, extent.last)
    return groups


def _walked(reader: Reader, first: bytes, last: bytes) -> Iterator[Extent]:
    begin, end = first, last + b"\0"
    while True:
        keys = reader.keys(keyspace.STATE, begin, end, _WALKED)
        for _, group in groupby(keys, _queue):
            same = list(group)
            yield Extent(same[0], same[-1], len(same))
        if len(keys) < _WALKED:
            return
        begin = keys[-1] + b"\0"


def _queue(key: bytes) -> bytes:
    return key[:4]


def even(rows: float, most: int) -> int:
    """The number of parts to read `rows` rows in, each of about `most` rows at most.

    It is a multiple of this machine's cores, so that no core waits while another reads a last part. Few rows are an
    exception (`_FEW`). Executors are assumed to have as many cores as this machine.
    """
    parts, cores = max(1, math.ceil(rows / most)), os.cpu_count() or 1
    return parts if rows < _FEW * cores else -(-parts // cores) * cores


def spread(extents: Sequence[Extent], ranges: Sequence[Range]) -> Spread:
    """Estimate how many rows lie where in these ranges, which must ascend."""
    files = [(_number(extent.first), _number(extent.last) + 1, extent.rows) for extent in extents if extent.rows]
    found: list[_Stretch] = []
    for number, (begin, end) in enumerate(ranges):
        low, high = _number(begin), _number(end)
        inside = [
            (max(low, a), min(high, b), (rows << _POINT) // (b - a)) for a, b, rows in files if a < high and b > low
        ]
        # From one end of an extent to the next, as dense as those that cover it are together.
        changes = sorted([(a, density) for a, _, density in inside] + [(b, -density) for _, b, density in inside])
        density, at = 0, low
        for point, change in changes:
            if point > at and density:
                found.append(_Stretch(number, at, point, density * (point - at) / (1 << _POINT)))
            density, at = density + change, point
    return Spread(ranges, found)


def _number(key: bytes) -> int:
    return int.from_bytes(key[:_WIDTH].ljust(_WIDTH, b"\0"), "big")
