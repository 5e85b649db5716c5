"""Reads rows through a transaction of the binding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from tenure.errors import Corrupt
from tenure.storage.engine import Row, Space
from tenure.storage.engines.foundationdb.binding import FdbTransaction
from tenure.storage.engines.foundationdb.early_values import EARLY, nonce_of
from tenure.storage.engines.foundationdb.journal import JournalView
from tenure.storage.engines.foundationdb.layout import PART_BYTES, PROVISIONAL, Layout
from tenure.storage.keyspace import COUNTERS, JOURNAL, READY, STATE, split_commit
from tenure.storage.records import encode_count

#: A dense journal row begins with the number of its transaction.
_JOURNAL_HEAD = 8


class Rows:
    """`storage.engine.Reader` of one transaction.

    `resolving`: replace the provisional reference of a state's last event, which takes another read. Transactions that
    write do not need it: references that they copy from a state into the journal are resolved when it is folded.
    """

    def __init__(self, transaction: FdbTransaction, layout: Layout, *, resolving: bool) -> None:
        self.transaction, self.layout = transaction, layout
        self._snapshot = transaction.snapshot
        self._resolving = resolving
        #: Requests for early values that have not been awaited, by key.
        self._early_reads: dict[bytes, Any] = {}
        #: Whether ready rows were read without conflict, to choose among them: this is a claim.
        self.chose = False
        #: The journal, read with and without read conflicts.
        self._journal = JournalView(transaction, layout, partial(self._dense, False))
        self.journal = JournalView(self._snapshot, layout, partial(self._dense, True))

    def get(self, space: Space, key: bytes) -> bytes | None:
        if space == JOURNAL:
            return None if split_commit(key) & PROVISIONAL else self._journal.get(key)
        raw = self.transaction.get(self.layout.spaces[space] + key).value
        return None if raw is None else self._value(space, key, raw)

    def get_many(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        if space == JOURNAL:
            return [self.get(space, key) for key in keys]
        prefix, get = self.layout.spaces[space], self.transaction.get
        futures = [get(prefix + key) for key in keys]  # request all before waiting for the first
        raws = [future.value for future in futures]
        self._fetch(space, zip(keys, raws, strict=True))
        return [None if raw is None else self._value(space, key, raw) for key, raw in zip(keys, raws, strict=True)]

    def scan(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[Row]:
        if space == JOURNAL:
            return (self.journal if snapshot else self._journal).scan(begin, end, limit, reverse)
        rows = self._range(space, begin, end, limit, reverse, snapshot)
        self._fetch(space, rows)
        return [(key, self._value(space, key, raw)) for key, raw in rows]

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        if space == JOURNAL:
            return [key for key, _ in self.scan(space, begin, end, limit, reverse=reverse, snapshot=snapshot)]
        self.chose |= snapshot and space == READY
        return [key for key, _ in self._range(space, begin, end, limit, reverse, snapshot)]

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _range(
        self, space: Space, begin: bytes, end: bytes, limit: int, reverse: bool, snapshot: bool
    ) -> list[tuple[bytes, bytes]]:
        if limit <= 0 or begin >= end:
            return []
        prefix = self.layout.spaces[space]
        reader = self._snapshot if snapshot else self.transaction
        rows = reader.get_range(prefix + begin, prefix + end, limit=limit, reverse=reverse).to_list()
        size = len(prefix)
        return [(row.key[size:], row.value) for row in rows]

    def _dense(self, snapshot: bool, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[Row]:
        rows = self._range(JOURNAL, begin, end, limit, reverse, snapshot)
        return [(key, self._whole(JOURNAL, key, raw)[_JOURNAL_HEAD:]) for key, raw in rows]

    def _value(self, space: Space, key: bytes, raw: bytes) -> bytes:
        if space == COUNTERS:
            return encode_count(int.from_bytes(raw, "little", signed=True))
        if space == STATE and self._resolving:
            return self.journal.resolved_state(raw)
        return self._whole(space, key, raw)

    def _fetch(self, space: Space, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Request the early values of all these rows before waiting for the first."""
        if space in EARLY:
            for key, raw in rows:
                nonce = None if raw is None else nonce_of(space, raw)
                if nonce is not None:
                    at = self.layout.early(space, key, nonce)
                    self._early_reads[at] = self._snapshot.get(at)

    def _early(self, space: Space, key: bytes, nonce: bytes) -> bytes:
        at = self.layout.early(space, key, nonce)
        found = (self._early_reads.pop(at, None) or self._snapshot.get(at)).value
        if found is None:
            raise Corrupt("a row refers to a value that is not there", key=key)
        value: bytes = found
        return value

    def _whole(self, space: Space, key: bytes, raw: bytes) -> bytes:
        """A value with its further parts. Only the first part of a split value is longer than `PART_BYTES`."""
        if len(raw) <= PART_BYTES:
            nonce = nonce_of(space, raw)
            return raw if nonce is None else self._early(space, key, nonce)
        count, size = int.from_bytes(raw[:2], "big"), int.from_bytes(raw[2:6], "big")
        futures = [self._snapshot.get(self.layout.part(space, key, part)) for part in range(1, count + 1)]
        whole = raw[6:] + b"".join([future.value or b"" for future in futures])
        if len(whole) != size:
            raise Corrupt(f"a row of {size} bytes has only {len(whole)} of them", key=key)
        return whole


def split_value(value: bytes) -> list[bytes]:
    """The parts of a value too large for one row; the first starts with the count of the others and the size."""
    rest = [value[at : at + PART_BYTES] for at in range(PART_BYTES, len(value), PART_BYTES)]
    return [len(rest).to_bytes(2, "big") + len(value).to_bytes(4, "big") + value[:PART_BYTES], *rest]
