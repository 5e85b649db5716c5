"""A staged write's commit: record which attempts won, publish their chunks, finish. Repeated, it goes on where it stopped.

    begin ─▶ publish 0 ─▶ publish 1 ─▶ … ─▶ rejects to the quarantine ─▶ finish ─▶ staged files removed

Killed at any of these, the next commit of the same id finds the recorded manifest and the number of the next chunk, and
does the rest; what it staged itself is not needed then.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from tenure.api.queue import Queue
from tenure.api.staged_write import Staged
from tenure.api.store import Store
from tenure.bulk import staging
from tenure.bulk.staging import Manifest, Part
from tenure.errors import InvalidArgument, KeyConflict, QueueFull
from tenure.model.durations import Duration
from tenure.model.names import QueueName
from tenure.model.request import JobRequest
from tenure.model.write import Published
from tenure.storage.staged_parts import expire, folder_of

#: How often a writer that is held back looks again, in seconds.
_LOOK = (0.02, 1.0)


class Terms(NamedTuple):
    """How a write is published."""

    #: Waiting jobs of a queue past which the writer is held back; None: only by the queue's own limit, which fails it.
    max_waiting: int | None = None
    #: Seconds it may be held back before it gives up.
    patience: float = 3600.0
    #: Where rows go that are not valid, with their reason; None: they fail the write.
    quarantine: str | None = None
    #: How long the finished write is remembered.
    keep: Duration | None = None
    #: An earlier write to forget with it.
    forget: str | None = None


class Outcome(NamedTuple):
    """What the write, all its commits together, came to. `repeated`: it had been finished before this commit."""

    jobs: int
    duplicates: int
    rejected: int
    repeated: bool


def commit(store: Store, write_id: str, manifest: Manifest, terms: Terms) -> Outcome:
    if manifest.root != staging.IN_STORE:
        expire(manifest.root)
    staged = store.staged(write_id, terms.keep)
    state = staged.begin(manifest.encode())
    recorded = Manifest.decode(state.manifest)
    rejected = sum([part.rejected for part in recorded.parts])
    if not state.finished:
        publisher = _Publisher(store, staged, terms)
        with _Files(store, write_id, recorded) as files:
            for number, name, rows in _left(files, recorded.parts, state.chunk):
                publisher.publish(number, store.queue(name.queue, tenant=name.tenant), staging.requests(rows))
            if terms.quarantine is not None:
                for part in recorded.parts:
                    if part.rejected:
                        files.fetch(f"{part.name}.rejects")
                move_rejects(files.folder, recorded.parts, publisher.refused, terms.quarantine)
                rejected += len(publisher.refused)
    done = staged.finish(terms.forget)
    for root in {recorded.root, manifest.root}:
        if root == staging.IN_STORE:
            staged.drop_pieces()
        else:
            staging.discard(root, write_id)
    return Outcome(done.jobs, done.duplicates, rejected, state.finished)


class _Files:
    """Where a write's staged files are: the folder they were staged in, or one they are fetched to as they are needed."""

    def __init__(self, store: Store, write_id: str, manifest: Manifest) -> None:
        self._store, self._write_id = store, write_id
        self._fetched = manifest.root == staging.IN_STORE
        root = tempfile.mkdtemp(prefix="tenure-") if self._fetched else manifest.root
        self._root = root
        self.folder = folder_of(root, write_id)

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fetched:
            shutil.rmtree(self._root, ignore_errors=True)

    def fetch(self, name: str) -> None:
        if self._fetched:
            self.folder.mkdir(exist_ok=True)
            staging.download(self._store, self._write_id, self.folder, name)

    def forget(self, name: str) -> None:
        if self._fetched:
            (self.folder / name).unlink(missing_ok=True)


def _left(files: _Files, parts: list[Part], published: int) -> Iterator[tuple[int, QueueName, pa.RecordBatch]]:
    """The chunks that are not published yet, with their numbers."""
    number = 0
    for part in parts:
        if number + part.chunks <= published:
            number += part.chunks
            continue
        name = f"{part.name}.arrow"
        files.fetch(name)
        for chunk in staging.read_part(files.folder, part):
            if number >= published:
                yield number, chunk.name, chunk.rows
            number += 1
        files.forget(name)


class _Publisher:
    def __init__(self, store: Store, staged: Staged, terms: Terms) -> None:
        self._store, self._staged, self._terms = store, staged, terms
        self._room: dict[Queue, int] = {}
        #: Rows that their queue refused (a key with another payload), and why.
        self.refused: list[tuple[Queue, JobRequest, str]] = []

    def publish(self, number: int, queue: Queue, jobs: list[JobRequest]) -> Published:
        deadline = time.monotonic() + self._terms.patience
        pause = _LOOK[0]
        self._hold_back(queue, len(jobs), deadline)
        while True:
            try:
                return self._staged.publish_checked(number, queue, jobs)
            except QueueFull:
                # The queue's own limit: with `maxWaiting` the writer waits there too, else it is told.
                if self._terms.max_waiting is None or time.monotonic() > deadline:
                    raise
                time.sleep(pause)
                pause = min(pause * 2, _LOOK[1])
            except KeyConflict as conflict:
                if self._terms.quarantine is None:
                    raise
                self.refused.append((queue, jobs[conflict.index], str(conflict)))
                jobs = jobs[: conflict.index] + jobs[conflict.index + 1 :]

    def _hold_back(self, queue: Queue, jobs: int, deadline: float) -> None:
        """Wait until the queue has room. What this write added since it last looked is counted, so it looks seldom."""
        limit = self._terms.max_waiting
        if limit is None:
            return
        if jobs > limit:
            raise InvalidArgument(f"maxWaiting={limit} is less than a chunk of {jobs} jobs")
        pause = _LOOK[0]
        while self._room.get(queue, 0) < jobs:
            waiting = queue.counts().waiting
            self._room[queue] = limit - waiting
            if self._room[queue] >= jobs:
                break
            if time.monotonic() > deadline:
                raise QueueFull(str(queue.name), waiting, limit)
            time.sleep(pause)
            pause = min(pause * 2, _LOOK[1])
        self._room[queue] -= jobs


# ── the quarantine ───────────────────────────────────────────────────────────────────────────────────────────────────


def stage_rejects(folder: Path, name: str, batches: list[tuple[pa.RecordBatch, list[str]]]) -> None:
    """Set rows aside, as they came, with a column `reason`, until the attempt is known to count."""
    tables = [
        pa.Table.from_batches([rows]).append_column("reason", pa.array(reasons, pa.string()))
        for rows, reasons in batches
    ]
    pq.write_table(pa.concat_tables(tables), folder / f"{name}.rejects")


def move_rejects(
    folder: Path, parts: list[Part], refused: list[tuple[Queue, JobRequest, str]], quarantine: str
) -> None:
    """Copy them to where they were asked to go; the names are the write's, so that a repeat replaces and never doubles."""
    if not refused and not any(part.rejected for part in parts):
        return
    system, path = _filesystem(quarantine)
    system.create_dir(path, recursive=True)
    for part in parts:
        if part.rejected:
            table = pq.read_table(pa.OSFile(str(folder / f"{part.name}.rejects")))
            pq.write_table(table, f"{path}/{folder.name}-{part.name}.parquet", filesystem=system)
    if refused:
        table = pa.table(
            {
                "tenant": [queue.tenant for queue, _, _ in refused],
                "queue": [queue.name.queue for queue, _, _ in refused],
                "payload": pa.array([job.payload for _, job, _ in refused], pa.binary()),
                "key": [job.key for _, job, _ in refused],
                "reason": [reason for _, _, reason in refused],
            }
        )
        pq.write_table(table, f"{path}/{folder.name}-refused.parquet", filesystem=system)


def _filesystem(path: str) -> tuple[fs.FileSystem, str]:
    if "://" in path:
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(path)
        return found
    return fs.LocalFileSystem(), str(Path(path).absolute())
