"""Jobs that were enqueued together, kept as one record for as long as they stay together (ADR 0025).

A layer between the seam and the queue's logic. To everybody above it, each job has its rows in `jobs`, `state` and
`ready`, as ever: of a segment they are made when somebody looks (`reader`). Whoever writes one of them has the whole
segment written out as rows, in the same transaction (`transaction`). Three verbs know better, and handle a segment as
one thing: an enqueue of many, a claim that takes all of it or its beginning, an ack of all of it (`queueing.together`).

Segments never overlap: ids are given out in blocks, in ascending order, by the one process that writes.
"""

from __future__ import annotations

from tenure.storage.segments.engine import SegmentedEngine, has_segments
from tenure.storage.segments.snapshot import SegmentedSnapshot, SegmentedWalk
from tenure.storage.segments.stored import SegmentShare, StoredSegment
from tenure.storage.segments.transaction import SegmentedTransaction, SegmentMemory, SegmentUse

__all__ = [
    "SegmentMemory",
    "SegmentShare",
    "SegmentUse",
    "SegmentedEngine",
    "SegmentedSnapshot",
    "SegmentedTransaction",
    "SegmentedWalk",
    "StoredSegment",
    "has_segments",
]
