"""A copy of a store, opened for reading by any number of processes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rocksdict import AccessType, BlockBasedOptions, Cache, Options, Rdict, ReadOptions

from tenure.errors import Corrupt, OpenError, Unavailable
from tenure.storage.engine import Extent, Row, Snapshot, Space, Steps, Walk
from tenure.storage.engines.rocksdb.iterators import backward, check_status, forward
from tenure.storage.engines.rocksdb.opening import opening_threads, translated
from tenure.storage.keyspace import LAST, NAMES

#: Small: scans read each block once.
_CACHE_BYTES = 8 * 1024 * 1024
#: A file's number in RocksDB's list of a space's files.
_FILE = re.compile(r"^ (\d+):", re.MULTILINE)


class RocksCopy(Snapshot):
    """`storage.engine.Snapshot` on a checkpoint.

    The driver's `items()` takes a third of the time of its raw iterator, but ends silently at damage. So when a scan
    ends before its limit, the raw iterator seeks past the last row and checks that nothing follows.
    """

    def __init__(self, path: Path) -> None:
        table = BlockBasedOptions()
        table.set_block_cache(Cache(_CACHE_BYTES))

        def options() -> Options:
            made = Options(raw_mode=True)
            made.set_block_based_table_factory(table)
            made.set_paranoid_checks(True)
            return made

        try:
            whole = options()
            whole.set_max_file_opening_threads(opening_threads(path))
            there = set(Rdict.list_cf(str(path), options()))  # a copy of an older store lacks newer spaces
            self._db = Rdict(
                str(path),
                whole,
                {name: options() for name in NAMES if name in there},
                access_type=AccessType.read_only(),
            )
            self._tables: list[Any] = [self._db.get_column_family(name) if name in there else None for name in NAMES]
        except Exception as exc:
            error = translated(exc)
            if isinstance(error, Unavailable):
                raise OpenError(f"RocksDB could not open the copy at {path}: {exc}") from exc
            raise error from exc

    def get(self, space: Space, key: bytes) -> bytes | None:
        if self._tables[space] is None:
            return None
        try:
            value: bytes | None = self._tables[space].get(key)
        except Exception as exc:
            raise translated(exc) from exc
        return value

    def get_many(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        if self._tables[space] is None:
            return [None] * len(keys)
        try:
            values: list[bytes | None] = self._tables[space].get(list(keys))
        except Exception as exc:
            raise translated(exc) from exc
        return values

    def scan(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[Row]:
        table = self._tables[space]
        if table is None or begin >= end:
            return []
        if reverse:
            return backward(table.iter(), begin, end, limit)
        bounded = _until(end)
        rows: list[Row] = list(islice(table.items(from_key=begin, read_opt=bounded), limit))
        if len(rows) < limit:
            _check_end(table.iter(bounded), rows[-1][0] + b"\0" if rows else begin)
        return rows

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        table = self._tables[space]
        if table is None or begin >= end:
            return []
        if reverse:
            return [key for key, _ in backward(table.iter(), begin, end, limit)]
        bounded = _until(end)
        keys: list[bytes] = list(islice(table.keys(from_key=begin, read_opt=bounded), limit))
        if len(keys) < limit:
            _check_end(table.iter(bounded), keys[-1] + b"\0" if keys else begin)
        return keys

    def walk(self, space: Space, begin: bytes, end: bytes) -> Walk:
        table = self._tables[space]
        return Steps(self, space, begin, end) if table is None or begin >= end else _CopyWalk(table, begin, end)

    def salvage(self, space: Space, begin: bytes, limit: int) -> tuple[list[Row], list[Corrupt]]:
        table = self._tables[space]
        return ([] if table is None else forward(table.iter(), begin, LAST, limit)), []

    def extents(self, space: Space) -> list[Extent]:
        """One extent for each sorted file, by its first and last keys. A checkpoint has all rows in files."""
        table = self._tables[space]
        if table is None:
            return []
        own = {int(number) for number in _FILE.findall(table.property_value("rocksdb.sstables") or "")}
        return [
            Extent(file["start_key"], file["end_key"], file["num_entries"])
            for file in self._db.live_files()  # files of all spaces, without the space
            if int(Path(file["name"]).stem) in own
        ]

    def close(self) -> None:
        self._tables.clear()
        self._db.close()


class _CopyWalk(Walk):
    """A `Walk` on one iterator of the driver, which keeps its position between two calls."""

    def __init__(self, table: Any, begin: bytes, end: bytes) -> None:
        self._table, self._begin, self._end = table, begin, end
        self._items = table.items(from_key=begin, read_opt=_until(end))

    def take(self, limit: int) -> list[Row]:
        rows: list[Row] = list(islice(self._items, limit))
        if rows:
            self._begin = rows[-1][0] + b"\0"
        if len(rows) < limit:
            _check_end(self._table.iter(_until(self._end)), self._begin)
        return rows


def _check_end(iterator: Any, begin: bytes) -> None:
    """Raise Corrupt if there is a row at or after `begin`, or the iterator meets damage."""
    iterator.seek(begin)
    if iterator.valid():
        raise Corrupt("a scan ended before its end", key=iterator.key())
    check_status(iterator)


def _until(end: bytes) -> ReadOptions:
    options = ReadOptions()
    options.set_iterate_upper_bound(end)
    # RocksDB's automatic readahead (up to 256 KiB for sequential reads) suits the processor's cache: no larger one is
    # set.
    options.fill_cache(False)  # type: ignore[call-arg]  # the driver's stub lacks the argument
    return options
