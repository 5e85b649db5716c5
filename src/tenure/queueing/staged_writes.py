"""Staged writes: each chunk is published exactly once.

    begin     stores the manifest; a repeat gets the first one
    publish   adds one chunk of at most 1,000 jobs, in one transaction with the marker and the list of refused jobs; a
              chunk may come as sorted files instead (`bulk_loads`)
    finish    marks the write as finished; the marker is kept for a day

Chunks come in order, and the marker holds the number of the next one: a repeated or concurrent commit adds no chunk
twice. Published chunks are never undone.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tenure.errors import Corrupt, InvalidArgument, KeyConflict, TooLarge
from tenure.model.names import QueueName
from tenure.model.request import JobRequest
from tenure.model.write import (
    CHUNK,
    MAX_MANIFEST,
    UNFINISHED_MS,
    Published,
    Refusal,
    WriteState,
    accepted_indexes,
)
from tenure.queueing import enqueue, quotas
from tenure.queueing.core import Core
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader
from tenure.storage.keyspace import Due, DueKey
from tenure.storage.records import RefusalsRecord, WriteRecord


def begin(core: Core, write_id: str, manifest: bytes, keep_ms: int) -> WriteState:
    """Begin a write, or return the state of the one with this id. Raises TooLarge, QuotaExceeded."""
    if len(manifest) > MAX_MANIFEST:
        raise TooLarge("the write's manifest", len(manifest), MAX_MANIFEST)
    key = keyspace.digest(write_id.encode())

    def run(unit: UnitOfWork) -> WriteState:
        found = _read(unit.tx, key)
        if found is not None:
            return _state(unit.tx, key, found)
        return put_new(unit, write_id, manifest, keep_ms)

    return core.write(run)


def put_new(unit: UnitOfWork, write_id: str, manifest: bytes, keep_ms: int, loaded: int | None = None) -> WriteState:
    """Store a new write's manifest and marker; with `loaded`, as finished with that many jobs. Raises QuotaExceeded."""
    key, until = keyspace.digest(write_id.encode()), unit.now + keep_ms
    starts = range(0, max(1, len(manifest)), records.PART_BYTES)
    quotas.add_manifest(unit, write_id, len(starts))
    for number, at in enumerate(starts, 1):
        part = records.seal(b"\x01" + manifest[at : at + records.PART_BYTES])
        unit.tx.put(keyspace.META, keyspace.write_row(key, number), part)
    jobs, finished = loaded or 0, loaded is not None
    record = WriteRecord(write_id, len(starts), unit.now, until, keep_ms, 0, jobs, 0, finished)
    _save(unit, key, record)
    unit.tx.put(keyspace.DUE, keyspace.due(Due.WRITE, until, 0, key), b"")
    return WriteState(id=write_id, manifest=manifest, chunk=0, jobs=jobs, duplicates=0, finished=finished)


def state(core: Core, write_id: str) -> WriteState | None:
    return core.read(lambda reader: find(reader, write_id))


def find(reader: Reader, write_id: str) -> WriteState | None:
    key = keyspace.digest(write_id.encode())
    found = _read(reader, key)
    return None if found is None else _state(reader, key, found)


def publish(
    core: Core,
    write_id: str,
    chunk: int,
    name: QueueName,
    requests: Sequence[JobRequest],
    refused: Sequence[Refusal] = (),
) -> Published:
    """Add the chunk's jobs except `refused`, and store the refusals, unless the chunk was published before."""
    if len(requests) > CHUNK:
        raise InvalidArgument(f"a chunk has at most {CHUNK} jobs, not {len(requests)}")
    key = keyspace.digest(write_id.encode())
    accepted = accepted_indexes(len(requests), refused)
    wanted = [requests[index] for index in accepted] if refused else requests
    now, add = enqueue.planned(core, name, wanted)

    def run(unit: UnitOfWork) -> Published:
        record = _known(unit.tx, key, write_id)
        if chunk < record.chunk or record.finished:
            return Published(False, 0, 0, _refusals(unit.tx, key, chunk))
        if chunk > record.chunk:
            raise InvalidArgument(f"chunk {chunk} of write {write_id!r} comes before chunk {record.chunk}")
        added = add(unit) if wanted else []
        duplicates = sum([job.duplicate for job in added])
        fresh = len(added) - duplicates
        if refused:
            row = RefusalsRecord([(refusal.index, refusal.existing) for refusal in refused])
            unit.tx.put(keyspace.META, keyspace.refusals_row(key, chunk), records.encode_struct(row))
        counted = replace(
            record,
            chunk=chunk + 1,
            jobs=record.jobs + fresh,
            duplicates=record.duplicates + duplicates,
            refused=record.refused + len(refused),
        )
        _save(unit, key, counted)
        return Published(True, fresh, duplicates, list(refused))

    try:
        return core.write(run, now)
    except KeyConflict as conflict:
        raise conflict.at(accepted) from None


def count_loaded(unit: UnitOfWork, write_id: str, chunk: int, jobs: int) -> WriteState:
    """Count a chunk whose jobs came as files, in the transaction of the load (`bulk_loads`)."""
    key = keyspace.digest(write_id.encode())
    record = _known(unit.tx, key, write_id)
    counted = replace(record, chunk=chunk + 1, jobs=record.jobs + jobs)
    _save(unit, key, counted)
    return _state(unit.tx, key, counted)


def finish(core: Core, write_id: str, forget: str | None) -> WriteState:
    """Mark a write as finished. `forget`: an earlier, finished write of the same caller whose marker is deleted."""
    key = keyspace.digest(write_id.encode())

    def run(unit: UnitOfWork) -> WriteState:
        record = _known(unit.tx, key, write_id)
        shown = _state(unit.tx, key, record)
        if record.finished:
            return shown
        until = unit.now + record.keep_ms
        _move_due(unit, key, record.until_ms, until)
        _save(unit, key, replace(record, finished=True, until_ms=until))
        if forget is not None:
            old = keyspace.digest(forget.encode())
            superfluous = _read(unit.tx, old)
            if superfluous is not None and superfluous.finished:
                _delete(unit, old, superfluous)
        return replace(shown, finished=True)

    return core.write(run)


def forget_due(unit: UnitOfWork, row: DueKey) -> int:
    """Called by the sweeper: delete a write past its time. Returns how many were deleted.

    An unfinished write with published chunks is kept longer: a repeat must not publish them again.
    """
    record = _read(unit.tx, row.reference)
    if record is None or record.until_ms != row.time_ms:
        unit.tx.delete(keyspace.DUE, keyspace.due(Due.WRITE, row.time_ms, row.queue, row.reference))
        return 0
    if not record.finished and record.chunk and unit.now < record.begun_at_ms + UNFINISHED_MS:
        until = unit.now + record.keep_ms
        _move_due(unit, row.reference, row.time_ms, until)
        _save(unit, row.reference, replace(record, until_ms=until))
        return 0
    _delete(unit, row.reference, record)
    return 1


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read(reader: Reader, key: bytes) -> WriteRecord | None:
    raw = reader.get(keyspace.META, keyspace.write_row(key, 0))
    return None if raw is None else records.decode_struct(WriteRecord, raw, "the marker of a staged write")


def _known(reader: Reader, key: bytes, write_id: str) -> WriteRecord:
    record = _read(reader, key)
    if record is None:
        raise InvalidArgument(f"write {write_id!r} was never begun, or has been forgotten")
    return record


def _refusals(reader: Reader, key: bytes, chunk: int) -> list[Refusal]:
    raw = reader.get(keyspace.META, keyspace.refusals_row(key, chunk))
    if raw is None:
        return []
    found = records.decode_struct(RefusalsRecord, raw, "the refusals of a staged write")
    return [Refusal(index, existing) for index, existing in found.refused]


def _state(reader: Reader, key: bytes, record: WriteRecord) -> WriteState:
    rows = reader.get_many(
        keyspace.META, [keyspace.write_row(key, part) for part in range(1, record.manifest_parts + 1)]
    )
    pieces = []
    for row in rows:
        if row is None:
            raise Corrupt(f"a part of the manifest of write {record.id!r} is missing")
        pieces.append(records.unseal(f"the manifest of write {record.id!r}", row)[1:])
    return WriteState(
        id=record.id, manifest=b"".join(pieces), chunk=record.chunk, jobs=record.jobs, duplicates=record.duplicates,
        finished=record.finished, refused=record.refused,
    )  # fmt: skip


def _save(unit: UnitOfWork, key: bytes, record: WriteRecord) -> None:
    unit.tx.put(keyspace.META, keyspace.write_row(key, 0), records.encode_struct(record))


def _move_due(unit: UnitOfWork, key: bytes, before_ms: int, after_ms: int) -> None:
    if before_ms == after_ms:
        return
    unit.tx.delete(keyspace.DUE, keyspace.due(Due.WRITE, before_ms, 0, key))
    unit.tx.put(keyspace.DUE, keyspace.due(Due.WRITE, after_ms, 0, key), b"")


def _delete(unit: UnitOfWork, key: bytes, record: WriteRecord) -> None:
    until_ms = record.until_ms
    quotas.drop_manifest(unit, record.id, record.manifest_parts)
    unit.tx.delete_range(keyspace.META, *keyspace.write_range(key))
    unit.tx.delete_range(keyspace.META, *keyspace.refusals_range(key))
    unit.tx.delete(keyspace.DUE, keyspace.due(Due.WRITE, until_ms, 0, key))
