"""Records: decoding inverts encoding, and one flipped bit anywhere raises `Corrupt`, never gives another value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.errors import Corrupt
from tenure.model.retry import Backoff, Policy
from tenure.storage import records
from tenure.storage.records import EventRecord, LeaseRecord, Notes, QueueRecord, StateRecord
from tenure.storage.records.states import STATE_ALIKE, alike_states

JOB = bytes(range(16))
LEASE = bytes(range(16, 32))

u8, u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
ids = st.binary(min_size=16, max_size=16)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
maybe = st.none() | texts
seconds = st.floats(0, 1e9, allow_nan=False)

states = st.builds(
    StateRecord, st.just(1), u8, u8, u8, u8, u32, u32, u32, u64, u64, u64, u64, u64, ids
)  # fmt: skip
workers = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=16)
backoffs = st.builds(Backoff, st.sampled_from(["fixed", "linear", "exponential"]), seconds, seconds, seconds)
policies = st.builds(
    Policy, u32, seconds, backoffs, st.booleans(), seconds, seconds, seconds, st.none() | u32
)  # fmt: skip
events = st.builds(
    EventRecord, u8, u8, u8, u8, u32, ids, ids, u64, u32, u32, u64, u64, st.just(0), st.just(0)
)  # fmt: skip


def packed(event: EventRecord) -> bytes:
    return (
        records.pack_event_head(*event[:5])
        + event.job
        + event.lease
        + records.pack_event_middle(event.token, event.attempt, event.max_attempts, event.at_ms, event.previous)
        + records.pack_event_text(event.text_at, event.text_bytes)
    )


# ── what is written is read back ─────────────────────────────────────────────────────────────────────────────────────


@given(states)
def test_states(state: StateRecord) -> None:
    value = records.encode_state(state)
    assert len(value) == records.STATE_BYTES
    assert records.decode_state(value, JOB) == state


@given(u64, st.binary(max_size=200), st.binary(max_size=40), st.dictionaries(texts, texts, max_size=3))
def test_jobs(created: int, payload: bytes, key: bytes, headers: dict[str, str]) -> None:
    raw_headers = records.encode_headers(headers)
    value, parts = records.encode_job(created, payload, key, raw_headers)
    assert parts == []
    job = records.decode_job(value, JOB)
    assert (job.created_at_ms, job.parts, job.key, job.payload, job.payload_bytes) == (
        created, 0, key, payload, len(payload),
    )  # fmt: skip
    assert records.decode_headers(job.headers, JOB) == headers


@given(st.lists(states, min_size=1, max_size=5), st.data())
def test_many_states_at_once_are_as_one_by_one(made: list[StateRecord], data: st.DataObject) -> None:
    values: list[Any] = [records.encode_state(state) for state in made]
    assert records.state_rows(values) == made == records.decode_states(values, [JOB] * len(made))
    assert values == records.seal_states(*zip(*made, strict=True))
    index = data.draw(st.integers(0, len(made) - 1))
    for bad in (
        None,
        Corrupt("a bad block"),
        values[index][:-1],
        flipped(values[index], data),
        records.encode_state(made[index]._replace(version=2)),
    ):
        values[index] = bad
        assert records.state_rows(values) is None
        found = records.decode_states(values, [JOB] * len(made))
        assert found[:index] + found[index + 1 :] == made[:index] + made[index + 1 :]
        assert found[index] is None if bad is None else isinstance(found[index], Corrupt)


@given(st.integers(0, 300), st.lists(u64, min_size=1, max_size=5), st.data())
def test_many_jobs_at_once_are_as_one_by_one(size: int, times: list[int], data: st.DataObject) -> None:
    payloads = [data.draw(st.binary(min_size=size, max_size=size)) for _ in times]
    values: list[Any] = [records.encode_plain_job(*each) for each in zip(times, payloads, strict=True)]
    jobs = [JOB] * len(times)
    assert records.job_rows(values) == records.decode_jobs(values, jobs) != []
    index = data.draw(st.integers(0, len(times) - 1))
    for bad in (None, Corrupt("a bad block"), b"", values[index][:-1], flipped(values[index], data)):
        damaged = [*values[:index], bad, *values[index + 1 :]]
        assert records.job_rows(damaged) is None
        assert isinstance(records.decode_jobs(damaged, jobs)[index], Corrupt)
    keyed, _ = records.encode_job(1, b"", b"k" * size, b"")
    assert size == 0 or records.job_rows([keyed, *values]) is None, "a job with a key is not plain"


def flipped(value: bytes, data: st.DataObject) -> bytes:
    at = data.draw(st.integers(0, len(value) - 1))
    return value[:at] + bytes([value[at] ^ 1 << data.draw(st.integers(0, 7))]) + value[at + 1 :]


@settings(max_examples=30)
@given(st.integers(-2, 2), st.integers(1, 3), st.binary(max_size=8))
def test_jobs_in_parts(off: int, parts: int, key: bytes) -> None:
    size = parts * records.PART_BYTES + off
    payload = bytes(range(256)) * (size // 256) + b"!" * (size % 256)
    value, further = records.encode_job(1, payload, key, b"")
    assert len(value) < 100_000
    assert all(len(part) < 100_000 for part in further)
    job = records.decode_job(value, JOB)
    assert (job.parts, job.key, job.payload_bytes) == (len(further), key, size)
    assert records.join_parts(job.payload, further, job.payload_bytes, JOB) == payload


@given(maybe, st.none() | st.floats(0, 1), maybe, st.none() | st.binary(max_size=50), u32)
def test_notes(
    error: str | None, progress: float | None, note: str | None, result: bytes | None, result_bytes: int
) -> None:
    notes = Notes(error, progress, note, result, result_bytes)
    assert records.decode_struct(Notes, records.encode_struct(notes), "notes") == notes


@given(u32, texts, texts, policies, st.booleans())
def test_queues(number: int, tenant: str, queue: str, policy: Policy, paused: bool) -> None:
    record = QueueRecord(number, tenant, queue, policy, paused)
    assert records.decode_struct(QueueRecord, records.encode_struct(record), "a queue") == record


@given(u64, u64, u32, u32, u32, ids, workers)
def test_leases(until: int, granted: int, given_: int, open_: int, lost: int, claim: bytes, worker: str) -> None:
    record = LeaseRecord(1, until, granted, given_, open_, lost, claim, worker.encode().ljust(64, b"\0"))
    read = records.decode_lease(records.encode_lease(record), LEASE)
    assert read == record
    assert read.worker_name == worker


@given(st.lists(st.tuples(ids, u64), max_size=20))
def test_the_jobs_of_a_lease(jobs: list[tuple[bytes, int]]) -> None:
    row = records.encode_lease_jobs([job for job, _ in jobs], [token for _, token in jobs])
    assert records.decode_lease_jobs(row, LEASE) == jobs


@given(st.lists(ids, max_size=20), u64)
def test_the_jobs_of_a_lease_with_one_token(jobs: list[bytes], token: int) -> None:
    row = records.encode_lease_jobs(jobs, [token] * len(jobs))
    assert records.decode_lease_jobs(row, LEASE) == [(job, token) for job in jobs]


@given(ids, ids, st.booleans())
def test_claims(lease: bytes, asked: bytes, expired: bool) -> None:
    assert records.decode_claim(records.encode_claim(lease, asked, expired)) == (1, lease, asked, expired)


@given(ids, ids, u64)
def test_dedup(job: bytes, digest: bytes, until: int) -> None:
    assert records.decode_dedup(records.encode_dedup(job, digest, until)) == (1, job, digest, until)


@given(st.integers(-(2**63), 2**63 - 1))
def test_counts(count: int) -> None:
    value = records.encode_count(count)
    assert len(value) == records.COUNT_BYTES
    assert records.decode_count(value) == count


def test_a_missing_counter_is_zero() -> None:
    assert records.decode_count(None) == 0


@given(u64, u64, st.lists(events, max_size=8), st.binary(max_size=60))
def test_journal_rows(first: int, time_ms: int, written: list[EventRecord], tail: bytes) -> None:
    value = records.encode_journal(first, time_ms, [packed(event) for event in written], tail)
    row = records.decode_journal(value, 1)
    assert (row.header, row.events, row.tail) == ((len(written), first, time_ms), written, tail)
    assert records.decode_journal_header(value) == row.header
    assert all(len(packed(event)) == records.EVENT_BYTES for event in written)


@given(u64, u64, events, st.lists(ids, min_size=1, max_size=8))
def test_journal_rows_of_events_alike(first: int, time_ms: int, one: EventRecord, jobs: list[bytes]) -> None:
    """They decode to the same events as a row of version 1, in a fifth of the bytes."""
    alike = one._replace(text_at=0, text_bytes=0)
    every = [alike._replace(job=job) for job in jobs]
    value = records.encode_alike_row(first, time_ms, packed(alike._replace(job=bytes(16))), b"".join(jobs))
    row = records.decode_journal(value, 1)
    assert (row.header, row.events, row.tail) == ((len(jobs), first, time_ms), every, b"")
    assert records.decode_journal_header(value) == row.header
    assert records.alike_events(packed(one._replace(text_at=0, text_bytes=0)), b"".join(jobs)) == b"".join(
        map(packed, every)
    )
    assert len(value) == 20 + 80 + 16 * len(jobs) + 4
    moved = records.decode_journal(records.rebase_journal(value, 7, 8, lambda ref: ref ^ 1), 1)
    assert (moved.header.first_number, moved.header.time_ms) == (7, 8)
    assert {event.previous for event in moved.events} == {alike.previous and alike.previous ^ 1}


@given(st.lists(texts, min_size=1, max_size=5))
def test_texts_of_events(texts: list[str]) -> None:
    tail = b""
    written = []
    for text in texts:
        raw = text.encode()
        written.append(EventRecord(11, 2, 0, 0, 1, JOB, LEASE, 1, 1, 3, 0, 0, len(tail), len(raw)))
        tail += raw
    row = records.decode_journal(records.encode_journal(1, 1, [packed(event) for event in written], tail), 1)
    assert [row.text(event).decode() for event in row.events] == texts


@given(st.integers(0, 2**54 - 1), st.integers(0, 1023))
def test_references_of_events(commit: int, index: int) -> None:
    assert records.split_ref(records.event_ref(commit, index)) == (commit, index)
    assert records.EVENTS_A_ROW <= 1 << records.REF_BITS


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Kind(NamedTuple):
    value: bytes
    decode: Callable[[bytes], Any]


_STATE = StateRecord(1, 2, 5, 0, 6, 1, 3, 0, 7, 1_800_000_000_000, 0, 0, 1025, LEASE)
_EVENT = EventRecord(11, 2, 5, 0, 1, JOB, LEASE, 7, 1, 3, 1_800_000_030_000, 1024, 0, 2)
KINDS = {
    "state": Kind(records.encode_state(_STATE), lambda value: records.decode_state(value, JOB)),
    "job": Kind(
        records.encode_job(1, b"payload", b"key", records.encode_headers({"trace": "1"}))[0],
        lambda value: records.decode_job(value, JOB),
    ),
    "empty job": Kind(records.encode_job(1, b"", b"", b"")[0], lambda value: records.decode_job(value, JOB)),
    "part": Kind(records.split_parts(b"0123456789" * 3, 0)[0], lambda value: records.join_parts(b"", [value], 30, JOB)),
    "notes": Kind(
        records.encode_struct(Notes("boom", 0.5, "half", b"result", 6)),
        lambda value: records.decode_struct(Notes, value, "its notes", JOB),
    ),
    "queue": Kind(
        records.encode_struct(QueueRecord(1, "acme", "emails", Policy())),
        lambda value: records.decode_struct(QueueRecord, value, "a queue"),
    ),
    "clock": Kind(
        records.encode_struct(records.ClockRecord("boot", 17)),
        lambda value: records.decode_struct(records.ClockRecord, value, "the clock"),
    ),
    "consumer": Kind(
        records.encode_struct(records.ConsumerRecord(3, 17)),
        lambda value: records.decode_struct(records.ConsumerRecord, value, "a consumer"),
    ),
    "number": Kind(
        records.encode_struct(records.NumberRecord(3)),
        lambda value: records.decode_struct(records.NumberRecord, value, "a number"),
    ),
    "lease": Kind(
        records.encode_lease(records.new_lease(2, 1, 3, JOB, "w1")), lambda value: records.decode_lease(value, LEASE)
    ),
    "lease jobs": Kind(
        records.encode_lease_jobs([JOB, LEASE], [1, 2]), lambda value: records.decode_lease_jobs(value, LEASE)
    ),
    "claim": Kind(records.encode_claim(LEASE, JOB), records.decode_claim),
    "dedup": Kind(records.encode_dedup(JOB, LEASE, 17), records.decode_dedup),
    "count": Kind(records.encode_count(17), records.decode_count),
    "journal": Kind(
        records.encode_journal(5, 17, [packed(_EVENT)], b"w1"), lambda value: records.decode_journal(value, 1)
    ),
    "journal of events alike": Kind(
        records.encode_alike_row(5, 17, packed(_EVENT), JOB + LEASE), lambda value: records.decode_journal(value, 1)
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_a_good_value_is_read(kind: str) -> None:
    value, decode = KINDS[kind]
    decode(value)


@every_kind
def test_every_flipped_bit_is_found(kind: str) -> None:
    value, decode = KINDS[kind]
    for at in range(len(value) * 8):
        flipped = bytearray(value)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(Corrupt):
            decode(bytes(flipped))


@every_kind
def test_every_changed_byte_is_found(kind: str) -> None:
    value, decode = KINDS[kind]
    for at in range(len(value)):
        for other in {0x00, 0xFF, value[at] ^ 0xFF, (value[at] + 1) % 256} - {value[at]}:
            with pytest.raises(Corrupt):
                decode(value[:at] + bytes((other,)) + value[at + 1 :])


@every_kind
def test_every_cut_and_every_extra_byte_is_found(kind: str) -> None:
    value, decode = KINDS[kind]
    for size in range(len(value)):
        with pytest.raises(Corrupt):
            decode(value[:size])
    for extra in (b"\0", b"\xff", value):
        with pytest.raises(Corrupt):
            decode(value + extra)


@every_kind
@given(noise=st.binary(max_size=200))
def test_random_bytes_are_never_decoded(kind: str, noise: bytes) -> None:
    with pytest.raises(Corrupt):
        KINDS[kind].decode(noise)


@every_kind
def test_a_later_version_is_refused_and_said_so(kind: str) -> None:
    if kind == "count":
        pytest.skip("a counter has no version: engines add to it in place")
    value, decode = KINDS[kind]
    with pytest.raises(Corrupt):
        decode(records.seal(b"\x7f" + value[1:-4]))


@pytest.mark.parametrize("kind", ["state", "job", "part", "notes"])
def test_damage_names_its_job(kind: str) -> None:
    value, decode = KINDS[kind]
    with pytest.raises(Corrupt) as damage:
        decode(value[:-1] + bytes((value[-1] ^ 1,)))
    assert damage.value.job_id == JOB.hex()


def test_a_missing_part_is_found() -> None:
    _, further = records.encode_job(1, bytes(3 * records.PART_BYTES), b"", b"")
    first = bytes(records.PART_BYTES)
    total = 3 * records.PART_BYTES
    for parts in ([further[0], None], [None, further[1]], further[:1], [*further, further[1]]):
        with pytest.raises(Corrupt):
            records.join_parts(first, parts, total, JOB)


def test_groups_of_a_bulk_load():
    names, members = [b"acme", b"g" * 128, b"z"], [2, 0, 0, 1]
    raw = records.encode_load_groups(names, members)
    assert records.decode_load_groups(raw) == [names[place] for place in members]
    for end in (0, 3, 4, len(raw) - 1):
        with pytest.raises(Corrupt):
            records.decode_load_groups(raw[:end])


def test_states_alike_across_the_border_of_two_journal_rows_have_their_own_checksums() -> None:
    border = records.event_ref(8, 0)
    refs = range(border - 3, border + 3)
    state = _STATE
    alike = records.encode_state(state)[:STATE_ALIKE]
    found = alike_states(alike, state.lease, refs)
    assert found == [records.encode_state(state._replace(last_event=ref)) for ref in refs]
