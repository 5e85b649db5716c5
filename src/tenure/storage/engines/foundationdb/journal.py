"""The journal: many hosts append to it without conflict, and readers see it as dense, numbered rows.

    transaction ── row at its version stamp ──▶ inbox ── fold ──▶ journal rows 1, 2, 3, …
                                                  │                  ▲
                                                  └── number_rows ───┘   a function of the last dense row and the inbox

A row's number is not known before its transaction commits. So a transaction refers to its own rows by provisional
numbers, made of a random number, and `number_rows` replaces them. It is deterministic: readers call it in memory for
rows that are not folded yet, and `fold` stores the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tenure.storage import records
from tenure.storage.engine import Row
from tenure.storage.engines.foundationdb.layout import (
    INBOX_HEAD,
    MARK_BYTES,
    PROVISIONAL,
    Layout,
    number,
    of_transaction,
    pack_number,
)
from tenure.storage.keyspace import JOURNAL, commit, split_commit
from tenure.storage.records import REF_BITS, event_ref, split_ref

#: The row number of an inbox row without events, which only records its transaction's mark.
NO_ROW = 0xFFFF
#: The reference for an event that was trimmed: smaller than every stored one.
_TRIMMED = 1
_END = b"\xff" * 9


class Pending(NamedTuple):
    """A row of the inbox."""

    keys: list[bytes]
    transaction: int
    #: Nonce and try number, as in the mark's row.
    mark: bytes
    row: int
    value: bytes


class Numbered(NamedTuple):
    """A pending row with its number and its final bytes."""

    commit: int
    value: bytes
    pending: Pending


class End(NamedTuple):
    """The last dense row."""

    commit: int
    next_number: int
    time_ms: int


def read_inbox(reader: Any, layout: Layout, limit: int = 0) -> list[Pending]:
    """The rows that are not folded, in commit order. With a limit: the whole rows within that many pieces."""
    pieces = reader.get_range(layout.inbox, layout.inbox + b"\xff", limit=limit).to_list()
    found: list[Pending] = []
    last: tuple[bytes, int] | None = None
    for key, value in [(piece.key, piece.value) for piece in pieces]:
        stamp, row, piece = layout.split_inbox(key)
        if piece:
            assert last == (stamp, row), "the pieces of an inbox row stand together"
            found[-1] = found[-1]._replace(keys=[*found[-1].keys, key], value=found[-1].value + value)
        else:
            transaction, mark = INBOX_HEAD.unpack_from(value)
            found.append(Pending([key], transaction, mark, row, value[INBOX_HEAD.size :]))
        last = stamp, row
    if limit and len(pieces) == limit and len(found) > 1:
        found.pop()  # its last pieces may be beyond the limit
    return found


def number_rows(end: End, inbox: Sequence[Pending], resolve: Callable[[int], int]) -> list[Numbered]:
    """Number the rows of the inbox, starting after the last dense row.

    `resolve` returns the real reference for a provisional one whose transaction is not in this inbox.
    """
    firsts = first_commits(end.commit, inbox)
    made: list[Numbered] = []
    at, next_number, time_ms = end

    def previous(ref: int) -> int:
        provisional, index = split_ref(ref)
        if not provisional & PROVISIONAL:
            return ref
        transaction, row = of_transaction(provisional)
        first = firsts.get(transaction)
        return resolve(ref) if first is None else event_ref(first + row, index)

    for pending in inbox:
        if pending.row == NO_ROW:
            continue
        header = records.decode_journal_header(pending.value)
        at += 1
        time_ms = max(time_ms, header.time_ms)
        made.append(Numbered(at, records.rebase_journal(pending.value, next_number, time_ms, previous), pending))
        next_number += header.events
    return made


def first_commits(end: int, inbox: Sequence[Pending]) -> dict[int, int]:
    """By transaction: the number that its first row gets."""
    firsts: dict[int, int] = {}
    at = end
    for pending in inbox:
        if pending.row != NO_ROW:
            at += 1
            firsts.setdefault(pending.transaction, at - pending.row)
    return firsts


class JournalView:
    """The journal at one version: the dense rows, followed by the rows that are not folded."""

    def __init__(self, reader: Any, layout: Layout, dense: Callable[[bytes, bytes, int, bool], list[Row]]) -> None:
        """`reader`: the binding's transaction or its snapshot. `dense(begin, end, limit, reverse)` scans dense rows."""
        self._reader = reader
        self._layout = layout
        self.dense = dense
        self._pending: list[Numbered] | None = None
        self._firsts: dict[int, int] = {}

    def pending(self) -> list[Numbered]:
        """The rows that are not folded, with their numbers."""
        if self._pending is None:
            end = end_of(self.dense(b"", _END, 1, True))
            inbox = read_inbox(self._reader, self._layout)
            self._firsts = first_commits(end.commit, inbox)
            self._pending = number_rows(end, inbox, self.resolve)
        return self._pending

    def scan(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[Row]:
        if not reverse:
            rows = self.dense(begin, end, limit, False)
            return rows if len(rows) >= limit else rows + self._behind(begin, end)[: limit - len(rows)]
        rows = self._behind(begin, end)[::-1][:limit]
        return rows if len(rows) >= limit else rows + self.dense(begin, end, limit - len(rows), True)

    def _behind(self, begin: bytes, end: bytes) -> list[Row]:
        rows = [(commit(row.commit), row.value) for row in self.pending()]
        return [row for row in rows if begin <= row[0] < end]

    def get(self, key: bytes) -> bytes | None:
        found = self.scan(key, key + b"\0", 1, False)
        return found[0][1] if found else None

    def resolve(self, ref: int) -> int:
        """The real reference for a provisional one; `_TRIMMED` if its row was trimmed."""
        provisional, index = split_ref(ref)
        transaction, row = of_transaction(provisional)
        first = self._firsts.get(transaction)
        if first is None:
            mark = self._reader.get(self._layout.mark(transaction)).value
            if mark is not None and len(mark) > MARK_BYTES:
                first = number(mark, MARK_BYTES)
            elif mark is not None and self._pending is None:
                self.pending()  # committed and not folded: its number follows from the inbox
                return self.resolve(ref)
        return _TRIMMED if first is None else event_ref(first + row, index)

    def resolved_state(self, value: bytes) -> bytes:
        """A stored state with the real reference of its last event. A damaged state is returned unchanged."""
        ref = number(value, records.STATE_ALIKE) if len(value) == records.STATE_BYTES else 0
        if not ref >> REF_BITS & PROVISIONAL:
            return value
        return records.with_last_event(value, self.resolve(ref))


def end_of(rows: list[Row]) -> End:
    if not rows:
        return End(0, 1, 0)
    header = records.decode_journal_header(rows[0][1])
    return End(split_commit(rows[0][0]), header.first_number + header.events, header.time_ms)


#: Pieces of the inbox that one fold reads, and bytes that it writes (more if a single row has more).
FOLD = 256
_FOLD_BYTES = 500_000


def fold(transaction: Any, layout: Layout, put: Callable[[int, bytes, bytes], None], view: JournalView) -> bool:
    """Move the oldest rows of the inbox to dense rows, in this transaction. Returns whether there may be more.

    `put` writes a row. Two concurrent folds conflict on the end of the dense rows.
    """
    looked = read_inbox(transaction.snapshot, layout, FOLD)
    inbox = _beginning(looked)
    if not inbox:
        return False
    end = end_of(view.dense(b"", _END, 1, True))
    transaction.add_read_conflict_range(layout.spaces[JOURNAL] + commit(end.commit), layout.spaces[JOURNAL] + _END)
    version = transaction.get_read_version().wait()
    for at, value, pending in number_rows(end, inbox, view.resolve):
        put(JOURNAL, commit(at), pack_number(pending.transaction) + value)
        if not pending.row:
            transaction.set(layout.mark(pending.transaction), pending.mark + pack_number(at))
    for pending in inbox:
        if pending.row == NO_ROW:
            transaction.set(layout.stale_mark(version, pending.transaction), b"")
    keys = [key for pending in inbox for key in pending.keys]
    transaction.clear_range(keys[0], keys[-1] + b"\0")
    return len(inbox) < len(looked) or len(keys) >= FOLD // 2


def _beginning(inbox: list[Pending]) -> list[Pending]:
    """The first rows, up to the bytes that one fold may write."""
    size = 0
    for at, pending in enumerate(inbox):
        size += len(pending.value)
        if size > _FOLD_BYTES:
            return inbox[: max(1, at)]
    return inbox
