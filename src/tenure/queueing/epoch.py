"""The store's epoch: how often it has been opened by a process that owned it. It is a part of every token (`model.tokens`)."""

from __future__ import annotations

from tenure.storage import keyspace, records
from tenure.storage.engine import Engine, Transaction

_EPOCH = b"epoch"


def begin_epoch(engine: Engine) -> int:
    """Raise the epoch, and see it on disk. 0, without a write, where several processes write or nothing outlives this one.

    A store that was never written to begins with 0. Raises Corrupt if the stored epoch is damaged: a guess might give
    a token twice.
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
        epoch = int(tx.next_commit > 1)  # with a journal, it was written to by a release that had no epochs
    tx.put(keyspace.META, _EPOCH, records.encode_struct(records.NumberRecord(epoch)))
    return epoch
