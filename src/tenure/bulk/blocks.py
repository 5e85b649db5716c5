"""Many stored rows joined into blocks. For `state` and `jobs`, whose rows may also come from segments, see `job_columns`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tenure.bulk.checksums import Sums
from tenure.errors import Corrupt
from tenure.storage.checksum import crc32
from tenure.storage.engine import Row, Walk

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
#: Rows that are taken from a store at once: few enough that they are still in the processor's cache when they are
#: joined.
STEP = 512


class Block:
    """Many rows as two byte strings, all keys and all values, with the start and length of each value.

    `width` is the length of every value, or 0 where they differ; fixed-width blocks keep no per-row checksums.
    """

    def __init__(self, keys: bytes, data: bytes, lengths: Ints, width: int, sums: Sums | None = None) -> None:
        self.keys = keys
        self.data = data
        self.lengths = lengths
        self.width = width
        self.starts: Ints = np.arange(len(lengths)) * width if width else np.cumsum(lengths) - lengths
        self._sums = sums

    def __len__(self) -> int:
        return len(self.lengths)

    def key(self, at: int) -> bytes:
        width = len(self.keys) // len(self)
        return self.keys[at * width : (at + 1) * width]

    def value(self, at: int) -> bytes:
        return self.data[self.starts[at] : self.starts[at] + self.lengths[at]]

    def sums(self) -> Sums:
        """The CRC-32 of each value."""
        if self._sums is None:
            view, ends = memoryview(self.data), (self.starts + self.lengths).tolist()
            found = [crc32(view[start:end]) for start, end in zip(self.starts.tolist(), ends, strict=True)]
            self._sums = np.array(found, np.uint32)
        return self._sums

    def part(self, begin: int, end: int) -> Block:
        """The rows from one place to another; the values stay where they are."""
        width = len(self.keys) // max(1, len(self))
        made = Block(self.keys[begin * width : end * width], self.data, self.lengths[begin:end], 0)
        made.starts = self.starts[begin:end]
        return made

    def chosen(self, keep: Bools) -> Block:
        """A block of the rows that `keep` marks.

        It shares this block's data; the values of the other rows stay in it unused.
        """
        width = len(self.keys) // len(self)
        made = Block(np.frombuffer(self.keys, f"V{width}")[keep].tobytes(), self.data, self.lengths[keep], 0)
        made.starts = self.starts[keep]
        return made


def block(rows: Sequence[Row], width: int, what: str) -> Block:
    """A block of these rows. Raises Corrupt if a key has another width."""
    return _joined([_piece(rows, width, what)] if rows else [])


def gather(walk: Walk, limit: int, width: int, what: str, most_bytes: int, step: int) -> Block:
    """The next rows of a walk, `step` at a time; fewer than `limit` only at its end, or once they are `most_bytes`."""
    pieces: list[Block] = []
    while limit > 0 and sum([len(piece.data) for piece in pieces]) < most_bytes:
        wanted = min(limit, step)
        rows = walk.take(wanted)
        if rows:
            pieces.append(_piece(rows, width, what))
        if len(rows) < wanted:
            break
        limit -= wanted
    return _joined(pieces)


def _piece(rows: Sequence[Row], width: int, what: str) -> Block:
    keys, values = zip(*rows, strict=True)
    joined, data = joined_keys(keys, width, what), b"".join(values)
    widths = set(map(len, values))
    if len(widths) == 1:
        one = widths.pop()
        return Block(joined, data, np.full(len(values), one), one)
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    return Block(joined, data, lengths, 0, np.array(list(map(crc32, values)), np.uint32))


def _joined(pieces: Sequence[Block]) -> Block:
    if not pieces:
        return Block(b"", b"", np.zeros(0, np.int64), 0)
    if len(pieces) == 1:
        return pieces[0]
    widths = {piece.width for piece in pieces}
    width = widths.pop() if len(widths) == 1 else 0
    return Block(
        b"".join([piece.keys for piece in pieces]),
        b"".join([piece.data for piece in pieces]),
        np.concatenate([piece.lengths for piece in pieces]),
        width,
        None if width else np.concatenate([piece.sums() for piece in pieces]),
    )


def joined_keys(keys: Sequence[bytes], width: int, what: str) -> bytes:
    if not set(map(len, keys)) <= {width}:
        odd = next(key for key in keys if len(key) != width)
        raise Corrupt(f"{what} has a key of {len(odd)} bytes: {odd.hex()}", key=odd)
    return b"".join(keys)
