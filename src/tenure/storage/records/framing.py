"""The frame of every stored value: a version byte first, a CRC-32 last."""

from __future__ import annotations

from struct import Struct

import msgspec

from tenure.errors import Corrupt
from tenure.storage.checksum import LONG, crc32, crc32_held

#: For encoders that append the CRC themselves, to save a call.
pack_crc = Struct(">I").pack

V1 = 1
V1_BYTE = b"\x01"
V2 = 2

#: Larger payloads and results are split into parts of this size (one engine limits values to 100,000 bytes).
PART_BYTES = 64 * 1024


def seal(body: bytes) -> bytes:
    """Append the CRC to a body that starts with its version."""
    return body + pack_crc(crc32(body) if len(body) <= LONG else crc32_held(body))


def unseal(what: str, value: bytes) -> bytes:
    """The body of a value of version 1, its CRC checked. Raises Corrupt, which names `what`."""
    body = value[:-4]
    if crc32_held(body) != int.from_bytes(value[-4:], "big") or value[:1] != V1_BYTE:
        raise damaged(what, value)
    return body


def damaged(what: str, value: bytes) -> Corrupt:
    """The error for a value that cannot be decoded: an unknown version, or damage."""
    body = value[:-4]
    if len(value) > 4 and crc32_held(body) == int.from_bytes(value[-4:], "big"):
        return Corrupt(f"{what} has version {value[0]}, which this Tenure does not read")
    return Corrupt(f"{what} is damaged: its checksum does not fit its {len(value)} bytes")


unpack_crc = Struct(">I").unpack_from
new_tuple = tuple.__new__  # makes a NamedTuple without a Python call
encode_msgpack = msgspec.msgpack.Encoder().encode
