"""Many stored values at once: checked, cut apart and turned into Arrow arrays without a loop in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leasehold.errors import Corrupt
from leasehold.storage.checksum import crc32
from leasehold.storage.engine import Row

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Fields = npt.NDArray[np.void]
Damage = Callable[[int], None]
"""Raises what is wrong with the n-th value."""

_US = np.int64(1000)


_first, _second = itemgetter(0), itemgetter(1)


class Block(NamedTuple):
    """Rows side by side: where each value starts in `data`, and how long it is."""

    keys: list[bytes]
    values: list[bytes]
    data: bytes
    starts: Ints
    lengths: Ints

    def __len__(self) -> int:
        return len(self.keys)


def block(rows: Sequence[Row]) -> Block:
    keys, values = list(map(_first, rows)), list(map(_second, rows))
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    return Block(keys, values, b"".join(values), np.cumsum(lengths) - lengths, lengths)


# ── checksums ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, np.uint32(0xEDB88320) ^ (table >> 1), table >> 1).astype(np.uint32)
    return table


_CRC = _table()


def check(rows: Block, least: int, damage: Damage, version: int | None = 1) -> None:
    """Every value's CRC-32 (the last four bytes, of all that is before them), its version and its least length.

    The CRC is taken of whole values, trailer and all, since cutting each one would cost more than the CRC itself. Fed
    with fixed bytes, a CRC stays a bijection: the whole's is what it should be exactly if the body's is.
    """
    if not len(rows):
        return
    short = rows.lengths < least + 4
    if not short.any():
        whole = np.fromiter(map(crc32, rows.values), np.uint32, len(rows))
        data = np.frombuffer(rows.data, np.uint8)
        trailer = data[(rows.starts + rows.lengths - 4)[:, None] + np.arange(4)]
        stored = trailer.view(">u4").ravel().astype(np.uint32)
        register = ~stored
        for at in range(4):
            register = _CRC[(register ^ trailer[:, at]) & 0xFF] ^ (register >> 8)
        bad = ~register != whole
        if version is not None:
            bad |= data[rows.starts] != version
    else:
        bad = short
    if bad.any():
        first = int(bad.argmax())
        damage(first)
        raise Corrupt("a stored value is damaged", key=rows.keys[first])


def fields(data: bytes, layout: np.dtype[np.void], what: str) -> Fields:
    """Values of one width, joined, as an array of records."""
    if len(data) % layout.itemsize:
        raise Corrupt(f"{what} has {len(data)} bytes, which is no multiple of {layout.itemsize}")
    return np.frombuffer(data, layout)


def heads(rows: Block, layout: np.dtype[np.void]) -> Fields:
    """What each value begins with; all are known to be long enough."""
    data = np.frombuffer(rows.data, np.uint8)
    picked = data[rows.starts[:, None] + np.arange(layout.itemsize)]
    return np.ascontiguousarray(picked).view(layout).ravel()


def keys_as(keys: Sequence[bytes], layout: np.dtype[Any], what: str) -> npt.NDArray[Any]:
    if not set(map(len, keys)) <= {layout.itemsize}:
        odd = next(key for key in keys if len(key) != layout.itemsize)
        raise Corrupt(f"{what} has a key of {len(odd)} bytes: {odd.hex()}", key=odd)
    return np.frombuffer(b"".join(keys), layout)


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def longs(values: npt.NDArray[Any], null: Bools | None = None) -> pa.Array:
    return pa.array(values.astype(np.int64), pa.int64(), mask=null)


def ints(values: npt.NDArray[Any], null: Bools | None = None) -> pa.Array:
    return pa.array(values.astype(np.int32), pa.int32(), mask=null)


def times(milliseconds: npt.NDArray[Any], null: Bools | None = None) -> pa.Array:
    # Stored as unsigned; a moment that would not fit into microseconds is the end of time, not a wrapped one.
    ms = np.minimum(milliseconds, np.uint64(2**63 // 1000 - 1)).astype(np.int64)
    return pa.array(ms * _US, pa.int64(), mask=null).cast(pa.timestamp("us", tz="UTC"))


def texts(words: Sequence[str | None], which: npt.NDArray[Any]) -> pa.Array:
    """A word for each number."""
    return pa.array(words, pa.string()).take(pa.array(which.astype(np.int64)))


def constant(word: str, count: int) -> pa.Array:
    return texts([word], np.zeros(count, np.int64))


_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)


def hex_ids(ids: Bytes, null: Bools | None = None) -> pa.Array:
    """16 bytes each, as 32 hex digits."""
    count = len(ids)
    if null is not None and null.all():
        return pa.nulls(count, pa.string())
    digits = _HEX[ids]
    offsets = np.arange(count + 1, dtype=np.int32) * 32
    valid = None
    if null is not None and null.any():
        valid = pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), count, [valid, pa.py_buffer(offsets), pa.py_buffer(digits)])


def no_id(ids: Bytes) -> Bools:
    return np.asarray(~ids.any(axis=1))


def cut(data: bytes, starts: Ints, lengths: Ints, null: Bools | None = None) -> pa.Array:
    """A piece of `data` for each row, as binary: described as views, which Arrow then copies together."""
    count = len(starts)
    if null is not None and null.all():
        return pa.nulls(count, pa.binary())
    if len(data) >= 2**31:
        pieces = [data[s : s + n] for s, n in zip(starts.tolist(), lengths.tolist(), strict=True)]
        return pa.array(pieces, pa.binary(), mask=null)
    views = np.zeros((count, 4), np.int32)
    raw = np.frombuffer(data or b"\0", np.uint8)
    inside = views.view(np.uint8).reshape(count, 16)
    views[:, 0] = lengths
    long = lengths > 12
    begin = starts[long]
    inside[long, 4:8] = raw[begin[:, None] + np.arange(4)]
    views[long, 3] = begin
    if not long.all():
        short = ~long
        places = np.minimum(starts[short][:, None] + np.arange(12), len(raw) - 1)
        inside[short, 4:16] = np.where(np.arange(12) < lengths[short][:, None], raw[places], 0)
    valid = None
    if null is not None and null.any():
        valid = pa.py_buffer(np.packbits(~null, bitorder="little"))
    buffers = [valid, pa.py_buffer(views), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary_view(), count, buffers).cast(pa.binary())


def as_text(binary: pa.Array) -> pa.Array:
    """UTF-8, or the nearest to it: what was stored as text by an older hand must not keep a table from being read."""
    try:
        return binary.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if b is None else b.decode("utf-8", "replace") for b in binary.to_pylist()], pa.string())


def filtered(batch: pa.RecordBatch, keep: Bools | None) -> pa.RecordBatch:
    return batch if keep is None or keep.all() else batch.filter(pa.array(keep))
