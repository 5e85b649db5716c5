"""Stage one task attempt's rows: few rows in chunks, many rows as sorted files if the store takes them.

To publish a chunk, the store writes each of its jobs again, through its log. It ingests sorted files as they are, which
is cheaper for many rows; for few rows, making and ingesting the files costs more than writing the jobs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tenure.bulk import staging
from tenure.bulk.flow_rows import FlowRuns
from tenure.bulk.staging import Part, PartWriter
from tenure.model.names import QueueName
from tenure.model.write import LoadTarget
from tenure.storage.records import PART_BYTES

if TYPE_CHECKING:
    from tenure.bulk.load_files import LoadWriter

#: Up to so many rows and bytes are held in memory; a partition that has more is staged as sorted files.
FEW_ROWS, FEW_BYTES = 20_000, 32 * 1024 * 1024


class StagedRows:
    """The files of one attempt. They count once they are closed and a manifest names them.

    `target` describes the one queue that all rows go to. Without it, rows are staged in chunks only.
    """

    def __init__(self, folder: Path, name: str, partition: int, target: LoadTarget | None) -> None:
        self._folder, self._name, self._partition, self._target = folder, name, partition, target
        self._held: list[tuple[QueueName, pa.RecordBatch]] = []
        self._flows = FlowRuns()
        self._chunks: PartWriter | None = None
        self._files: LoadWriter | None = None

    def add(self, queue: QueueName, rows: pa.RecordBatch) -> None:
        if self._target is None:
            self._add_to_chunks(queue, rows)
        elif self._files is not None:
            self._add_to_files(queue, rows, self._files)
        else:
            self._held.append((queue, rows))
            count = sum([held.num_rows for _, held in self._held])
            size = sum([held.nbytes for _, held in self._held])
            if count > FEW_ROWS or size > FEW_BYTES:
                self._decide(many=size <= count * PART_BYTES, target=self._target)

    def close(self) -> Part:
        """Make the staged files durable, and describe them."""
        if self._held:
            self._decide(many=False, target=None)
        for queue, rows in self._flows.close():
            self._part().add_together(queue, rows)
        tables = [] if self._files is None else self._files.close()
        part = Part(self._name, 0, 0) if self._chunks is None else self._chunks.close()
        return Part(self._name, part.chunks, part.rows + sum([table.rows for table in tables]), 0, tables)

    def discard(self) -> None:
        if self._chunks is not None:
            self._chunks.discard()
        for file in self._folder.glob(f"{self._name}-*"):
            file.unlink(missing_ok=True)

    def _decide(self, *, many: bool, target: LoadTarget | None) -> None:
        """Stage the rows held in memory, as sorted files if there are `many`, else in chunks. Later rows go the same way."""
        held, self._held = self._held, []
        if many and target is not None:
            from tenure.bulk.load_files import LoadWriter  # needs RocksDB, which only some stores do

            self._files = LoadWriter(self._folder, self._name, self._partition, target.now_ms, lambda _: target)
        else:
            self._target = None
        for queue, rows in held:
            self.add(queue, rows)

    def _add_to_files(self, queue: QueueName, rows: pa.RecordBatch, files: LoadWriter) -> None:
        if files.rows + rows.num_rows > staging.MOST_LOADED:
            self._add_to_chunks(queue, rows)
        else:
            files.add(queue, rows)

    def _add_to_chunks(self, queue: QueueName, rows: pa.RecordBatch) -> None:
        for ready, together in self._flows.add(queue, rows):
            chunks = self._part()
            (chunks.add_together if together else chunks.add)(queue, ready)

    def _part(self) -> PartWriter:
        if self._chunks is None:
            self._chunks = PartWriter(self._folder, self._name)
        return self._chunks
