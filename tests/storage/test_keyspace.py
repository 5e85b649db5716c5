"""Keys sort like the tuples they encode, and every range contains exactly its keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tenure.storage import keyspace
from tenure.storage.keyspace import Counter, Due, Limit, Usage

queues = st.integers(0, 2**32 - 1) | st.integers(0, 3)
priorities = st.integers(0, 9)
times = st.integers(0, 2**64 - 2) | st.integers(0, 5)
ids = st.binary(min_size=16, max_size=16) | st.sampled_from([bytes(16), b"\xff" * 16])
kinds = st.sampled_from(Due)
names = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True)


def in_order(keys: list[bytes], tuples: list[tuple[object, ...]]) -> None:
    """Assert that sorting by key and sorting by tuple give the same order."""
    by_key = sorted(range(len(keys)), key=lambda n: (keys[n], n))
    by_tuple = sorted(range(len(keys)), key=lambda n: (tuples[n], n))
    assert by_key == by_tuple


@given(st.lists(st.tuples(queues, priorities, times, ids), max_size=12))
def test_ready_is_priority_then_time_then_job(rows: list[tuple[int, int, int, bytes]]) -> None:
    keys = [keyspace.ready(*row) for row in rows]
    in_order(keys, [(queue, -priority, time, job) for queue, priority, time, job in rows])
    assert [tuple(keyspace.split_ready(key)) for key in keys] == [(*row, 0) for row in rows]
    grouped = [keyspace.ready(*row, keyspace.GROUPED) for row in rows]
    assert [tuple(keyspace.split_ready(key)) for key in grouped] == [(*row, keyspace.GROUPED) for row in rows]
    assert all(key[4] > 9 for key in grouped), "not in the tiers of jobs without a group"
    assert [key[keyspace.READY_JOB] for key in keys] == [job for *_, job in rows]


@given(st.lists(st.tuples(kinds, times, queues, ids), max_size=12))
def test_due_is_kind_then_time(rows: list[tuple[Due, int, int, bytes]]) -> None:
    keys = [keyspace.due(*row) for row in rows]
    in_order(keys, list(rows))
    assert [tuple(keyspace.split_due(key)) for key in keys] == rows


@given(st.lists(st.tuples(queues, times, ids), max_size=12))
def test_done_and_dead_are_by_time(rows: list[tuple[int, int, bytes]]) -> None:
    keys = [keyspace.ended(*row) for row in rows]
    in_order(keys, list(rows))
    assert [keyspace.split_ended(key) for key in keys] == rows


@given(st.lists(st.tuples(queues, ids, st.integers(0, 0xFFFF)), max_size=12))
def test_parts_are_by_job_then_number(rows: list[tuple[int, bytes, int]]) -> None:
    in_order([keyspace.payload_part(*row) for row in rows], list(rows))


@given(st.lists(st.tuples(queues, ids), max_size=12))
def test_what_belongs_to_a_queue_is_by_queue(rows: list[tuple[int, bytes]]) -> None:
    keys = [keyspace.of_queue(*row) for row in rows]
    in_order(keys, list(rows))
    assert [keyspace.split_of_queue(key) for key in keys] == rows


@given(st.lists(st.integers(0, 2**64 - 1), max_size=12))
def test_the_journal_is_by_commit(commits: list[int]) -> None:
    keys = [keyspace.commit(commit) for commit in commits]
    in_order(keys, [(commit,) for commit in commits])
    assert [keyspace.split_commit(key) for key in keys] == commits


# ── ranges ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(queues, queues, ids, priorities, times)
def test_a_queues_range_is_its_own_rows(queue: int, other: int, job: bytes, priority: int, time: int) -> None:
    begin, end = keyspace.queue_range(queue)
    for key in (
        keyspace.of_queue(other, job),
        keyspace.ready(other, priority, time, job),
        keyspace.ended(other, time, job),
        keyspace.payload_part(other, job, 1),
        keyspace.counter(other, Counter.DEAD),
        keyspace.lost_job(other, job, job),
    ):
        assert (begin <= key < end) == (other == queue)
        assert key < keyspace.LAST


@given(queues, priorities, priorities, times, times, ids)
def test_ready_up_to_a_moment(queue: int, priority: int, other: int, until: int, time: int, job: bytes) -> None:
    key = keyspace.ready(queue, other, time, job)
    begin, middle = keyspace.ready_prefix(queue, priority), keyspace.ready_until(queue, priority, until)
    assert (begin <= key < middle) == (other == priority and time <= until)
    end = keyspace.ready_tier_end(queue, priority)
    assert (middle <= key < end) == (other == priority and time > until)


@given(kinds, kinds, times, times, queues, ids)
def test_due_up_to_a_moment(kind: Due, other: Due, until: int, time: int, queue: int, reference: bytes) -> None:
    key = keyspace.due(other, time, queue, reference)
    begin = keyspace.due_prefix(kind)
    assert (begin <= key < keyspace.due_until(kind, until)) == (other == kind and time <= until)
    assert (begin <= key < keyspace.due_end(kind)) == (other == kind)


@given(queues, times, times, ids)
def test_ended_from_a_moment(queue: int, since: int, time: int, job: bytes) -> None:
    assert (keyspace.ended(queue, time, job) >= keyspace.ended_from(queue, since)) == (time >= since)


@given(queues, ids, ids, ids)
def test_lost_jobs_of_a_lease(queue: int, lease: bytes, other: bytes, job: bytes) -> None:
    begin, end = keyspace.lost_range(queue, lease)
    assert (begin <= keyspace.lost_job(queue, other, job) < end) == (other == lease)
    assert not begin <= keyspace.of_queue(queue, lease) < end, "the lease's own row is not one of the lost jobs"


@given(queues, ids, ids, st.integers(1, 200), st.integers(1, 200), st.integers(0, 400))
def test_parts_of_a_payload(queue: int, job: bytes, other: bytes, first: int, count: int, part: int) -> None:
    begin, end = keyspace.payload_range(queue, job, first, count)
    inside = begin <= keyspace.payload_part(queue, other, part) < end
    assert inside == (other == job and first <= part < first + count)


@given(names, names, names, names)
def test_rows_of_queues_are_distinct(tenant: str, queue: str, other: str, name: str) -> None:
    key = keyspace.queue_row(other, name)
    assert (key == keyspace.queue_row(tenant, queue)) == ((other, name) == (tenant, queue))
    begin, end = keyspace.tenant_range(tenant)
    assert (begin <= key < end) == (other == tenant)
    assert key < keyspace.LAST


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_digests_stand_for_their_text(one: bytes, other: bytes) -> None:
    assert len(keyspace.digest(one)) == 16
    assert (keyspace.digest(one) == keyspace.digest(other)) == (one == other)


def test_numbers_on_disk_do_not_move() -> None:
    assert {kind.name: int(kind) for kind in Due} == {
        "LEASE": 1, "TTL": 2, "RETENTION": 3, "DEDUP": 4, "CLAIM": 5, "WRITE": 6, "REQUEST": 7, "TURN": 8,
    }  # fmt: skip
    assert {name.name: int(name) for name in Counter} == {
        "WAITING": 1, "LEASED": 2, "DONE": 3, "DEAD": 4, "ENQUEUED": 5, "REMOVED": 6, "BLOCKED": 10,
    }  # fmt: skip
    assert {kind.name: int(kind) for kind in Limit} == {
        "QUEUE_RATE": 1, "TENANT_RATE": 2, "TENANT_REQUESTS": 3,
    }  # fmt: skip
    assert {name.name: int(name) for name in Usage} == {"JOBS": 7, "BYTES": 8, "STORED": 9}
    assert keyspace.NAMES[:18] == (
        "meta", "queues", "jobs", "payload", "state", "notes", "ready", "leases", "lease_jobs", "claims", "due",
        "done", "dead", "dedup", "counters", "journal", "requests", "limits",
    )  # fmt: skip
