"""A job's notes: the last error, progress and result of its deliveries."""

from __future__ import annotations

from tenure.errors import Corrupt
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, Transaction
from tenure.storage.records import HAS_NOTES, HAS_RESULT_PARTS, PART_BYTES, Notes, StateRecord


def read_notes(reader: Reader, queue: int, job: bytes, state: StateRecord) -> Notes:
    if not state.flags & HAS_NOTES:
        return Notes()
    raw = reader.get(keyspace.NOTES, keyspace.of_queue(queue, job))
    if raw is None:
        raise Corrupt("its notes are missing", job.hex())
    return records.decode_struct(Notes, raw, "its notes", job)


def write_notes(tx: Transaction, queue: int, job: bytes, notes: Notes) -> int:
    """Replace the notes. Returns the flags to set in the job's state."""
    tx.put(keyspace.NOTES, keyspace.of_queue(queue, job), records.encode_struct(notes))
    return HAS_NOTES


def put_result(tx: Transaction, queue: int, job: bytes, state: StateRecord, result: bytes) -> int:
    """Store a result beside the last error, a large one in parts. Returns the flags to set in the job's state."""
    before = read_notes(tx, queue, job, state)
    flags = put_parts(tx, queue, job, result)
    notes = Notes(before.error, before.progress, before.progress_note, result[:PART_BYTES], len(result))
    return write_notes(tx, queue, job, notes) | flags


def put_parts(tx: Transaction, queue: int, job: bytes, result: bytes) -> int:
    """Write a large result's further parts. Returns the flags to set in the job's state."""
    parts = records.split_parts(result, PART_BYTES) if len(result) > PART_BYTES else []
    for number, part in enumerate(parts, keyspace.RESULT_PARTS):
        tx.put(keyspace.PAYLOAD, keyspace.payload_part(queue, job, number), part)
    return HAS_RESULT_PARTS if parts else 0


def whole_result(reader: Reader, queue: int, job: bytes, notes: Notes) -> bytes | None:
    if notes.result is None or notes.result_bytes <= PART_BYTES:
        return notes.result
    count = -(-notes.result_bytes // PART_BYTES) - 1
    first = keyspace.RESULT_PARTS
    keys = [keyspace.payload_part(queue, job, part) for part in range(first, first + count)]
    parts = reader.get_many(keyspace.PAYLOAD, keys)
    return records.join_parts(notes.result, parts, notes.result_bytes, job, "result")
