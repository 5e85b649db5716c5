"""LMDB: several processes of one host on one store, each with the same map of one file.

    engine.py      LmdbEngine: transactions, growth of the map, copies
    opening.py     who is first, who makes the store, whether it is all there
    rows.py        reading, every row checked; the driver's errors become ours
    writes.py      a transaction: what a caller wrote, kept until its turn, then applied
    combining.py   commits of concurrent callers, run one after another in one LMDB transaction
    gate.py        nobody is inside while the map moves

What is special about LMDB, and what is made of it here:
- One writer at a time on the whole host, and two syncs a commit: so the callers' transactions are combined, and a
  group of them is one commit. Never `writemap` (a full disk would be SIGBUS), never without sync.
- No checksums: every row ends with a CRC-32 over its space, key and value, checked whenever it is read; and a key
  that is not found is believed only if the rows on either side of its place are sound and in order.
- A flipped bit in the newest meta page takes back the last commit, silently: `DurableWatermark` tells when opening.
- The map has a size, and moves when it grows: no transaction of the process may be open (`gate`).
- A forked child that ends a read transaction ends its parent's: a child touches nothing.
"""

from tenure.storage.engines.lmdb.engine import LmdbEngine

__all__ = ["LmdbEngine"]
