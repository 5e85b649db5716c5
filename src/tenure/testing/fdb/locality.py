"""Imitates `fdb.locality`: where the simulated cluster's shards begin."""

from __future__ import annotations

from collections.abc import Iterator

from tenure.testing.fdb.database import Database
from tenure.testing.fdb.transaction import Transaction

#: Rows of a shard (real shards are split by bytes).
SHARD_ROWS = 500


def get_boundary_keys(db_or_tr: Database | Transaction, begin: bytes, end: bytes) -> Iterator[bytes]:
    db = db_or_tr if isinstance(db_or_tr, Database) else db_or_tr.db
    return iter(db.cluster.boundaries(begin, end, SHARD_ROWS))
