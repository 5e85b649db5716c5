"""Decompress request bodies, limiting their size: a few kilobytes can contain gigabytes."""

from __future__ import annotations

import zlib

from tenure.errors import InvalidArgument, TooLarge

#: zlib's window sizes: +16 expects gzip's frame.
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def inflated(body: bytes, encoding: str | None, limit: int) -> bytes:
    """Return the body without its `Content-Encoding`. Raises InvalidArgument, TooLarge.

    The decoder stops one byte after the limit, so larger output is never allocated.
    """
    name = (encoding or "identity").strip().lower()
    if name == "identity":
        return body
    window = _WINDOWS.get(name)
    if window is None:
        raise InvalidArgument(f"Content-Encoding {name[:40]!r}: this server reads gzip and deflate, once")
    opener = zlib.decompressobj(window)
    try:
        plain = opener.decompress(body, limit + 1)
    except zlib.error as exc:
        raise InvalidArgument(f"the request's body is not {name}: {exc}") from None
    if len(plain) > limit:
        raise TooLarge("the request, inflated,", len(plain), limit)
    if not opener.eof or opener.unused_data:
        raise InvalidArgument(f"the request's body is not one whole {name} stream")
    return plain
