"""Rows whose checksum fits and whose shape does not (another version's, or cut where a checksum begins) are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lmdb
import pytest

from tenure.errors import Corrupt, InvalidArgument, StoreClosed, TenureError, Unavailable
from tenure.storage import records
from tenure.storage.engines.lmdb import reader as lmdb_reader
from tenure.storage.engines.rocksdb import opening as rocksdb_opening
from tenure.storage.records import jobs as job_records
from tenure.storage.records import journal as journal_records
from tenure.storage.records.groups import decode_group
from tenure.storage.records.segments import decode_segment_mark
from tenure.storage.records.states import with_last_event

JOB = bytes(range(16))

DECODERS: dict[str, Callable[[bytes], Any]] = {
    "a request": records.decode_request,
    "a bucket": records.decode_bucket,
    "a number": records.decode_number,
    "an idempotency key": records.decode_dedup,
    "a claim": records.decode_claim,
    "a turn": records.decode_turn,
    "a group": decode_group,
    "a segment's mark": decode_segment_mark,
}


@pytest.mark.parametrize("what", DECODERS)
@pytest.mark.parametrize("body", [b"\1", b"\1xy"], ids=["version only", "three bytes"])
def test_a_sealed_row_that_is_too_short_is_refused(what: str, body: bytes) -> None:
    with pytest.raises(Corrupt):
        DECODERS[what](records.seal(body))


def test_a_group_whose_name_is_longer_than_its_row_is_refused() -> None:
    with pytest.raises(Corrupt):
        decode_group(records.seal(b"\1" + b"\xff" * 40))


def test_a_journal_row_that_has_fewer_events_than_it_says_is_refused() -> None:
    for version in (1, 2):
        header = journal_records._pack_journal(version, 0, 3, 1, 5)
        for rest in (b"", b"x" * 7, b"x" * journal_records.EVENT_BYTES):
            with pytest.raises(Corrupt, match="cut short"):
                records.decode_journal(records.seal(header + rest), 9)
    with pytest.raises(Corrupt):
        records.decode_journal_header(b"\1" * 5)
    with pytest.raises(Corrupt):
        records.decode_journal_header(b"\x09" * 60)


def test_a_job_row_that_names_a_group_and_has_none_is_refused() -> None:
    row, _ = records.encode_job(5, b"payload", b"key", b"")
    value = records.seal(b"\2" + row[1:-4])
    with pytest.raises(Corrupt):
        records.decode_job(value, JOB)
    with pytest.raises(Corrupt):
        job_records.job_group(value[:-1] + b"\0", JOB)
    with pytest.raises(Corrupt):
        job_records.job_group(b"\2", JOB)
    assert job_records.job_group(row, JOB) == b""


def test_headers_that_cannot_be_read_are_told_with_their_job() -> None:
    assert records.decode_headers(b"", JOB) == {}
    with pytest.raises(Corrupt) as told:
        records.decode_headers(b"\xc1", JOB)
    assert told.value.job_id == JOB.hex()


def test_a_damaged_state_keeps_its_bytes_when_it_gets_another_last_event() -> None:
    state = records.StateRecord(records.V1, 1, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 77, bytes(16))
    value = records.encode_state(state)
    assert records.decode_state(with_last_event(value, 1234), JOB) == state._replace(last_event=1234)
    for broken in (value[:-1], value[:-1] + bytes([value[-1] ^ 1]), b""):
        assert with_last_event(broken, 1234) == broken


# ── the drivers' errors ──────────────────────────────────────────────────────────────────────────────────────────────

ROCKSDB: dict[str, type[TenureError]] = {
    "Corruption: block checksum mismatch": Corrupt,
    "Bad table magic number": Corrupt,
    "IO error: No space left on device": Unavailable,
    "DB instance has been closed": StoreClosed,
    "IO error: Input/output error": Unavailable,
}


@pytest.mark.parametrize("text", ROCKSDB)
def test_errors_of_rocksdb_by_their_text(text: str) -> None:
    found = rocksdb_opening.translated(Exception(text))
    assert type(found) is ROCKSDB[text]
    assert rocksdb_opening.translated(found) is found


LMDB: dict[str, tuple[lmdb.Error, type[TenureError]]] = {
    "a damaged page": (lmdb.CorruptedError("page"), Corrupt),
    "a walk that met damage": (lmdb.BadTxnError("walk"), Corrupt),
    "a long key": (lmdb.BadValsizeError("key"), InvalidArgument),
    "no reader slots": (lmdb.ReadersFullError("slots"), Unavailable),
    "a failed meta page": (lmdb.PanicError("meta"), Unavailable),
    "closed": (lmdb.Error("Attempt to operate on closed/deleted/dropped object."), StoreClosed),
    "anything else": (lmdb.Error("?"), Unavailable),
}


@pytest.mark.parametrize("what", LMDB)
def test_errors_of_lmdb_by_their_class(what: str) -> None:
    error, expected = LMDB[what]
    assert type(lmdb_reader.translated(error)) is expected
