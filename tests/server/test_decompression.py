"""Compressed bodies, honest and hostile."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest

from tenure import InvalidArgument, TooLarge
from tenure.server.decompression import inflated

LIMIT = 100_000


@pytest.mark.parametrize("size", [0, 1, 1000, LIMIT])
def test_what_was_sent(size: int):
    plain = bytes(size)
    assert inflated(gzip.compress(plain), "gzip", LIMIT) == plain
    assert inflated(gzip.compress(plain), " GZIP ", LIMIT) == plain
    assert inflated(zlib.compress(plain), "deflate", LIMIT) == plain
    assert inflated(plain, None, LIMIT) == inflated(plain, "identity", LIMIT) == plain


def test_a_bomb_is_never_made():
    bomb = gzip.compress(bytes(64 * 1024**2))
    assert len(bomb) < LIMIT
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            inflated(bomb, "gzip", LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 5 * LIMIT
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (b"not compressed", "gzip"),
        (gzip.compress(b"x" * 1000)[:-9], "gzip"),
        (gzip.compress(b"x") + b"more", "gzip"),
        (gzip.compress(b"x") + gzip.compress(b"y"), "gzip"),
        (zlib.compress(b"x"), "gzip"),
        (b"", "gzip"),
        (gzip.compress(gzip.compress(b"x")), "gzip, gzip"),
        (b"x", "br"),
        (b"x", "x" * 10_000),
    ],
    ids=["plain", "cut", "more", "two", "zlib", "empty", "twice", "other", "long"],  # gzip's bytes hold the time
)
def test_what_is_refused(body: bytes, encoding: str):
    with pytest.raises(InvalidArgument):
        inflated(body, encoding, LIMIT)
