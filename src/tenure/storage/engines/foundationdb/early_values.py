"""Large values, written before their transaction in transactions of their own, so that each stays under a megabyte.

    upload   ("parts", space), key, 0xFFFE, nonce = value        ("unfinished"), version, nonce = the rows of the values
    commit   (space), key = reference to the nonce               the "unfinished" rows are read and cleared
    tend     values that stayed unfinished for ten minutes are removed: their transaction did not commit

No reader sees an early value before the row that refers to it is committed. If `tend` removed the early values of a
transaction, its commit conflicts on the "unfinished" rows, and it uploads them again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from tenure.storage.engine import Space
from tenure.storage.engines.foundationdb.binding import FdbTransaction
from tenure.storage.engines.foundationdb.layout import NONCE_BYTES, PART_BYTES, Layout
from tenure.storage.keyspace import JOBS, NOTES, PAYLOAD
from tenure.storage.transaction import Write

#: Spaces whose values may be uploaded early. All keys of such a space have one length, so a range delete is exact.
EARLY = frozenset({JOBS, PAYLOAD, NOTES})
#: A shorter value is not uploaded: a reference and another read cost more.
LEAST_BYTES = 1_000
#: Bytes of values in one upload transaction.
_UPLOAD_BYTES = 800_000
#: The prefix of a reference, before the nonce. A stored value begins with its version, which is never 0.
_REFERENCE = b"\x00early"
REFERENCE_BYTES = len(_REFERENCE) + NONCE_BYTES
_ROW = Struct(">BH")


class Early(NamedTuple):
    value: bytes
    nonce: bytes
    #: The key of the "unfinished" row that lists it until its transaction commits.
    unfinished: bytes


def reference(nonce: bytes) -> bytes:
    return _REFERENCE + nonce


def nonce_of(space: Space, raw: bytes) -> bytes | None:
    """The nonce in a reference to an early value; None: `raw` is an ordinary value."""
    if space in EARLY and len(raw) == REFERENCE_BYTES and raw.startswith(_REFERENCE):
        return raw[len(_REFERENCE) :]
    return None


def may_come_early(space: Space, value: bytes | None) -> bool:
    return value is not None and space in EARLY and LEAST_BYTES <= len(value) <= PART_BYTES


class EarlyValues:
    """The values that one transaction uploaded early, over all its tries."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._there: dict[tuple[Space, bytes], Early] = {}

    def of(self, space: Space, key: bytes, value: bytes) -> Early | None:
        """The early value of this row, if the same bytes were uploaded."""
        found = self._there.get((space, key))
        return found if found is not None and found.value == value else None

    def missing(self, writes: Sequence[Write]) -> list[tuple[Space, bytes, bytes]]:
        """The values of a transaction that may be uploaded early and are not uploaded yet."""
        last = {(space, key): value for space, key, value in writes}
        return [
            (space, key, value)
            for (space, key), value in last.items()
            if value is not None and may_come_early(space, value) and self.of(space, key, value) is None
        ]

    def uploads(self, values: Sequence[tuple[Space, bytes, bytes]]) -> Iterator[list[tuple[Space, bytes, bytes]]]:
        """Split the values into portions, one transaction each."""
        portion: list[tuple[Space, bytes, bytes]] = []
        size = 0
        for space, key, value in values:
            if portion and size + len(value) > _UPLOAD_BYTES:
                yield portion
                portion, size = [], 0
            portion.append((space, key, value))
            size += len(value)
        if portion:
            yield portion

    def upload(self, tr: FdbTransaction, portion: Sequence[tuple[Space, bytes, bytes]]) -> None:
        """Write a portion in `tr`, a transaction of its own, which may run again."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        unfinished = self._layout.unfinished_row(tr.get_read_version().wait(), nonce)
        for space, key, value in portion:
            tr.set(self._layout.early(space, key, nonce), value)
            self._there[space, key] = Early(value, nonce, unfinished)
        tr.set(unfinished, b"".join([_ROW.pack(space, len(key)) + key for space, key, _ in portion]))

    def finish(self, tr: FdbTransaction, used: Sequence[Early]) -> bool:
        """Clear the "unfinished" rows, in the transaction that refers to the values. False: `tend` removed some."""
        rows = sorted({early.unfinished for early in used})
        found = [tr.get(row) for row in rows]  # request all before waiting for the first
        if None in [future.value for future in found]:
            self._there.clear()
            return False
        for row in rows:
            tr.clear(row)
        return True


def remove_unfinished(tr: FdbTransaction, layout: Layout, before: int, limit: int) -> None:
    """Remove early values uploaded before a version whose transaction has not committed."""
    size = len(layout.unfinished) + 8
    for row in tr.get_range(layout.unfinished, layout.unfinished + before.to_bytes(8, "big"), limit=limit):
        nonce, at = row.key[size:], 0
        while at < len(row.value):
            space, length = _ROW.unpack_from(row.value, at)
            at += _ROW.size + length
            tr.clear(layout.early(space, row.value[at - length : at], nonce))
        tr.clear(row.key)
