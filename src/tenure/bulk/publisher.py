"""The commit of a staged write: record which attempts won, publish their chunks, finish. A repeated commit goes on where
the last one stopped.

    begin ─▶ publish 0 ─▶ publish 1 ─▶ … ─▶ rows set aside to the quarantine ─▶ finish ─▶ staged files removed

Parts that were staged as sorted files are the first chunks: the store takes in the files of about a million rows at once.

If the process is killed at any step, the next commit of the same id reads the recorded manifest and the number of the
next chunk, and publishes the rest; it ignores what it staged itself. The transaction that publishes a chunk also records
the rows that the queue refuses (a key with another payload), so that the next commit sets aside the same rows.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import fs

from tenure.api.queue import Queue
from tenure.api.staged_write import Staged
from tenure.api.store import Store
from tenure.bulk import staging
from tenure.bulk.refused_rows import GIVEN, as_given
from tenure.bulk.staging import MOST_LOADED, Manifest, Part, RejectsWriter
from tenure.errors import InvalidArgument, KeyConflict, QueueFull
from tenure.model.durations import Duration
from tenure.model.names import QueueName
from tenure.model.request import JobRequest
from tenure.model.write import LoadPart, Published, Refusal
from tenure.queueing.bulk_loads import rows_path
from tenure.storage.staged_parts import expire, folder_of

#: The first and the longest pause between two looks of a writer that waits for room, in seconds.
_LOOK = (0.02, 1.0)


class Terms(NamedTuple):
    """How a write is published."""

    #: Waiting jobs of a queue past which the writer is held back; None: only by the queue's own limit, which fails it.
    max_waiting: int | None = None
    #: Seconds it may be held back before it gives up.
    patience: float = 3600.0
    #: Where rows go that are not valid, with their reason; None: they fail the write.
    quarantine: str | None = None
    #: The columns of the write, in which rows that a queue refuses go to the quarantine.
    given: pa.Schema = GIVEN
    #: How long the finished write is remembered.
    keep: Duration | None = None
    #: An earlier write to forget with it.
    forget: str | None = None


class Outcome(NamedTuple):
    """The result of a write, over all its commits. `repeated`: an earlier commit had finished it."""

    jobs: int
    duplicates: int
    rejected: int
    repeated: bool


def commit(store: Store, write_id: str, manifest: Manifest, terms: Terms) -> Outcome:
    """Publish a staged write, or what an earlier commit of the same id left to do.

    Raises KeyConflict (without a quarantine), QueueFull, Unavailable where staged files are gone.
    """
    if manifest.root != staging.IN_STORE:
        expire(manifest.root)
    staged = store.staged(write_id, terms.keep)
    state = staged.begin(manifest.encode())
    recorded = Manifest.decode(state.manifest)
    if not state.finished:
        with _Files(store, write_id, recorded) as files:
            _publish(store, staged, recorded, state.chunk, files, terms)
    done = staged.finish(terms.forget)
    for root in {recorded.root, manifest.root}:
        if root == staging.IN_STORE:
            staged.drop_pieces()
        else:
            staging.discard(root, write_id)
    rejected = sum([part.rejected for part in recorded.parts]) + done.refused
    return Outcome(done.jobs, done.duplicates, rejected, state.finished)


def _publish(store: Store, staged: Staged, manifest: Manifest, published: int, files: _Files, terms: Terms) -> None:
    """Publish the chunks from number `published` on, and set aside the rows of all chunks that are not valid or
    refused.
    """
    groups = load_groups(manifest.parts)
    for number, tables in enumerate(groups):
        if number >= published:
            _check_there(files.folder, tables)
            staged.load_chunk(number, tables)
    publisher = _Publisher(store, staged, terms)
    refused = RejectsWriter(files.folder, f"refused-{uuid.uuid4().hex}")
    # With a quarantine, chunks that an earlier commit published are read again for the rows that were refused.
    first = published if terms.quarantine is None else 0
    for number, name, rows in _chunks(files, manifest.parts, first):
        queue = store.queue(name.queue, tenant=name.tenant)
        if number < published:
            left_out = staged.publish_checked(number, queue, []).refused
        else:
            left_out = publisher.publish(number, queue, staging.requests(rows)).refused
        if left_out:
            chosen = rows.take(pa.array([refusal.index for refusal in left_out], pa.int64()))
            refused.add(as_given(name, chosen, terms.given), _reasons(chosen, left_out))
    if terms.quarantine is None:
        return
    found = refused.close()
    for part in manifest.parts:
        if part.rejected:
            files.fetch(f"{part.name}.rejects")
    move_rejects(files.folder, manifest.parts, terms.quarantine)
    if found is not None:
        _deliver(found, terms.quarantine, f"{files.folder.name}-refused.parquet")


def load_groups(parts: Sequence[Part]) -> list[list[LoadPart]]:
    """The sorted files of a write, in groups of at most MOST_LOADED rows. The store ingests a group at once."""
    groups: list[list[LoadPart]] = []
    room = 0
    for table in [table for part in parts for table in part.tables]:
        if table.rows > room:
            groups.append([])
            room = MOST_LOADED
        groups[-1].append(table)
        room -= table.rows
    return groups


def _check_there(folder: Path, tables: Sequence[LoadPart]) -> None:
    """Raise Unavailable if staged files are gone."""
    for table in tables:
        if not rows_path(folder, table.name).exists():
            raise staging.gone(rows_path(folder, table.name))


def _reasons(rows: pa.RecordBatch, refused: Sequence[Refusal]) -> list[str]:
    """Why each of these rows was refused."""
    keys = rows.column("key").to_pylist()
    return [
        f"key {key!r} belongs to job {refusal.existing}, which has another payload"
        for key, refusal in zip(keys, refused, strict=True)
    ]


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


def _chunks(files: _Files, parts: list[Part], first: int) -> Iterator[tuple[int, QueueName, pa.RecordBatch]]:
    """The chunks of a write from number `first` on, with their numbers; those that come as sorted files are before them."""
    number = len(load_groups(parts))
    for part in parts:
        if not part.chunks or number + part.chunks <= first:
            number += part.chunks
            continue
        name = f"{part.name}.arrow"
        files.fetch(name)
        for chunk in staging.read_part(files.folder, part):
            if number >= first:
                yield number, chunk.name, chunk.rows
            number += 1
        files.forget(name)


class _Publisher:
    def __init__(self, store: Store, staged: Staged, terms: Terms) -> None:
        self._store, self._staged, self._terms = store, staged, terms
        self._room: dict[Queue, int] = {}

    def publish(self, number: int, queue: Queue, jobs: Sequence[JobRequest]) -> Published:
        """Add a chunk's jobs, without waiting until they are durable: the write's `finish` waits for all of them.

        A power cut before that takes the last chunks together with their markers, and the next commit publishes them
        again. With a quarantine, jobs whose key belongs to another payload are left out and recorded.
        """
        deadline = time.monotonic() + self._terms.patience
        pause = _LOOK[0]
        self._hold_back(queue, len(jobs), deadline)
        refused: list[Refusal] = []
        publish = partial(self._staged.publish_checked, number, queue, jobs, refused)
        while True:
            try:
                published, _ = self._store.backend.deferring(publish)
                return published
            except QueueFull:
                # The queue's own limit: with `maxWaiting` the writer waits there too, else the write fails.
                if self._terms.max_waiting is None or time.monotonic() > deadline:
                    raise
                time.sleep(pause)
                pause = min(pause * 2, _LOOK[1])
            except KeyConflict as conflict:
                if self._terms.quarantine is None:
                    raise
                refused += [Refusal(index, existing) for index, existing in conflict.conflicts]
                refused.sort(key=lambda refusal: refusal.index)

    def _hold_back(self, queue: Queue, jobs: int, deadline: float) -> None:
        """Wait until the queue has room for `jobs` jobs.

        Jobs that this write adds are subtracted from the room last seen, so that the queue is rarely asked.
        """
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


def move_rejects(folder: Path, parts: Sequence[Part], quarantine: str) -> None:
    """Copy the rows that attempts set aside to the quarantine.

    The names are those of the recorded attempts, so that a repeat replaces files and never adds any. Raises Unavailable
    if a staged file is gone.
    """
    for part in parts:
        if part.rejected:
            _deliver(folder / f"{part.name}.rejects", quarantine, f"{folder.name}-{part.name}.parquet")


def _deliver(file: Path, quarantine: str, name: str) -> None:
    """Copy a file to the quarantine; it appears there whole, in the place of an earlier copy."""
    if not file.exists():
        raise staging.gone(file)
    system, path = _filesystem(quarantine)
    system.create_dir(path, recursive=True)
    draft = f"{path}/.{name}.{time.time_ns():x}"
    with pa.OSFile(str(file)) as source, system.open_output_stream(draft) as out:
        while piece := source.read(_COPIED):
            out.write(piece)
    system.move(draft, f"{path}/{name}")


#: Bytes that are copied at once.
_COPIED = 8 * 1024 * 1024


def _filesystem(path: str) -> tuple[fs.FileSystem, str]:
    if "://" in path:
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(path)
        return found
    return fs.LocalFileSystem(), str(Path(path).absolute())
