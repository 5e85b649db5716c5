"""A transaction on FoundationDB: collects a verb's writes, and writes them through the binding."""

from __future__ import annotations

from collections.abc import Callable

from tenure.storage.engine import Space, Transaction
from tenure.storage.engines.foundationdb.binding import TRANSACTION_BYTES
from tenure.storage.engines.foundationdb.early_values import (
    REFERENCE_BYTES,
    Early,
    EarlyValues,
    may_come_early,
    reference,
)
from tenure.storage.engines.foundationdb.journal import NO_ROW
from tenure.storage.engines.foundationdb.layout import INBOX_HEAD, PART_BYTES, PROVISIONAL, ROWS, number, pack_number
from tenure.storage.engines.foundationdb.rows import Rows, split_value
from tenure.storage.keyspace import COUNTERS, JOBS, JOURNAL, LEASE_JOBS, LEASES, META, NOTES, PAYLOAD
from tenure.storage.records import decode_count

#: Spaces whose values may be stored in parts.
_IN_PARTS = frozenset({META, JOBS, NOTES, LEASE_JOBS, PAYLOAD})
#: An upper bound for a row's size beside its key and value, with its conflict range: our limit must be met first.
_ROW_BYTES = 64
#: The largest transaction. Indivisible ones may need it, such as an ack that unblocks thousands of jobs.
LIMIT = TRANSACTION_BYTES - 200_000
#: The target size. Beyond it large values are uploaded first, and a divisible transaction handles fewer jobs.
WANTED_BYTES = 900_000
_INBOX_PIECE = 90_000


class FoundationTransaction(Transaction):
    holds_leases = True

    #: Whether its function called `at_most`, and can handle fewer jobs.
    divisible = False

    def __init__(self, rows: Rows, transaction: int, spread: int, versions_per_ms: int) -> None:
        """`transaction`: its number, whose low bits are free for the rows that it appends."""
        super().__init__(rows, PROVISIONAL | transaction)
        self.rows = rows
        self.spread = spread
        self._versions_per_ms = versions_per_ms
        self._held: dict[bytes, int] = {}
        #: The fraction of its jobs that its function may handle: below 1 once a try was too large.
        self.share = 1.0

    def at_most(self, count: int) -> int:
        some = max(1, int(count * self.share))
        self.divisible = self.divisible or some > 1
        return some

    def guard(self, space: Space, key: bytes) -> None:
        self.rows.transaction.add_read_conflict_key(self.rows.layout.spaces[space] + key)

    # ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def hold(self, lease: bytes, remaining_ms: int) -> None:
        version = self.rows.transaction.get_read_version().wait()
        self._held[lease] = version + max(0, remaining_ms) * self._versions_per_ms

    def may_take_over(self, lease: bytes) -> bool:
        raw = self.rows.transaction.snapshot.get(self.rows.layout.held(lease)).value
        return raw is None or self.rows.transaction.get_read_version().wait() >= number(raw)

    # ── after its function has returned ──────────────────────────────────────────────────────────────────────────────

    def size(self, *, early: bool) -> int:
        """An estimate of its bytes; with `early`, without the values that may be uploaded first."""
        size = sum(map(len, self.journal))
        for space, key, value in self.writes:
            size += _ROW_BYTES + 2 * len(key)
            if value is not None:
                size += REFERENCE_BYTES if early and may_come_early(space, value) else len(value)
        return size

    def apply(self, mark: bytes, early: EarlyValues) -> bool:
        """Write everything through the binding. `mark`: nonce and try. `early`: the values that were uploaded.

        False: uploaded values were removed, and the transaction has to run again.
        """
        transaction, layout = self.rows.transaction, self.rows.layout
        own = self.next_commit & ~PROVISIONAL
        for space, begin, end in self.ranges:
            self._clear_range(space, begin, end)
        used = self._apply_writes(early)
        if used and not early.finish(transaction, used):
            return False
        for key, delta in self.adds.items():
            if delta:
                transaction.add(layout.spaces[COUNTERS] + key, delta.to_bytes(8, "little", signed=True))
        for lease, version in self._held.items():
            transaction.set(layout.held(lease), pack_number(version))
        transaction.set(layout.mark(own), mark)
        transaction.add(layout.pulse, (1).to_bytes(8, "little"))
        head = INBOX_HEAD.pack(own, mark)
        assert len(self.journal) <= ROWS, "a transaction has more journal rows than numbers"
        for row, value in enumerate(self.journal):
            whole = head + value
            for piece, at in enumerate(range(0, len(whole), _INBOX_PIECE)):
                key = layout.stamped_inbox(row, piece)
                transaction.set_versionstamped_key(key, whole[at : at + _INBOX_PIECE])
        if not self.journal:
            transaction.set_versionstamped_key(layout.stamped_inbox(NO_ROW, 0), head)
        return True

    def _apply_writes(self, early: EarlyValues) -> list[Early]:
        """Write the rows, and return the early values that they refer to."""
        transaction, put = self.rows.transaction, writer(self.rows)
        counters = self.rows.layout.spaces[COUNTERS]
        used: list[Early] = []
        for space, key, value in self.writes:
            if value is None:
                self._clear(space, key)
            elif space == COUNTERS:
                transaction.set(counters + key, decode_count(value).to_bytes(8, "little", signed=True))
            elif may_come_early(space, value) and (there := early.of(space, key, value)) is not None:
                used.append(there)
                put(space, key, reference(there.nonce))
            else:
                put(space, key, value)
        return used

    def _clear(self, space: Space, key: bytes) -> None:
        transaction, layout = self.rows.transaction, self.rows.layout
        transaction.clear(layout.spaces[space] + key)
        if space == LEASES:
            transaction.clear(layout.held(key))
        elif space in _IN_PARTS:
            transaction.clear_range(layout.part(space, key, 0), layout.part(space, key, 0xFFFF))

    def _clear_range(self, space: Space, begin: bytes, end: bytes) -> None:
        transaction, layout = self.rows.transaction, self.rows.layout
        prefix = layout.spaces[space]
        if space == JOURNAL:
            # The marks of the rows' transactions are removed with them.
            for row in transaction.snapshot.get_range(prefix + begin, prefix + end):
                at = 6 if len(row.value) > PART_BYTES else 0
                transaction.clear(layout.mark(number(row.value, at)))
        transaction.clear_range(prefix + begin, prefix + end)
        if space in _IN_PARTS or space == JOURNAL:
            transaction.clear_range(*layout.parts(space, begin, end))


def writer(rows: Rows) -> Callable[[Space, bytes, bytes], None]:
    """A function that writes a row through the binding, in parts if it is large."""
    transaction, layout = rows.transaction, rows.layout

    def put(space: Space, key: bytes, value: bytes) -> None:
        at = layout.spaces[space] + key
        if len(value) <= PART_BYTES:
            transaction.set(at, value)
            return
        first, *rest = split_value(value)
        transaction.set(at, first)
        for part, data in enumerate(rest, 1):
            transaction.set(layout.part(space, key, part), data)

    return put
