"""A named snapshot, as its holder knows it."""

from __future__ import annotations

import msgspec


class SnapshotInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of a store that is kept for a while: `ttl_ms` after it was last used."""

    id: str
    name: str
    #: The store's time at that moment: by it, waiting jobs are scheduled or ready.
    taken_at_ms: int
    ttl_ms: int
    #: By the calendar of the store's host.
    expires_at_ms: int
    #: The folder it is in, for readers on the store's host; None if it is kept in the store's own process.
    where: str | None = None


class JournalSlice(msgspec.Struct, frozen=True):
    """Some rows of the journal as they are stored, the first of them `begin`; what is kept when they were read."""

    begin: int
    rows: list[bytes]
    oldest: int
    newest: int
    #: The id of the store, which its copies share; empty if it has none.
    store: str = ""
