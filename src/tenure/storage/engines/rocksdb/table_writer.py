"""Writes sorted files outside the database, which `loader` ingests."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import starmap
from pathlib import Path
from typing import Any

from rocksdict import BlockBasedOptions, DBCompressionType, Options, SstFileWriter

from tenure.errors import Unavailable
from tenure.storage.engine import Row
from tenure.storage.engines.rocksdb.opening import translated
from tenure.storage.folder import sync_path


class TableWriter:
    """Writes one sorted file. Keys must come in ascending order, each once."""

    def __init__(self, path: str, *, filtered: bool = False) -> None:
        options = Options(raw_mode=True)
        table = BlockBasedOptions()
        table.set_block_size(16 * 1024)
        table.set_format_version(5)
        if filtered:
            table.set_bloom_filter(10, False)
        options.set_block_based_table_factory(table)
        options.set_compression_type(DBCompressionType.lz4())
        self._path = path
        self._writer: Any = SstFileWriter(options)
        try:
            self._writer.open(path)
        except Exception as exc:
            raise translated(exc) from exc

    def put_many(self, rows: Iterable[Row]) -> None:
        try:
            # A loop in C: a Python call for each of a million rows is slow.
            deque(starmap(self._writer.__setitem__, rows), 0)
        except Exception as exc:
            raise translated(exc) from exc

    def close(self) -> None:
        """Finish and sync the file. Raises Unavailable, also for a file without a row."""
        try:
            self._writer.finish()
        except Exception as exc:
            raise Unavailable(f"{self._path} could not be written: {exc}") from exc
        del self._writer
        sync_path(Path(self._path))
