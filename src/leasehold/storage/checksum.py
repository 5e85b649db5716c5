"""CRC-32, as in zlib: every stored row ends with one.

`isal` computes it with the processor's own multiply, a fifth of zlib's time for a row and a tenth for a large payload. The sum is the
same, so a store may be read with either.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this platform
    from zlib import crc32

__all__ = ["crc32"]
