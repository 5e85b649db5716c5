"""Jobs that were enqueued together, kept as one record for as long as they stay together (ADR 0025).

A layer between the seam and the queue's logic. To the code above it, each job has its rows in `jobs`, `state` and
`ready`: a reader makes the rows of a segment when they are read (`reader`). A transaction that writes a row of a job in
a segment takes that job out of it (`transaction`). Enqueue, claim and ack handle a segment as one thing where they can,
by the `…_together` methods of `storage.transaction.Transaction`; bulk readers by `Walk.runs`.

Segments never overlap: ids are given out in blocks, in ascending order, by the one process that writes.
"""

from __future__ import annotations

from tenure.storage.segments.engine import SegmentedEngine, has_segments
from tenure.storage.segments.snapshot import SegmentedSnapshot
from tenure.storage.segments.stored import SegmentRows, SegmentShare, StoredSegment
from tenure.storage.segments.transaction import SegmentedTransaction, SegmentMemory, SegmentUse

__all__ = [
    "SegmentMemory",
    "SegmentRows",
    "SegmentShare",
    "SegmentUse",
    "SegmentedEngine",
    "SegmentedSnapshot",
    "SegmentedTransaction",
    "StoredSegment",
    "has_segments",
]
