"""The store's epoch: how often it has been opened by an owning process. It is part of every token (`model.tokens`)."""

from __future__ import annotations

from tenure.storage import keyspace, records
from tenure.storage.engine import Engine, Transaction

_EPOCH = b"epoch"


def begin_epoch(engine: Engine) -> int:
    """Raise the epoch, sync it, and return it. Returns 0 without a write if several processes write, or in memory.

    A new store begins with 0. Raises Corrupt if the stored epoch is damaged: with a guess, tokens might repeat.
    """
    if engine.traits.scope != "process" or engine.traits.durability == "memory":
        return 0
    epoch = engine.transact(_raise)
    if engine.group_commit is not None:
        engine.group_commit.sync_now()
    return epoch


def _raise(tx: Transaction) -> int:
    raw = tx.get(keyspace.META, _EPOCH)
    if raw is not None:
        epoch = records.decode_struct(records.NumberRecord, raw, "the store's epoch").value + 1
    else:
        epoch = int(tx.next_commit > 1)  # a store with a journal and no epoch was written by a release without epochs
    tx.put(keyspace.META, _EPOCH, records.encode_struct(records.NumberRecord(epoch)))
    return epoch
