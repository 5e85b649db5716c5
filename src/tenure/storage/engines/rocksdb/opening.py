"""Opens RocksDB, and translates its errors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, Options, Rdict

from tenure.errors import Corrupt, OpenError, StoreClosed, TenureError, Unavailable
from tenure.storage.engine import Space
from tenure.storage.engines.rocksdb import fork_exit
from tenure.storage.engines.rocksdb.log_rotation import BUFFER_BYTES, BUFFERS
from tenure.storage.keyspace import DEDUP, JOBS, NAMES, REQUESTS, STATE

Mode = Literal["low_space", "high_throughput"]

#: Spaces that are read by key more than scanned: a Bloom filter saves the read of a missing key.
_POINT_SPACES = (JOBS, STATE, DEDUP, REQUESTS)

#: From this number of files on, opening them in parallel is worth the threads.
_MANY_TABLES = 64


def open_db(path: Path, cache_capacity: int, mode: Mode) -> Rdict:
    """Open the database, or create it. Raises Corrupt, OpenError (also in a forked child, see `fork_exit`)."""
    roomy = mode == "high_throughput"
    cache = Cache(cache_capacity)

    def options(space: Space | None = None) -> Options:
        made = Options(raw_mode=True)
        made.create_if_missing(True)
        made.create_missing_column_families(True)
        table = BlockBasedOptions()
        table.set_block_cache(cache)
        table.set_block_size(16 * 1024)
        table.set_format_version(5)
        if space in _POINT_SPACES:
            table.set_bloom_filter(10, False)
        made.set_block_based_table_factory(table)
        made.set_write_buffer_size(BUFFER_BYTES)  # never full: `log_rotation` decides when it is flushed
        made.set_max_write_buffer_number(BUFFERS)
        made.set_compression_type(DBCompressionType.lz4() if roomy else DBCompressionType.zstd())
        made.set_level_compaction_dynamic_level_bytes(True)
        return made

    whole = options()
    # point_in_time opens a log that ends in zeros after a power loss; `DurableWatermark` detects if it dropped more.
    whole.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    whole.set_max_total_wal_size(BUFFER_BYTES)
    whole.set_max_background_jobs(2)
    whole.set_keep_log_file_num(2)
    whole.set_max_file_opening_threads(opening_threads(path))
    whole.set_paranoid_checks(True)
    fork_exit.refuse_inherited_pool()
    fork_exit.arm()
    try:
        return Rdict(str(path), whole, {name: options(space) for space, name in enumerate(NAMES)})
    except Exception as exc:
        error = translated(exc)
        if isinstance(error, Unavailable):
            raise OpenError(f"{path} could not be opened: {error}") from exc
        raise error from exc


def opening_threads(path: Path) -> int:
    """How many threads open the files of a space.

    RocksDB starts them for each space, also for one without a file: with its default of 16, they are 480 threads and
    two thirds of the time of opening a small store.
    """
    tables = sum(name.endswith(".sst") for name in os.listdir(path)) if path.exists() else 0
    return 1 if tables < _MANY_TABLES else 16


def translated(exc: Exception) -> TenureError:
    """Our error for one of the driver, which raises plain exceptions: only their text tells them apart."""
    text = str(exc)
    if isinstance(exc, TenureError):
        return exc
    if "orruption" in text or "hecksum" in text or "bad block" in text or "Bad table" in text:
        return Corrupt(f"RocksDB met damaged bytes: {text}")
    if "No space left" in text or "NoSpace" in text:
        return Unavailable(f"the disk is full: make room ({text})")
    if "Too many open files" in text:
        return Unavailable(f"the process may open no more files: raise its limit, ulimit -n ({text})")
    if "closed" in text:
        return StoreClosed("this store was closed")
    return Unavailable(f"RocksDB failed: {text}")
