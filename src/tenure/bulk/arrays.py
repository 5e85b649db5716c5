"""Many stored values at once: checked, cut apart and turned into Arrow arrays without a loop in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tenure.bulk import checksums
from tenure.bulk.blocks import Block
from tenure.errors import Corrupt
from tenure.storage.checksum import crc32

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Fields = npt.NDArray[np.void]
Array = npt.NDArray[Any]
K = TypeVar("K", bound=np.generic)
Damage = Callable[[int], None]
"""Raises what is wrong with the n-th value."""

_US = np.int64(1000)
_LAST_MS = np.uint64(2**63 // 1000 - 1)
TIME = pa.timestamp("us", tz="UTC")
_TRAILER, _PREFIX, _BYTE = np.dtype(">u4"), np.dtype("<i4"), np.dtype("u1")


# ── checksums ────────────────────────────────────────────────────────────────────────────────────────────────────────


def check(rows: Block, least: int, damage: Damage, version: int | None = 1) -> None:
    """Every value's CRC-32 (the last four bytes, of all that is before them), its version (at most `version`) and its least length.

    The CRC is taken of whole values, trailer and all, since cutting each one would cost more than the CRC itself.
    """
    if not len(rows):
        return
    bad = rows.lengths < least + 4
    if not bad.any():
        whole = checksums.of_whole(at_each(rows.data, rows.starts + (rows.lengths - 4), _TRAILER))
        if not rows.width or checksums.of_joined(whole, rows.width) != crc32(rows.data):
            bad = whole != rows.sums()
        if version is not None:
            found = at_each(rows.data, rows.starts, _BYTE)
            bad |= (found < 1) | (found > version)
    if bad.any():
        first = int(bad.argmax())
        damage(first)
        raise Corrupt("a stored value is damaged", key=rows.key(first))


def fields(data: bytes, layout: np.dtype[np.void], what: str) -> Fields:
    """Values of one width, joined, as an array of records."""
    if len(data) % layout.itemsize:
        raise Corrupt(f"{what} has {len(data)} bytes, which is no multiple of {layout.itemsize}")
    return np.frombuffer(data, layout)


def heads(rows: Block, layout: np.dtype[np.void]) -> Fields:
    """What each value begins with; all are known to be long enough."""
    return at_each(rows.data, rows.starts, layout)


def at_each(data: bytes, starts: Ints, kind: np.dtype[K]) -> npt.NDArray[K]:
    """What is at each of these places, as one array."""
    if not len(starts):
        return np.zeros(0, kind)
    stride = _stride(starts)
    if stride is not None:  # evenly spaced, as in most blocks: a view without a copy
        return np.ndarray(len(starts), kind, data, int(starts[0]), (stride,))
    anywhere: npt.NDArray[K] = np.ndarray(len(data) - kind.itemsize + 1, kind, data, strides=(1,))
    return anywhere[starts]


def _stride(starts: Ints) -> int | None:
    """The distance between neighbouring places, or None if it varies."""
    if len(starts) == 1:
        return 1
    step = int(starts[1] - starts[0])
    return step if step > 0 and (starts[1:] - starts[:-1] == step).all() else None


def keys_as(keys: bytes, layout: np.dtype[K]) -> npt.NDArray[K]:
    return np.frombuffer(keys, layout)


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def longs(values: npt.NDArray[np.generic], null: Bools | None = None) -> pa.Array:
    return _numbers(values.astype(np.int64), pa.int64(), null)


def ints(values: npt.NDArray[np.generic], null: Bools | None = None) -> pa.Array:
    return _numbers(values.astype(np.int32), pa.int32(), null)


def times(milliseconds: npt.NDArray[np.generic], null: Bools | None = None) -> pa.Array:
    # Stored as unsigned milliseconds; one that does not fit into signed microseconds becomes the largest that does.
    ms = milliseconds.astype(np.uint64)
    if len(ms) and ms.max() > _LAST_MS:
        ms = np.minimum(ms, _LAST_MS)
    return _numbers(ms.view(np.int64) * _US, TIME, null)


def times_or_none(milliseconds: npt.NDArray[np.generic]) -> pa.Array:
    """Null where it is 0."""
    return times(milliseconds, milliseconds == 0)


@lru_cache(maxsize=256)
def alike(make: Callable[[Array], pa.Array], value: int, count: int) -> pa.Array:
    """A column with one value in every row. Cached: successive batches mostly have the same length and value."""
    return make(np.full(count, value))


def _numbers(values: npt.NDArray[np.generic], kind: pa.DataType, null: Bools | None) -> pa.Array:
    valid = None
    if null is not None and null.any():
        if null.all():
            return pa.nulls(len(values), kind)
        valid = pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(values)])


def texts(words: Sequence[str | None], which: npt.NDArray[np.generic]) -> pa.Array:
    """A word for each number."""
    if len(which) and (which == which[0]).all():  # as it is for most columns of neighbouring rows
        return _repeated(words[int(which[0])], len(which))
    return pa.array(words, pa.string()).take(pa.array(which.astype(np.int64)))


def constant(word: str | None, count: int) -> pa.Array:
    return _repeated(word, count)


@lru_cache(maxsize=64)
def _repeated(word: str | None, count: int) -> pa.Array:
    if word is None:
        return pa.nulls(count, pa.string())
    data = word.encode()
    return pa.Array.from_buffers(pa.string(), count, [None, _offsets(count, len(data)), pa.py_buffer(data * count)])


@lru_cache(maxsize=64)
def _offsets(count: int, size: int) -> pa.Buffer:
    """The offsets of `count` pieces of one size. Cached: successive batches mostly have the same length."""
    return pa.py_buffer(np.arange(count + 1, dtype=np.int32) * np.int32(size))


_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)


def hex_ids(ids: Bytes, null: Bools | None = None) -> pa.Array:
    """16 bytes each, as 32 hex digits."""
    count = len(ids)
    if null is not None and null.all():
        return pa.nulls(count, pa.string())
    digits = _HEX.take(ids)
    valid = None
    if null is not None and null.any():
        valid = pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), count, [valid, _offsets(count, 32), pa.py_buffer(digits)])


def no_id(ids: Bytes) -> Bools:
    halves = ids.view(np.uint64)
    return np.asarray((halves[:, 0] | halves[:, 1]) == 0)


def cut(data: bytes, starts: Ints, lengths: Ints, null: Bools | None = None) -> pa.Array:
    """A binary column: for each row the bytes of `data` at its start and length, copied by Arrow from views."""
    count = len(starts)
    if null is not None and null.all():
        return pa.nulls(count, pa.binary())
    if len(data) >= 2**31:
        pieces = [data[s : s + n] for s, n in zip(starts.tolist(), lengths.tolist(), strict=True)]
        return pa.array(pieces, pa.binary(), mask=null)
    if null is None and count and (starts[1:] - starts[:-1] == lengths[:-1]).all():  # side by side: nothing is copied
        first, end = int(starts[0]), int(starts[-1] + lengths[-1])
        offsets = pa.py_buffer((np.append(starts, end) - first).astype(np.int32))
        values = pa.py_buffer(data)[first:end]
        return pa.Array.from_buffers(pa.binary(), count, [None, offsets, values])
    size = int(lengths[0]) if null is None and count else 0
    stride = _stride(starts) if size and (lengths == size).all() else None
    if stride is not None:
        joined = np.ndarray((count, size), np.uint8, data, int(starts[0]), (stride, 1)).tobytes()
        return pa.Array.from_buffers(pa.binary(), count, [None, _offsets(count, size), pa.py_buffer(joined)])
    views = np.zeros((count, 4), np.int32)
    views[:, 0] = lengths
    long = lengths > 12
    if long.all():
        views[:, 1] = at_each(data, starts, _PREFIX)
        views[:, 3] = starts
    else:
        begin = starts[long]
        views[long, 1] = at_each(data, begin, _PREFIX)
        views[long, 3] = begin
        short = ~long
        raw = np.frombuffer(data or b"\0", np.uint8)
        inside = views.view(np.uint8).reshape(count, 16)
        places = np.minimum(starts[short][:, None] + np.arange(12), len(raw) - 1)
        inside[short, 4:16] = np.where(np.arange(12) < lengths[short][:, None], raw[places], 0)
    valid = None
    if null is not None and null.any():
        valid = pa.py_buffer(np.packbits(~null, bitorder="little"))
    buffers = [valid, pa.py_buffer(views), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary_view(), count, buffers).cast(pa.binary())


def as_text(binary: pa.Array) -> pa.Array:
    """Text of UTF-8 bytes.

    Bytes that are not UTF-8 are replaced: one bad value must not keep a table from being read.
    """
    try:
        return binary.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if b is None else b.decode("utf-8", "replace") for b in binary.to_pylist()], pa.string())


def filtered(batch: pa.RecordBatch, keep: Bools | None) -> pa.RecordBatch:
    return batch if keep is None or keep.all() else batch.filter(pa.array(keep))
