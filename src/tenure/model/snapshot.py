"""Values that describe named snapshots and slices of the journal."""

from __future__ import annotations

import msgspec


class SnapshotInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a store, kept for `ttl_ms` after its last use."""

    id: str
    name: str
    #: The store's time of the snapshot, which decides whether a waiting job is scheduled or ready.
    taken_at_ms: int
    ttl_ms: int
    #: In calendar time of the store's host.
    expires_at_ms: int
    #: Its folder, for readers on the store's host; None if the store's own process holds it.
    where: str | None = None


class JournalSlice(msgspec.Struct, frozen=True):
    """Stored rows of the journal, from commit `begin`, and the oldest and newest commit when they were read."""

    begin: int
    rows: list[bytes]
    oldest: int
    newest: int
    #: The store's id, which its copies share; empty if it has none.
    store: str = ""
