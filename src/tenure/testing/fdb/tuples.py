"""The tuple layer: tuples of simple values as bytes that sort as the tuples do.

    code      value
    00        None (00 ff inside a nested tuple)
    01, 02    bytes, text: 00 is written as 00 ff, and 00 ends it
    05        a nested tuple, ended by 00
    0b…1d     integers: 14 is zero, 14+n a positive one of n bytes, 14-n the complement of a negative one
    20, 21    a float of 4 or 8 bytes, its sign bit flipped (all bits, if negative)
    26, 27    False, True
    30        a UUID
    33        a version stamp of 12 bytes

Written from the specification (`design/tuple.md` of FoundationDB); a test compares it with `fdb.tuple`, byte for byte.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Sequence
from typing import TypeAlias

_NO_TR = b"\xff" * 10
Item: TypeAlias = "bytes | str | int | float | bool | uuid.UUID | SingleFloat | Versionstamp | Sequence[Item] | None"


class SingleFloat:
    """A float of four bytes."""

    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value: float = struct.unpack(">f", struct.pack(">f", value))[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SingleFloat) and struct.pack(">f", self.value) == struct.pack(">f", other.value)

    def __hash__(self) -> int:
        return hash(struct.pack(">f", self.value))

    def __repr__(self) -> str:
        return f"SingleFloat({self.value!r})"


class Versionstamp:
    """Ten bytes that the database fills in at commit (None: not yet), and two of the user's."""

    __slots__ = ("tr_version", "user_version")

    def __init__(self, tr_version: bytes | None = None, user_version: int = 0) -> None:
        if tr_version is not None and len(tr_version) != 10:
            raise ValueError("a transaction's version stamp has ten bytes")
        if not 0 <= user_version <= 0xFFFF:
            raise ValueError("the user's part of a version stamp has two bytes")
        self.tr_version, self.user_version = tr_version, user_version

    @classmethod
    def from_bytes(cls, raw: bytes) -> Versionstamp:
        return cls(None if raw[:10] == _NO_TR else raw[:10], int.from_bytes(raw[10:12], "big"))

    def is_complete(self) -> bool:
        return self.tr_version is not None

    def to_bytes(self) -> bytes:
        return (self.tr_version or _NO_TR) + self.user_version.to_bytes(2, "big")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Versionstamp) and self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def __repr__(self) -> str:
        return f"Versionstamp({self.tr_version!r}, {self.user_version})"


# ── packing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def pack(items: Sequence[Item], prefix: bytes = b"") -> bytes:
    """The bytes of a tuple. Raises ValueError if it has a version stamp that is not complete, TypeError for other types."""
    packed, stamps = _pack(items, prefix)
    if stamps:
        raise ValueError("an incomplete version stamp is packed by pack_with_versionstamp")
    return packed


def pack_with_versionstamp(items: Sequence[Item], prefix: bytes = b"") -> bytes:
    """As `pack`, of a tuple with exactly one incomplete version stamp, followed by the stamp's place (4 bytes)."""
    packed, stamps = _pack(items, prefix)
    if len(stamps) != 1:
        raise ValueError("no incomplete version stamp" if not stamps else "more than one incomplete version stamp")
    return packed + struct.pack("<I", stamps[0])


def has_incomplete_versionstamp(items: Sequence[Item]) -> bool:
    return bool(_pack(items, b"")[1])


def _pack(items: Sequence[Item], prefix: bytes) -> tuple[bytes, list[int]]:
    out = bytearray(prefix)
    stamps: list[int] = []
    for item in items:
        _put(out, item, stamps, nested=False)
    return bytes(out), stamps


def _put(out: bytearray, item: Item, stamps: list[int], *, nested: bool) -> None:
    if item is None:
        out += b"\x00\xff" if nested else b"\x00"
    elif isinstance(item, bool):
        out.append(0x27 if item else 0x26)
    elif isinstance(item, int):
        _put_int(out, item)
    elif isinstance(item, (bytes, str)):
        raw = item.encode() if isinstance(item, str) else item
        out += (b"\x02" if isinstance(item, str) else b"\x01") + raw.replace(b"\x00", b"\x00\xff") + b"\x00"
    elif isinstance(item, SingleFloat):
        out += b"\x20" + _flipped(struct.pack(">f", item.value))
    elif isinstance(item, float):
        out += b"\x21" + _flipped(struct.pack(">d", item))
    elif isinstance(item, uuid.UUID):
        out += b"\x30" + item.bytes
    elif isinstance(item, Versionstamp):
        if not item.is_complete():
            stamps.append(len(out) + 1)
        out += b"\x33" + item.to_bytes()
    elif isinstance(item, (tuple, list)):
        out.append(0x05)
        for inner in item:
            _put(out, inner, stamps, nested=True)
        out.append(0x00)
    else:
        raise TypeError(f"the tuple layer has no {type(item).__name__}")


def _put_int(out: bytearray, number: int) -> None:
    size = (abs(number).bit_length() + 7) // 8
    if size > 255:
        raise ValueError("an integer of more than 255 bytes")
    short = abs(number) < 2**64 - 1  # the binding takes the long form for this one already
    if number >= 0:
        out += bytes((0x14 + size,)) if short else bytes((0x1D, size))
        out += number.to_bytes(size, "big")
    else:
        out += bytes((0x14 - size,)) if short else bytes((0x0B, size ^ 0xFF))
        out += (number + (1 << 8 * size) - 1).to_bytes(size, "big")


def _flipped(raw: bytes) -> bytes:
    return bytes(b ^ 0xFF for b in raw) if raw[0] & 0x80 else bytes((raw[0] ^ 0x80,)) + raw[1:]


def _unflipped(raw: bytes) -> bytes:
    return bytes((raw[0] ^ 0x80,)) + raw[1:] if raw[0] & 0x80 else bytes(b ^ 0xFF for b in raw)


# ── unpacking ────────────────────────────────────────────────────────────────────────────────────────────────────────


def unpack(raw: bytes, prefix_len: int = 0) -> tuple[Item, ...]:
    found = []
    at = prefix_len
    while at < len(raw):
        item, at = _take(raw, at)
        found.append(item)
    return tuple(found)


def _take(raw: bytes, at: int) -> tuple[Item, int]:
    code = raw[at]
    if code == 0x00:
        return None, at + 1
    if code in (0x01, 0x02):
        data, at = _take_bytes(raw, at + 1)
        return (data if code == 0x01 else data.decode()), at
    if code == 0x05:
        return _take_nested(raw, at + 1)
    if 0x0B <= code <= 0x1D:
        return _take_int(raw, at, code)
    if code == 0x20:
        return SingleFloat(struct.unpack(">f", _unflipped(raw[at + 1 : at + 5]))[0]), at + 5
    if code == 0x21:
        return struct.unpack(">d", _unflipped(raw[at + 1 : at + 9]))[0], at + 9
    if code in (0x26, 0x27):
        return code == 0x27, at + 1
    if code == 0x30:
        return uuid.UUID(bytes=raw[at + 1 : at + 17]), at + 17
    if code == 0x33:
        return Versionstamp.from_bytes(raw[at + 1 : at + 13]), at + 13
    raise ValueError(f"the tuple layer has no type {code:#x}")


def _take_bytes(raw: bytes, at: int) -> tuple[bytes, int]:
    end = raw.index(b"\x00", at)
    while raw[end + 1 : end + 2] == b"\xff":
        end = raw.index(b"\x00", end + 2)
    return raw[at:end].replace(b"\x00\xff", b"\x00"), end + 1


def _take_nested(raw: bytes, at: int) -> tuple[Item, int]:
    found: list[Item] = []
    while True:
        if raw[at] == 0x00:
            if raw[at + 1 : at + 2] != b"\xff":
                return tuple(found), at + 1
            found.append(None)
            at += 2
        else:
            item, at = _take(raw, at)
            found.append(item)


def _take_int(raw: bytes, at: int, code: int) -> tuple[int, int]:
    at += 1
    if code in (0x0B, 0x1D):
        size, at = raw[at] ^ (0xFF if code == 0x0B else 0), at + 1
    else:
        size = abs(code - 0x14)
    number = int.from_bytes(raw[at : at + size], "big")
    return (number if code >= 0x14 else number - (1 << 8 * size) + 1), at + size


def range(items: Sequence[Item]) -> slice:  # noqa: A001 - the binding's name
    """Where the longer tuples that begin so lie, as a slice of keys."""
    packed = pack(items)
    return slice(packed + b"\x00", packed + b"\xff")


def compare(one: Iterable[Item], other: Iterable[Item]) -> int:
    left, right = _pack(tuple(one), b"")[0], _pack(tuple(other), b"")[0]
    return (left > right) - (left < right)
