"""`storage.engine.Loader`: ingests sorted files together with one commit, atomically.

An ingest bypasses the log and handles one space at a time, so a kill may fall between two of them. Therefore:

    under the writer's lock
      1  sync the log                      earlier commits are durable before the load
      2  commit and sync the intent        from here on the load must happen: if need be, at the next opening
      3  ingest the files                  space by space
      4  commit and sync the last rows     counters, journal and marker; this commit removes the intent
      5  read the caches again             so that scans find the new rows

A failure after 2 stops the engine, as any failed write does; reopening the store continues the load. Files are ingested
through a hard link, so that they can be ingested again; the second time as a copy, since the database may own the
first file already.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from rocksdict import IngestExternalFileOptions

from tenure.errors import TenureError, Unavailable
from tenure.storage.engine import Row, Table, Transaction
from tenure.storage.engines.rocksdb.table_writer import TableWriter

if TYPE_CHECKING:
    from tenure.storage.engines.rocksdb.engine import RocksEngine

T = TypeVar("T")


class RocksLoader:
    def __init__(self, engine: RocksEngine) -> None:
        self._engine = engine
        #: Called after each step; tests end the process there.
        self.after: Callable[[str], None] = lambda step: None

    def write_table(self, path: str, rows: Iterable[Row]) -> None:
        writer = TableWriter(path, filtered=True)
        writer.put_many(rows)
        writer.close()

    def load(
        self,
        intend: Callable[[Transaction], Sequence[Table]],
        finish: Callable[[Transaction], T],
        *,
        again: bool = False,
    ) -> T:
        return self._engine.under_lock(partial(self._load, intend, finish, again))

    def _load(
        self,
        intend: Callable[[Transaction], Sequence[Table]],
        finish: Callable[[Transaction], T],
        again: bool,
    ) -> T:
        """Requires: the writer's lock is held."""
        engine = self._engine
        engine._sync()
        self.after("synced")
        transaction = Transaction(engine._reader, engine._next_commit)
        tables = intend(transaction)
        intended = list[bool]()
        transaction.when_written(partial(intended.append, True))
        try:
            engine.apply(transaction)
            engine._sync()
            self.after("intended")
            for space in sorted({table.space for table in tables}):
                self._ingest(space, [table.path for table in tables if table.space == space], again)
                self.after(f"ingested {space}")
            transaction = Transaction(engine._reader, engine._next_commit)
            result = finish(transaction)
            self.after("finishing")
            engine.apply(transaction)
            engine._unsure = True  # an exception from here on leaves it so
        except BaseException as exc:
            if engine._stopped is None and (intended or engine._unsure):
                # The intent is committed: nothing may be written before the load is complete.
                failed = exc if isinstance(exc, Exception) else Unavailable("it was interrupted")
                engine._stop(failed)
                if not isinstance(exc, TenureError) and isinstance(exc, Exception):
                    raise Unavailable(f"the load stopped, and goes on when the store is opened again: {exc}") from None
            raise
        engine._sync()
        self.after("finished")
        engine._attend()
        return result

    def _ingest(self, space: int, paths: list[str], again: bool) -> None:
        options = IngestExternalFileOptions()
        options.set_move_files(not again)
        taken = paths
        if not again:
            taken = [f"{path}.link" for path in paths]
            for path, link in zip(paths, taken, strict=True):
                if os.path.lexists(link):
                    os.unlink(link)
                os.link(path, link)
        self._engine._tables[space].ingest_external_file(taken, options)
