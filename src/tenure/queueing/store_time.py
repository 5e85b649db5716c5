"""The store's time: moved by the steady clock, joined to the calendar when the store is opened.

The calendar may step; the store's time never does. Opened alone, a store takes the later of the calendar and what it
would have counted itself, but never less than the last time it stored. A process that joins others takes theirs.
"""

from __future__ import annotations

from tenure.clock import Clock
from tenure.errors import Corrupt
from tenure.storage import keyspace, records
from tenure.storage.engine import Engine, Transaction

CLOCK = b"clock"


class StoreTime:
    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._clock = clock
        self._steady = clock.steady_ms
        self._alone = engine.alone
        steady, wall, boot = clock.steady_ms(), clock.wall_ms(), clock.boot_id()
        self._offset = engine.transact(lambda tx: self._join(tx, steady, wall, boot))

    def now_ms(self) -> int:
        steady = self._steady
        return steady() + self._offset

    def from_calendar(self, wall_ms: int, now_ms: int) -> int:
        """A moment to come, of the calendar, in the store's time, by what the calendar shows now; not before `now_ms`."""
        return max(now_ms, self.of_calendar(wall_ms))

    def of_calendar(self, wall_ms: int) -> int:
        """Any moment of the calendar in the store's time."""
        return max(0, wall_ms - self.drift_ms())

    def drift_ms(self) -> int:
        """How far the calendar has moved away since the store was opened (a step, if it is sudden)."""
        return self._clock.wall_ms() - self.now_ms()

    def _join(self, tx: Transaction, steady: int, wall: int, boot: str) -> int:
        record = self._read(tx)
        counted = record.offset_ms if record is not None and boot and record.boot == boot else None
        if counted is not None and not self._alone:
            return counted
        # One past the last time stored: ids made in that millisecond by another process sort before ours.
        offset = max(wall, last_time(tx) + 1) - steady
        if counted is not None:
            offset = max(offset, counted)
        tx.put(keyspace.META, CLOCK, records.encode_struct(records.ClockRecord(boot, offset)))
        return offset

    @staticmethod
    def _read(tx: Transaction) -> records.ClockRecord | None:
        try:
            raw = tx.get(keyspace.META, CLOCK)
            return None if raw is None else records.decode_struct(records.ClockRecord, raw, "the store's clock")
        except Corrupt:
            return None  # made anew, from the calendar and the journal: nothing is lost with it

    def save(self, tx: Transaction) -> None:
        """Write the joint again, as this process knows it."""
        record = records.ClockRecord(self._clock.boot_id(), self._offset)
        tx.put(keyspace.META, CLOCK, records.encode_struct(record))


def last_time(tx: Transaction) -> int:
    rows = tx.scan(keyspace.JOURNAL, b"", keyspace.LAST, 1, reverse=True, snapshot=True)
    return records.decode_journal_header(rows[0][1]).time_ms if rows else 0
