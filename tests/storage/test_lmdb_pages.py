"""Damage in LMDB's own pages, under rows whose checksums fit: it is an error of every kind of read."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import Corrupt
from tenure.storage.engines.lmdb import LmdbEngine
from tenure.storage.keyspace import JOBS, LAST, NAMES

BOOT = "this boot"
PAGE, HEAD, LEAF = 4096, 16, 0x02
KEYS = [b"row %d" % number for number in range(5)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed store with five rows."""
    place = tmp_path / "store"
    engine = LmdbEngine(str(place), boot_id=BOOT)
    engine.transact(lambda tx: tx.put_many(JOBS, [(key, b"value of " + key) for key in KEYS]))
    engine.close()
    return place


def nodes(page: bytes) -> dict[bytes, tuple[int, int]]:
    """A leaf page's keys: which pointer leads to each, and where its data is."""
    flags, lower = struct.unpack_from("<H", page, 10)[0], struct.unpack_from("<H", page, 12)[0]
    found = {}
    if flags == LEAF:
        for at in range(HEAD, lower, 2):
            node = struct.unpack_from("<H", page, at)[0]
            size = struct.unpack_from("<H", page, node + 6)[0]
            found[page[node + 8 : node + 8 + size]] = (at, node + 8 + size)
    return found


def change_pages(
    path: Path, with_key: bytes, change: Callable[[bytearray, dict[bytes, tuple[int, int]]], None]
) -> None:
    """Change every leaf page that has this key: the newest, and older versions of it."""
    (file,) = path.rglob("data.mdb")
    data = bytearray(file.read_bytes())
    changed = 0
    for at in range(2 * PAGE, len(data), PAGE):  # behind the two meta pages
        page = data[at : at + PAGE]
        found = nodes(bytes(page))
        if with_key in found:
            change(page, found)
            data[at : at + PAGE] = page
            changed += 1
    assert changed
    file.write_bytes(data)


def swap_rows(page: bytearray, found: dict[bytes, tuple[int, int]]) -> None:
    """Exchange the pointers to the third and the fourth row: each is whole, and in the other's place."""
    one, other = found[KEYS[2]][0], found[KEYS[3]][0]
    page[one : one + 2], page[other : other + 2] = page[other : other + 2], page[one : one + 2]


def lose_root(page: bytearray, found: dict[bytes, tuple[int, int]]) -> None:
    """Forget where a space's rows begin, not how many it has."""
    data = found[NAMES[JOBS].encode()][1]
    page[data + 40 : data + 48] = b"\xff" * 8


READS: dict[str, Callable[[Any], object]] = {
    "a scan": lambda reader: reader.scan(JOBS, b"", LAST, 10),
    "a scan backwards": lambda reader: reader.scan(JOBS, b"", LAST, 10, reverse=True),
    "keys": lambda reader: reader.keys(JOBS, b"", LAST, 10),
}


@pytest.mark.parametrize("read", READS)
def test_rows_out_of_order_are_an_error(path: Path, read: str) -> None:
    change_pages(path, KEYS[2], swap_rows)
    engine = LmdbEngine(str(path), boot_id=BOOT)
    try:
        with pytest.raises(Corrupt, match="out of order"):
            engine.read(READS[read])
    finally:
        engine.close()


def test_of_rows_out_of_order_the_others_are_saved(path: Path) -> None:
    change_pages(path, KEYS[2], swap_rows)
    engine = LmdbEngine(str(path), boot_id=BOOT)
    try:
        with engine.snapshot((JOBS,)) as moment:
            rows, damage = moment.salvage(JOBS, b"", 10)
    finally:
        engine.close()
    assert [key for key, _ in rows] == [KEYS[0], KEYS[1], KEYS[3], KEYS[4]]
    assert ["out of order" in str(each) for each in damage] == [True]


@pytest.mark.parametrize("read", [*READS, "one row", "rows to save"])
def test_a_space_that_lost_its_root_is_not_empty(path: Path, read: str) -> None:
    change_pages(path, NAMES[JOBS].encode(), lose_root)
    reads = READS | {
        "one row": lambda reader: reader.get(JOBS, KEYS[1]),
        "rows to save": lambda reader: reader.salvage(JOBS, b"", 10),
    }
    engine = LmdbEngine(str(path), boot_id=BOOT)
    try:
        with engine.snapshot((JOBS,)) as moment, pytest.raises(Corrupt, match="has lost its 5 rows"):
            reads[read](moment)
    finally:
        engine.close()
