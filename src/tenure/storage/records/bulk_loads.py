"""Records that a bulk load stages about its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from tenure.errors import Corrupt

_LOAD_RUN = Struct(">IBBQIQ")  # count, shape
LOAD_RUN_BYTES = _LOAD_RUN.size
_SHAPE = Struct(">BBQIQ")
_PACKED_RUN = Struct(f">I{_SHAPE.size}s")  # count, packed shape
_NUMBER = Struct(">I")

#: A flag of a shape, unused by states: its jobs are one segment.
TOGETHER = 128


class LoadShape(NamedTuple):
    """The fields of a staged job, besides its id, that the store needs to write its state and its event."""

    priority: int
    flags: int
    visible_at_ms: int
    max_attempts: int
    due_at_ms: int


def encode_load_runs(runs: Sequence[tuple[int, LoadShape]]) -> bytes:
    """Runs of jobs with the same shape, in the order of the jobs."""
    return b"".join([_LOAD_RUN.pack(count, *shape) for count, shape in runs])


def encode_load_groups(names: Sequence[bytes], members: Sequence[int]) -> bytes:
    """The groups' names, and for each job with a group the index of its name."""
    listed = b"".join([bytes((len(name),)) + name for name in names])
    return _NUMBER.pack(len(names)) + listed + b"".join(map(_NUMBER.pack, members))


def decode_load_groups(raw: bytes) -> list[bytes]:
    """The group's name of each job that has one. Raises Corrupt."""
    names, at = [], _NUMBER.size
    try:
        for _ in range(_NUMBER.unpack_from(raw)[0]):
            end = at + 1 + raw[at]
            names.append(raw[at + 1 : end])
            at = end
        return [names[place] for (place,) in _NUMBER.iter_unpack(raw[at:])]
    except (IndexError, StructError):
        raise Corrupt(f"the groups of a bulk load are damaged ({len(raw)} bytes)") from None


def decode_load_runs(raw: bytes | memoryview) -> list[tuple[int, LoadShape]]:
    """The inverse of `encode_load_runs`. Equal shapes are one object: every segment of a load is a run of its own."""
    packed = _PACKED_RUN.iter_unpack(raw)
    shapes = {shape: LoadShape(*_SHAPE.unpack(shape)) for _, shape in packed}
    return [(count, shapes[shape]) for count, shape in _PACKED_RUN.iter_unpack(raw)]
