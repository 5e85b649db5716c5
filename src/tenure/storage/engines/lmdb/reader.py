"""Reads rows with a checksum for each, and translates the driver's errors.

A stored row is its value and four bytes: the CRC-32 (little-endian) of space, key length, key and value. The CRC of
data followed by its own CRC is a constant, so one comparison checks a row without splitting it.

A missing row needs a check too: a flipped bit in a key, in a leaf or in a branch page, leads the search to a wrong
position. There, either a neighbour's CRC is wrong, or the neighbours do not enclose the key. Both are checked.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import lmdb

from tenure.errors import Corrupt, InvalidArgument, StoreClosed, TenureError, Unavailable
from tenure.storage.checksum import crc32
from tenure.storage.engine import Row, Space
from tenure.storage.keyspace import DEAD, DONE, JOBS, NAMES, NOTES, PAYLOAD, READY, READY_JOB, STATE

if TYPE_CHECKING:
    Txn = lmdb.Transaction[bytes]
    Cursor = lmdb.Cursor[bytes]

KEY_BYTES = 511
CRC_BYTES = 4
GOOD = 0x2144DF1C  # the CRC-32 of anything followed by its CRC-32
SALTS = tuple((space + 1) << 16 for space in range(len(NAMES)))

#: By space: the position of the job's id in a key.
_JOB = {JOBS: slice(4, 20), STATE: slice(4, 20), NOTES: slice(4, 20), PAYLOAD: slice(4, 20)} | {
    READY: READY_JOB,
    DONE: slice(12, 28),
    DEAD: slice(12, 28),
}


def seal(space: Space, key: bytes, value: bytes) -> bytes:
    return value + crc32(value, crc32(key, SALTS[space] + len(key))).to_bytes(4, "little")


def seal_all(space: Space, rows: Iterable[tuple[bytes, bytes | None]]) -> list[Row]:
    """The rows that have a value, each with its CRC."""
    salt = SALTS[space]
    return [
        (key, value + crc32(value, crc32(key, salt + len(key))).to_bytes(4, "little"))
        for key, value in rows
        if value is not None
    ]


def check(space: Space, key: bytes, stored: bytes) -> None:
    if crc32(stored, crc32(key, SALTS[space] + len(key))) != GOOD:
        raise damaged(space, key, "a row's checksum does not fit")


def damaged(space: Space, key: bytes, what: str) -> Corrupt:
    job = key[_JOB[space]].hex() if space in _JOB else ""
    return Corrupt(f"{what}: {NAMES[space]}, key {key.hex()}", job or None, key)


_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.NotFoundError,
    lmdb.IncompatibleError,
    lmdb.PageFullError,
    lmdb.CursorFullError,
    lmdb.KeyExistsError,
)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # LMDB calls a write cut short an I/O error


def translated(exc: lmdb.Error) -> TenureError:
    code = getattr(exc, "code", 0)
    if isinstance(exc, _DAMAGE):
        return Corrupt(f"LMDB finds its file damaged: {exc}")
    if isinstance(exc, lmdb.BadTxnError):
        # The first error occurred during an iteration, where the driver reports none: only damage causes that.
        return Corrupt(f"LMDB gave a transaction up, since it finds its file damaged: {exc}")
    if isinstance(exc, lmdb.BadValsizeError):
        return InvalidArgument(f"a key must have 1 to {KEY_BYTES} bytes")
    if code in _FULL:
        return Unavailable(f"the disk is full, or fails; nothing was written ({exc}): make room, and try again")
    if isinstance(exc, lmdb.ReadersFullError):
        return Unavailable("all reader slots of the store are taken: close snapshots that are no longer needed")
    if isinstance(exc, lmdb.PanicError):
        return Unavailable(f"LMDB could not write its meta page, and must be opened again: {exc}")
    if "closed/deleted" in str(exc):
        return StoreClosed("this store, snapshot or transaction was closed")
    return Unavailable(f"LMDB: {exc}")


class Rows:
    """A reader of one LMDB transaction."""

    def __init__(self, txn: Txn, dbs: Sequence[Any]) -> None:
        self.txn = txn
        self.dbs = dbs
        #: Set once LMDB has reported an error: it may have aborted the whole transaction.
        self.broken: TenureError | None = None

    def get(self, space: Space, key: bytes) -> bytes | None:
        try:
            stored = self.txn.get(key, None, self.dbs[space])
            if stored is None:
                self._absent(space, key)
                return None
        except lmdb.Error as exc:
            raise self._failed(exc) from exc
        if crc32(stored, crc32(key, SALTS[space] + len(key))) != GOOD:
            raise damaged(space, key, "a row's checksum does not fit")
        return stored[:-CRC_BYTES]

    def get_many(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(space, key) for key in keys]

    def scan(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[Row]:
        return [(key, stored[:-CRC_BYTES]) for key, stored in self._walk(space, begin, end, limit, reverse)]

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        return [key for key, _ in self._walk(space, begin, end, limit, reverse)]

    def salvage(self, space: Space, begin: bytes, limit: int) -> tuple[list[Row], list[Corrupt]]:
        """The next rows, each checked on its own: undamaged rows, and an error for each damaged one."""
        rows: list[Row] = []
        damage: list[Corrupt] = []
        try:
            cursor = self.cursor(space)
            if not cursor.set_range(begin):
                if not begin:
                    self._empty(space)
                return rows, damage
            last = begin
            for key, stored in islice(cursor, limit):
                if crc32(stored, crc32(key, SALTS[space] + len(key))) != GOOD:
                    damage.append(damaged(space, key, "a row's checksum does not fit"))
                elif key < last:
                    damage.append(damaged(space, key, "a row is out of order"))
                else:
                    rows.append((key, stored[:-CRC_BYTES]))
                last = max(last, key)
        except lmdb.Error as exc:
            raise self._failed(exc) from exc
        return rows, damage

    def last(self, space: Space) -> bytes | None:
        """The last key of a space."""
        try:
            cursor = self.cursor(space)
            if cursor.last():
                key, stored = cursor.item()
                check(space, key, stored)
                return key
            self._empty(space)
        except lmdb.Error as exc:
            raise self._failed(exc) from exc
        return None

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _walk(self, space: Space, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[Row]:
        """Rows as they are stored, checked."""
        if limit <= 0 or begin >= end:
            return []
        try:
            return (self._backward if reverse else self._forward)(space, begin, end, limit)
        except lmdb.Error as exc:
            raise self._failed(exc) from exc

    def _forward(self, space: Space, begin: bytes, end: bytes, limit: int) -> list[Row]:
        cursor = self.cursor(space)
        found = cursor.set_range(begin)
        if self._before(cursor, space, begin, found):
            cursor.next()
        if not found:
            return []
        salt, rows, last = SALTS[space], [], begin
        for row in islice(cursor, limit):  # from its position; a cursor without one starts at the first row
            key, stored = row
            if crc32(stored, crc32(key, salt + len(key))) != GOOD:
                raise damaged(space, key, "a row's checksum does not fit")
            if key < last:
                raise damaged(space, key, "a row is out of order")
            if key >= end:
                break
            last = key
            rows.append(row)
        return rows

    def _backward(self, space: Space, begin: bytes, end: bytes, limit: int) -> list[Row]:
        cursor = self.cursor(space)
        found = cursor.set_range(end)
        if found:
            self._after(cursor, space, end)
        if not self._before(cursor, space, end, found):
            return []
        salt, rows, last = SALTS[space], [], end
        for row in islice(cursor.iterprev(), limit):
            key, stored = row
            if crc32(stored, crc32(key, salt + len(key))) != GOOD:
                raise damaged(space, key, "a row's checksum does not fit")
            if key > last:
                raise damaged(space, key, "a row is out of order")
            if key < begin:
                break
            last = key
            rows.append(row)
        return rows

    def _absent(self, space: Space, key: bytes) -> None:
        cursor = self.cursor(space)
        found = cursor.set_range(key)
        if found:
            self._after(cursor, space, key)
            if cursor.key() == key:  # a branch page is damaged: the search by key missed the row
                raise damaged(space, key, "a row is out of order")
        self._before(cursor, space, key, found)

    def _after(self, cursor: Cursor, space: Space, key: bytes) -> None:
        here, stored = cursor.item()
        check(space, here, stored)
        if here < key:
            raise damaged(space, here, "a row is out of order")

    def _before(self, cursor: Cursor, space: Space, key: bytes, found: bool) -> bool:
        """Step back to the row before `key` and check it; False: there is none. `found`: the cursor is on a row."""
        if cursor.prev():
            here, stored = cursor.item()
            check(space, here, stored)
            if here >= key:
                raise damaged(space, here, "a row is out of order")
            return True
        if not found:
            self._empty(space)
        return False

    def _empty(self, space: Space) -> None:
        rows = self.txn.stat(self.dbs[space])["entries"]
        if rows:
            raise Corrupt(f"{NAMES[space]} has lost its {rows} rows: nothing is where they should begin")

    def cursor(self, space: Space) -> Cursor:
        return self.txn.cursor(self.dbs[space])

    def _failed(self, exc: lmdb.Error) -> TenureError:
        # Later errors of a transaction only say that there was an earlier one.
        if self.broken is None:
            self.broken = translated(exc)
        return self.broken
