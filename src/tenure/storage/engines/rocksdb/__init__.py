"""RocksDB in this process, through rocksdict: the default engine.

One process owns the folder (`folder.Folder`), one lock orders the writers, one `WriteBatch` is a commit. A commit is
applied under the lock, to the log and the memtable, and made durable outside it, together with all that came
meanwhile (`group_commit.GroupCommit`); the log's order makes a lost tail a consistent prefix.

What the driver would get wrong is kept here:
- raw mode always (its default unpickles what it reads);
- scans by the raw iterator, whose `status` is looked at (the convenient ones end early on damage, silently);
- no `Snapshot` scans (they show later writes): a snapshot is an iterator a space, opened under the lock;
- a damaged log tail is dropped on opening: `DurableWatermark` tells, and the store refuses to serve;
- rows that are read again soon after they were written are kept in memory for that (`memory.Memory`);
- scans of a front start where it was last seen to begin (`ScanHeads`), not at a million tombstones;
- after a failed sync every write fails: the engine stops, and says so.
"""

from __future__ import annotations

from tenure.storage.engines.rocksdb.engine import RocksEngine

__all__ = ["RocksEngine"]
