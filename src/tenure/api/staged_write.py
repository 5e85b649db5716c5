"""Staged writes: `store.staged("id")`. A write takes effect exactly once, however often its commit is repeated.

    staged = store.staged("nightly-2026-11-15")
    state = staged.begin(manifest)                # the first manifest recorded for this id
    for number in range(state.chunk, chunks):
        staged.publish(number, queue, jobs)       # at most 1,000 jobs each, in order
    staged.finish()

The caller decides where it stages data; the manifest, opaque bytes to the store, refers to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tenure.contract.backend import Backend
from tenure.errors import InvalidArgument
from tenure.model.durations import Duration, duration_ms
from tenure.model.job import NewJob
from tenure.model.request import JobRequest, job_requests
from tenure.model.retry import whole_number
from tenure.model.write import (
    KEEP_MS,
    MAX_KEEP_MS,
    LoadPart,
    LoadRequest,
    LoadTarget,
    Published,
    Refusal,
    WriteState,
    checked_write_id,
    piece_name,
)
from tenure.telemetry import Telemetry

if TYPE_CHECKING:
    from tenure.api.queue import Queue


def _checked_keep(keep_ms: int) -> int:
    if keep_ms > MAX_KEEP_MS:
        raise InvalidArgument(f"keep: a write is remembered for at most {MAX_KEEP_MS // 86_400_000} days")
    return keep_ms


class Staged:
    """A write under an id that the caller chooses. Thread-safe."""

    def __init__(self, backend: Backend, telemetry: Telemetry, write_id: str, keep: Duration | None) -> None:
        self._backend = backend
        self._telemetry = telemetry
        self._keep_ms = KEEP_MS if keep is None else _checked_keep(duration_ms("keep", keep, minimum_ms=1000))
        self.id = checked_write_id(write_id)

    def begin(self, manifest: bytes) -> WriteState:
        """Record the manifest of the write. A repeat returns the first manifest, which the caller must publish."""
        if not isinstance(manifest, bytes):
            raise InvalidArgument(f"a manifest is bytes, not {type(manifest).__name__}")
        with self._telemetry.span("begin_write"):
            return self._backend.begin_write(self.id, manifest, self._keep_ms)

    def state(self) -> WriteState | None:
        """Return the write's state; None if it was never begun, or has been forgotten."""
        with self._telemetry.span("write_state"):
            return self._backend.write_state(self.id)

    def publish(self, chunk: int, queue: Queue, jobs: Iterable[bytes | NewJob]) -> Published:
        """Add the jobs of one chunk, unless it was already published."""
        return self.publish_checked(chunk, queue, job_requests(jobs))

    def publish_checked(
        self, chunk: int, queue: Queue, jobs: Sequence[JobRequest], refused: Sequence[Refusal] = ()
    ) -> Published:
        """As `publish`, for requests that are already checked, by callers that check a column at a time.

        Jobs in `refused` are not added but recorded with the chunk. A repeat for a published chunk returns what was
        recorded, whatever jobs it is given.
        """
        whole_number("chunk", chunk, 0, 2**40)
        with self._telemetry.span("publish") as span:
            published = self._backend.publish(self.id, chunk, queue.name, jobs, refused)
            span.jobs(published.jobs)
        return published

    def put_piece(self, part: str, piece: int, data: bytes) -> None:
        """Store up to 4 MiB of a part for a day, for writers that share no folder with the store."""
        piece_name(part, piece)
        with self._telemetry.span("put_piece"):
            self._backend.put_piece(self.id, part, piece, data)

    def piece(self, part: str, piece: int) -> bytes | None:
        piece_name(part, piece)
        with self._telemetry.span("piece"):
            return self._backend.piece(self.id, part, piece)

    def drop_pieces(self) -> None:
        with self._telemetry.span("drop_pieces"):
            self._backend.drop_pieces(self.id)

    def load(self, manifest: bytes, parts: Sequence[LoadPart]) -> WriteState:
        """Load sorted files instead of chunks, all or nothing. `tenure.bulk.load_files` makes the files."""
        with self._telemetry.span("load") as span:
            state = self._backend.load(LoadRequest(self.id, manifest, list(parts), self._keep_ms))
            span.jobs(state.jobs)
        self._telemetry.info("loaded", write=self.id, jobs=state.jobs)
        return state

    def load_chunk(self, chunk: int, parts: Sequence[LoadPart]) -> WriteState:
        """Load sorted files as one chunk of a write that was begun, unless the chunk was already loaded."""
        with self._telemetry.span("load") as span:
            state = self._backend.load(LoadRequest(self.id, b"", list(parts), self._keep_ms, chunk))
            span.jobs(sum([part.rows for part in parts]))
        return state

    def load_target(self, queue: Queue) -> LoadTarget:
        """Return what the writer of such files needs to know about a queue."""
        with self._telemetry.span("load_target"):
            return self._backend.load_target(queue.name)

    def finish(self, forget: str | None = None) -> WriteState:
        """Mark the write complete. `forget`: an earlier, finished write that may be forgotten."""
        with self._telemetry.span("finish_write"):
            state = self._backend.finish_write(self.id, forget)
        self._telemetry.info("write_finished", write=self.id, jobs=state.jobs, duplicates=state.duplicates)
        return state
