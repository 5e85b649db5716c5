"""LMDB: several processes of one host share one store, each with a map of the same file.

    engine.py          LmdbEngine: transactions, growth of the map, copies
    opening.py         which process creates the store, which has it alone, whether all of its files are there
    reader.py          reading with a checksum for every row; translation of the driver's errors
    transaction.py     a transaction: a caller's writes, collected and then applied
    flat_combining.py  transactions of concurrent callers, run one after another in one LMDB transaction
    map_gate.py        keeps transactions out while the map moves
    copy.py            a copy of a store, opened for reading

How this engine uses LMDB:
- LMDB has one writer at a time on the whole host, and two syncs for each commit. So the transactions of concurrent
  callers are combined into one commit. Never `writemap` (SIGBUS on a full disk), never without sync.
- LMDB has no checksums. Every row ends with a CRC-32 over its space, key and value, checked on every read. A key counts
  as missing only if the rows before and after its position are undamaged and in order.
- A flipped bit in the newest meta page silently undoes the last commit: `DurableWatermark` detects it on opening.
- The map moves when it grows. No transaction of the process may be open then (`map_gate`).
- A forked child that ends a read transaction ends its parent's: a child touches nothing.
"""

from tenure.storage.engines.lmdb.engine import LmdbEngine

__all__ = ["LmdbEngine"]
