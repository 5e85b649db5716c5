"""RocksDB in this process, through rocksdict: the default engine.

One process owns the folder (`folder.Folder`), one lock orders the writers, one `WriteBatch` is a commit. A commit is
written to the log and the memtable under the lock, and made durable outside it, in a sync shared with other commits
(`group_commit.GroupCommit`). The log is ordered, so a store that lost its end still holds a consistent prefix.

Problems of the driver, and how this package avoids them:
- its default mode unpickles values: raw mode always;
- its simple iterators end silently at damage: scans use the raw iterator and check its `status`;
- its `Snapshot` scans show later writes: a snapshot is one iterator for each space, opened under the lock;
- it drops a damaged end of the log on opening: `DurableWatermark` detects that, and the store refuses to open;
- reads of recent rows are slow: `memory.Memory` caches them;
- scans walk over tombstones at a front: `ScanHeads` remembers where each front begins;
- after a failed sync every write fails: the engine stops, and says so.
"""

from __future__ import annotations

from tenure.storage.engines.rocksdb.engine import RocksEngine

__all__ = ["RocksEngine"]
