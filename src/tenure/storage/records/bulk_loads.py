"""What a bulk load stages of its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

_LOAD_RUN = Struct(">IBBQIQ")  # how many, and a shape
LOAD_RUN_BYTES = _LOAD_RUN.size

#: A flag of a shape that no state has: its jobs are one segment.
TOGETHER = 128


class LoadShape(NamedTuple):
    """What the owner has to know of a staged job, besides its id, to write its state and its event."""

    priority: int
    flags: int
    visible_at_ms: int
    max_attempts: int
    due_at_ms: int


def encode_load_runs(runs: Sequence[tuple[int, LoadShape]]) -> bytes:
    """How many jobs are of which shape, in their order."""
    return b"".join([_LOAD_RUN.pack(count, *shape) for count, shape in runs])


def decode_load_runs(raw: bytes) -> list[tuple[int, LoadShape]]:
    return [(count, LoadShape(*shape)) for count, *shape in _LOAD_RUN.iter_unpack(raw)]
