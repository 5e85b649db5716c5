"""A transaction: reads what is there, keeps what is written, and applies it once its function has returned."""

from __future__ import annotations

from tenure.errors import Corrupt
from tenure.storage.engine import Space, Transaction
from tenure.storage.engines.lmdb.reader import Rows, seal, seal_all
from tenure.storage.keyspace import COUNTERS, JOURNAL, NAMES, commit, split_commit
from tenure.storage.records import decode_count, encode_count

_FEW = 4  # fewer puts than this are not worth a cursor


class LmdbTransaction(Transaction):
    """A transaction of one caller inside the LMDB transaction of a group."""

    def __init__(self, rows: Rows, last: dict[Space, int]) -> None:
        """`last` is the group's: the journal's last number, once it is known."""
        if JOURNAL not in last:
            key = rows.last(JOURNAL)
            last[JOURNAL] = 0 if key is None else split_commit(key)
        super().__init__(rows, last[JOURNAL] + 1)
        self._rows, self._last = rows, last
        self._txn, self._dbs = rows.txn, rows.dbs

    @property
    def broken(self) -> BaseException | None:
        return self._rows.broken

    # ── once its function has returned ───────────────────────────────────────────────────────────────────────────────

    def apply(self) -> bool:
        """Write it all into the LMDB transaction; says whether there was anything. A failure leaves it half done."""
        if not self:
            return False
        for space, begin, end in self.ranges:
            self._apply_range(space, begin, end)
        tables: dict[Space, dict[bytes, bytes | None]] = {}
        for space, key, value in self.writes:
            tables.setdefault(space, {})[key] = value
        for space, table in tables.items():
            self._apply_table(space, table)
        for key, delta in self.adds.items():
            count = decode_count(self.get(COUNTERS, key)) + delta
            self._txn.put(key, seal(COUNTERS, key, encode_count(count)), db=self._dbs[COUNTERS])
        self._apply_appended(JOURNAL, self.journal)
        return True

    def _apply_range(self, space: Space, begin: bytes, end: bytes) -> None:
        cursor = self._rows.cursor(space)
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
            self._rows.cursor(space).putmulti(rows)
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
