"""CRC-32, as in zlib: every stored row ends with one.

`isal` computes it with the processor's own multiply, a fifth of zlib's time for a row and a tenth for a large payload.
The sum is the same, so a store may be read with either.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this platform
    from zlib import crc32

#: Of more than this, the library lets other threads run meanwhile.
LONG = 5 * 1024


def crc32_held(data: bytes | memoryview, value: int = 0) -> int:
    """The same, of whatever length, without giving up the interpreter.

    A thread that does so while it holds the writer's lock yields to a thread that waits for that lock; both then wait
    for each other to wake up: 200 µs and more, for a sum that takes one.
    """
    if len(data) <= LONG:
        return crc32(data, value)
    view = memoryview(data)
    for at in range(0, len(view), LONG):
        value = crc32(view[at : at + LONG], value)
    return value


__all__ = ["LONG", "crc32", "crc32_held"]
