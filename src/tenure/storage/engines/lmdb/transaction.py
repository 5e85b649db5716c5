"""A transaction: reads what is there, keeps what is written, and applies it once its function has returned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tenure.errors import Corrupt
from tenure.storage.engine import Row, Space
from tenure.storage.engines.lmdb.reader import Rows, seal, seal_all
from tenure.storage.keyspace import COUNTERS, NAMES, commit, split_commit
from tenure.storage.records import decode_count, encode_count

if TYPE_CHECKING:
    from tenure.storage.engines.lmdb.reader import Txn

_FEW = 4  # fewer puts than this are not worth a cursor


class Writes(Rows):
    def __init__(self, txn: Txn, dbs: Sequence[Any], last: dict[Space, int]) -> None:
        """`last` is the group's: the last number of each space that was appended to, once it is known."""
        super().__init__(txn, dbs)
        self._last = last
        self._tables: dict[Space, dict[bytes, bytes | None]] = {}
        self._ranges: list[tuple[Space, bytes, bytes]] = []
        self._adds: dict[bytes, int] = {}
        self._appended: dict[Space, list[bytes]] = {}

    def put(self, space: Space, key: bytes, value: bytes) -> None:
        self._tables.setdefault(space, {})[key] = value

    def put_many(self, space: Space, rows: Iterable[Row]) -> None:
        self._tables.setdefault(space, {}).update(rows)

    def delete(self, space: Space, key: bytes) -> None:
        self._tables.setdefault(space, {})[key] = None

    def delete_many(self, space: Space, keys: Iterable[bytes]) -> None:
        self._tables.setdefault(space, {}).update(dict.fromkeys(keys))

    def delete_range(self, space: Space, begin: bytes, end: bytes) -> None:
        # Ranges are applied first, so what was put into this one before is forgotten here.
        table = self._tables.get(space, {})
        for key in [key for key in table if begin <= key < end]:
            del table[key]
        self._ranges.append((space, begin, end))

    def add(self, key: bytes, delta: int) -> None:
        self._adds[key] = self._adds.get(key, 0) + delta

    def guard(self, space: Space, key: bytes) -> None:
        """Nothing to do: there is one writer."""

    def next_append(self, space: Space) -> int:
        if space not in self._last:
            key = self.last(space)
            self._last[space] = 0 if key is None else split_commit(key)
        return self._last[space] + len(self._appended.get(space, ())) + 1

    def append(self, space: Space, value: bytes) -> int:
        number = self.next_append(space)
        self._appended.setdefault(space, []).append(value)
        return number

    # ── once its function has returned ───────────────────────────────────────────────────────────────────────────────

    def apply(self) -> bool:
        """Write it all into the LMDB transaction; says whether there was anything. A failure leaves it half done."""
        if not (self._tables or self._ranges or self._adds or self._appended):
            return False
        for space, begin, end in self._ranges:
            self._apply_range(space, begin, end)
        for space, table in self._tables.items():
            self._apply_table(space, table)
        for key, delta in self._adds.items():
            count = decode_count(self.get(COUNTERS, key)) + delta
            self._txn.put(key, seal(COUNTERS, key, encode_count(count)), db=self._dbs[COUNTERS])
        for space, values in self._appended.items():
            self._apply_appended(space, values)
        return True

    def _apply_range(self, space: Space, begin: bytes, end: bytes) -> None:
        cursor = self._cursor(space)
        found = cursor.set_range(begin)
        while found and cursor.key() < end:
            cursor.delete()  # and it stands on the next row
            found = bool(cursor.key())

    def _apply_table(self, space: Space, table: dict[bytes, bytes | None]) -> None:
        db, txn = self._dbs[space], self._txn
        rows = seal_all(space, table.items())
        if len(rows) < _FEW:
            for key, stored in rows:
                txn.put(key, stored, db=db)
        else:
            rows.sort()  # neighbours share pages
            self._cursor(space).putmulti(rows)
        if len(rows) < len(table):
            for key in sorted(key for key, value in table.items() if value is None):
                txn.delete(key, b"", db)

    def _apply_appended(self, space: Space, values: list[bytes]) -> None:
        for value in values:
            number = self._last[space] + 1
            key = commit(number)
            # Told that it comes last, LMDB fills its pages instead of halving them.
            if not self._txn.put(key, seal(space, key, value), append=True, db=self._dbs[space]):
                raise Corrupt(f"{NAMES[space]} has a row after its last number, {number - 1}")
            self._last[space] = number
