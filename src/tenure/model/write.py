"""Staged writes: the store records a write's manifest once, then publishes its jobs chunk by chunk."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from tenure.errors import InvalidArgument

#: The most jobs of one chunk, which is one transaction and one row of the journal.
CHUNK = 1000
#: How long a finished write's row is kept, so that it is not published again.
KEEP_MS = 86_400_000
#: How long the row of an unfinished write is kept, of which a part is published.
UNFINISHED_MS = 30 * KEEP_MS
#: The largest `keep` of a write: its manifest takes space for that time.
MAX_KEEP_MS = 366 * KEEP_MS
MAX_MANIFEST = 4 * 1024 * 1024


def owner_of(write_id: str) -> str:
    """The tenant of a write made through a server, which prefixes the id with it; "" for other ids."""
    return write_id.partition("/")[0] if "/" in write_id else ""


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """A job of a chunk that is not added: its index, and the id of the job that holds its key with another payload."""

    index: int
    existing: str


class WriteState(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a write.

    `manifest` is the first one recorded for this id, by any caller; `chunk` is the next to publish.
    """

    id: str
    manifest: bytes
    chunk: int
    jobs: int
    duplicates: int
    finished: bool
    #: Jobs that were left out of its chunks (`Refusal`).
    refused: int = 0


class Published(msgspec.Struct, frozen=True):
    """The answer to one chunk. `fresh`: this call published it; else an earlier call did, and nothing was written.

    `refused` are the jobs left out, as the call that published the chunk recorded them.
    """

    fresh: bool
    jobs: int
    duplicates: int = 0
    refused: list[Refusal] = []


NO_LOADS = "a bulk load needs a store that takes sorted files, an embedded RocksDB: write in chunks instead"
#: The most jobs of one bulk load: its events are one commit, held in memory.
MAX_LOAD = 4_000_000


class LoadTarget(msgspec.Struct, frozen=True):
    """What a writer of sorted files needs of a queue: its number, its policy's attempts, and the store's time."""

    number: int
    max_attempts: int
    now_ms: int
    #: Calendar time minus the store's time.
    drift_ms: int = 0
    #: Whether the queue or its tenant has a limit. A load beyond it is refused; a writer in chunks can wait instead.
    bounded: bool = False


class LoadPart(msgspec.Struct, frozen=True):
    """Sorted files in the store's staging folder: rows of one queue, one file for each of `spaces`."""

    name: str
    queue: int
    rows: int
    spaces: list[int]


class LoadRequest(msgspec.Struct, frozen=True):
    """A bulk load. Its files are in the store's own staging folder, under the digest of its id.

    With `chunk` it is that chunk of a write that has begun, and more may follow; without, it is a whole write.
    """

    id: str
    manifest: bytes
    parts: list[LoadPart]
    keep_ms: int = KEEP_MS
    chunk: int | None = None


def accepted_indexes(jobs: int, refused: Sequence[Refusal]) -> list[int]:
    """The indexes of a chunk's jobs that are not refused.

    Raises InvalidArgument if a refusal's index is outside the chunk.
    """
    if not refused:
        return list(range(jobs))
    left_out = {refusal.index for refusal in refused}
    if any(len(refusal.existing) > 64 for refusal in refused):
        raise InvalidArgument("a refusal names the job that holds the key, in at most 64 characters")
    if not left_out <= set(range(jobs)):
        raise InvalidArgument(f"a chunk of {jobs} jobs has none at {sorted(left_out - set(range(jobs)))[0]} to refuse")
    return [index for index in range(jobs) if index not in left_out]


def checked_write_id(write_id: object) -> str:
    if not isinstance(write_id, str) or not 1 <= len(write_id) <= 200 or not write_id.isprintable():
        raise InvalidArgument(f"a write's id is 1 to 200 printable characters, not {write_id!r}")
    return write_id


_PART = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}\Z")


def piece_name(part: object, piece: int) -> str:
    """The name of a piece of a staged part, used in file names and URLs. Raises InvalidArgument."""
    if not isinstance(part, str) or not _PART.match(part) or ".." in part or not 0 <= piece < 1_000_000:
        raise InvalidArgument(f"part {part!r}, piece {piece}: 1 to 100 of a-z, 0-9, '.', '_' and '-', and a number")
    return f"{part}.{piece:06d}"
