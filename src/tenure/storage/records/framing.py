"""The seal: a version byte before what is kept, a CRC-32 behind it."""

from __future__ import annotations

from struct import Struct

import msgspec

from tenure.errors import Corrupt
from tenure.storage.checksum import LONG, crc32, crc32_held

#: For encoders that add the CRC themselves, where a call more is felt.
pack_crc = Struct(">I").pack

V1 = 1
V1_BYTE = b"\x01"
V2 = 2

#: A value is at most this large (one engine takes 100,000 bytes), so larger payloads and results are split.
PART_BYTES = 64 * 1024


def seal(body: bytes) -> bytes:
    return body + pack_crc(crc32(body) if len(body) <= LONG else crc32_held(body))


def unseal(what: str, value: bytes) -> bytes:
    """The body of a sealed value of this version."""
    body = value[:-4]
    if crc32_held(body) != int.from_bytes(value[-4:], "big") or value[:1] != V1_BYTE:
        raise damaged(what, value)
    return body


def damaged(what: str, value: bytes) -> Corrupt:
    body = value[:-4]
    if len(value) > 4 and crc32_held(body) == int.from_bytes(value[-4:], "big"):
        return Corrupt(f"{what} has version {value[0]}, which this Tenure does not read")
    return Corrupt(f"{what} is damaged: its checksum does not fit its {len(value)} bytes")


unpack_crc = Struct(">I").unpack_from
new_tuple = tuple.__new__  # what `_make` does, without a Python frame a record
encode_msgpack = msgspec.msgpack.Encoder().encode
