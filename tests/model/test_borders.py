"""Limits of the model's values: the last accepted value and the first refused one."""

from __future__ import annotations

from datetime import datetime
from itertools import islice

import msgspec
import pytest

import tenure
from tenure import Backoff, GroupPolicy, NewJob, Policy
from tenure.errors import InvalidArgument, TooLarge
from tenure.model.ids import IdSource
from tenure.model.job import MAX_HEADERS_BYTES
from tenure.model.job_checksum import Checksum, job_sum
from tenure.model.lease import AnyQueues, Proof, proof_of, proofs_of
from tenure.model.lifecycle import Reason
from tenure.model.names import QueueName
from tenure.model.rate import Rate
from tenure.model.request import (
    JobRequest,
    ReplayRequest,
    alike_parts,
    all_plain,
    checked_headers,
    job_request,
    job_requests,
)
from tenure.model.retry import MAX_ATTEMPTS, MAX_NAMED_GROUPS
from tenure.model.schedule import MAX_NAME_BYTES, MAX_SCHEDULE_BYTES, Schedule, Ticks
from tenure.model.step import MAX_STEPS, MAX_STEPS_BYTES, steps_limit_error
from tenure.model.write import Refusal, accepted_indexes, checked_write_id, owner_of, piece_name

MINUTE = 60_000


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


# ── names, ids ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_queue_of_the_default_tenant_is_shown_without_it() -> None:
    assert str(QueueName("default", "emails")) == "emails"
    assert str(QueueName("acme", "emails")) == "acme/emails"


def test_the_first_ids_of_many_milliseconds_differ_in_every_random_bit() -> None:
    """The 12 bits after time and version, and the bits after the variant."""
    made = [int.from_bytes(IdSource().one(now_ms), "big") for now_ms in range(1, 400)]
    for bit in [*range(64, 76), *range(40, 54)]:
        assert {number >> bit & 1 for number in made} == {0, 1}, f"bit {bit} never changes"


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_headers_have_a_size_up_to_which_they_are_taken() -> None:
    fits = {"n": "v" * (MAX_HEADERS_BYTES - 1)}
    assert checked_headers(fits) == fits
    with pytest.raises(TooLarge):
        checked_headers({"n": "v" * MAX_HEADERS_BYTES})
    with pytest.raises(InvalidArgument, match="Unicode"):
        checked_headers({"n": "\ud800"})


@pytest.mark.parametrize(
    "job", [NewJob(b"x", delay=5), NewJob(b"x", priority=1), NewJob(b"x", key="k"), NewJob(b"x", ttl=9)]
)
def test_a_job_with_anything_but_a_payload_is_not_plain(job: NewJob) -> None:
    assert all_plain(job_requests([b"x", b"y"]))
    assert all_plain(job_requests([NewJob(b"x"), NewJob(b"y")]))
    assert not all_plain(job_requests([NewJob(b"x"), job]))


@pytest.mark.parametrize(
    ("job", "advice"),
    [("text", r"write text\.encode\(\)"), ({"a": 1}, "json.dumps"), ([1], "json.dumps"), (5, "encode it first")],
)
def test_a_payload_that_is_not_bytes_is_told_how_to_become_some(job: object, advice: str) -> None:
    for given in (job, NewJob(job)):  # type: ignore[arg-type]  # that is what is tested
        with pytest.raises(InvalidArgument, match=f"bytes.*, not {type(job).__name__}: .*{advice}"):
            job_request(given)


def test_plain_requests_are_a_sequence() -> None:
    plain = job_requests([b"a", b"b", b"c"])
    assert [request.payload for request in plain] == [b"a", b"b", b"c"]
    assert list(plain[1:]) == list(plain)[1:]
    assert plain[2] == JobRequest(b"c")
    assert len(plain) == 3


def test_a_replay_covers_the_dead_from_since_on_and_before_before() -> None:
    asked = ReplayRequest(reason="failed", since_ms=10, before_ms=20)
    covered = [ended for ended in range(8, 22) if asked.covers(Reason.FAILED, ended)]
    assert covered == list(range(10, 20))
    assert not asked.covers(Reason.MAX_ATTEMPTS, 15)
    assert ReplayRequest().covers(Reason.MAX_ATTEMPTS, 0)


# ── waits ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_exponential_wait_that_overflows_is_the_longest() -> None:
    backoff = Backoff.exponential(base=1, factor=10, cap=50, jitter="none")
    assert backoff.delay_ms(10_000, 0.0) == 50_000
    assert msgspec.structs.replace(backoff, base=0.0).delay_ms(10_000, 0.0) == 0


@pytest.mark.parametrize(
    "wrong", [Rate(0), Rate(True), Rate(1, per=0), Rate(1, burst=0), Rate(1, burst=True), Rate(1e9, per=1e-3)]
)
def test_a_group_has_no_rate_that_is_none(wrong: Rate) -> None:
    with pytest.raises(InvalidArgument, match="rate"):
        GroupPolicy(rate=wrong).checked()
    with pytest.raises(InvalidArgument, match="rate"):
        Policy(group=GroupPolicy(rate=wrong)).checked()


@pytest.mark.parametrize(
    "wrong", [{"groups": []}, {"groups": {"g": 1}}, {"group": 1}, {"backoff": 1}, {"backoff_on_expiry": 1}]
)
def test_a_policy_of_wrong_parts_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        Policy(**wrong).checked()  # type: ignore[arg-type]  # that is what is tested


def test_a_policy_names_a_bounded_number_of_groups() -> None:
    Policy(groups={f"g{n}": GroupPolicy() for n in range(MAX_NAMED_GROUPS)}).checked()
    with pytest.raises(InvalidArgument, match="at most 1,000"):
        Policy(groups={f"g{n}": GroupPolicy() for n in range(MAX_NAMED_GROUPS + 1)}).checked()


def test_an_error_message_does_not_repeat_a_megabyte() -> None:
    with pytest.raises(InvalidArgument) as refused:
        job_request(NewJob(b"x", group="g" * (1 << 20)))
    assert len(str(refused.value)) < 500
    assert "1,048,578 characters" in str(refused.value)


@pytest.mark.parametrize("most", [1, 3, 9])
def test_jobs_of_a_call_by_priority_and_group(most: int) -> None:
    given = [NewJob(b"%d" % n, priority=n % 2, group="g" if n % 3 == 0 else None) for n in range(12)]
    parts = alike_parts(job_requests(given), most)
    if most < 4:
        assert parts is None
        return
    assert parts is not None
    assert [(part.priority, part.group) for part in parts] == [(0, "g"), (1, None), (0, None), (1, "g")]
    assert sorted(place for part in parts for place in part.places) == list(range(12))
    assert all(
        (given[place].priority, given[place].group) == (part.priority, part.group)
        for part in parts
        for place in part.places
    )


@pytest.mark.parametrize("more", [{"headers": {"a": "b"}}, {"delay": 1}, {"key": "k"}, {"ttl": 9}, {"max_attempts": 3}])
def test_jobs_with_other_options_have_no_parts(more: dict[str, object]) -> None:
    given = [NewJob(b"x"), NewJob(b"y", **more)]  # type: ignore[arg-type]  # that is what is tested
    assert alike_parts(job_requests(given), 9) is None


# ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_queue_that_has_no_weight_of_its_own_weighs_one() -> None:
    some = AnyQueues(weights={"acme": 3, "acme/emails": 5})
    assert some.weight("acme") == 3
    assert some.weight("other") == 1
    assert some.weight(QueueName("acme", "emails")) == 5
    assert some.weight(QueueName("acme", "other")) == 1
    assert AnyQueues().weight("acme") == 1


def test_many_receipts_are_read_as_one_by_one() -> None:
    jobs, leases = [bytes([n]) * 16 for n in range(4)], [b"\xaa" * 16, b"\xaa" * 16, b"\xbb" * 16, b"\xbb" * 16]
    receipts = [
        f"{job.hex()}.{lease.hex()}.{token:x}"
        for job, lease, token in zip(jobs, leases, (1, 15, 16, 1 << 40), strict=True)
    ]
    proofs = proofs_of(receipts)
    assert proofs == [proof_of(receipt) for receipt in receipts]
    assert proofs[1] == Proof(jobs[1], leases[1], 15)
    for wrong in ("", "x" * 67, f"{'  ' * 16}.{leases[0].hex()}.1", f"{jobs[0].hex()}.{'zz' * 16}.1"):
        with pytest.raises(InvalidArgument):
            proofs_of([wrong])


# ── staged writes, steps ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_write_belongs_to_the_tenant_that_its_id_begins_with() -> None:
    assert owner_of("acme/load-1") == "acme"
    assert owner_of("load-1") == ""


def test_what_is_no_id_of_a_write_is_refused() -> None:
    assert checked_write_id("x" * 200) == "x" * 200
    for wrong in ("", "x" * 201, "a\nb", 5):
        with pytest.raises(InvalidArgument):
            checked_write_id(wrong)


def test_pieces_have_names_that_are_safe_in_a_path() -> None:
    assert piece_name("part-0", 0) == "part-0.000000"
    assert piece_name("a" * 100, 999_999) == "a" * 100 + ".999999"
    for part, piece in (
        ("a" * 101, 0),
        ("", 0),
        ("..", 0),
        ("a..b", 0),
        ("a/b", 0),
        ("A", 0),
        ("a", -1),
        ("a", 1_000_000),
        (5, 0),
    ):
        with pytest.raises(InvalidArgument):
            piece_name(part, piece)


def test_refusals_name_jobs_of_their_chunk() -> None:
    assert accepted_indexes(3, []) == [0, 1, 2]
    assert accepted_indexes(3, [Refusal(1, "x")]) == [0, 2]
    for wrong in (Refusal(3, "x"), Refusal(-1, "x"), Refusal(0, "x" * 65)):
        with pytest.raises(InvalidArgument):
            accepted_indexes(3, [wrong])


def test_a_job_has_so_many_steps_of_so_many_bytes() -> None:
    assert steps_limit_error(MAX_STEPS, MAX_STEPS_BYTES) is None
    for count, size in ((MAX_STEPS + 1, 0), (0, MAX_STEPS_BYTES + 1)):
        assert isinstance(steps_limit_error(count, size), TooLarge)


# ── schedules ────────────────────────────────────────────────────────────────────────────────────────────────────────


def schedule(**given: object) -> Schedule:
    fields = {"name": "nightly", "tenant": "default", "queue": "q", "payload": b"x", "cron": "@daily", **given}
    return Schedule(**fields)  # type: ignore[arg-type]  # what is wrong is what is tested


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""}, {"name": "x" * (MAX_NAME_BYTES + 1)}, {"name": "a/b"}, {"tenant": "A B"}, {"queue": ""},
        {"payload": b"x" * (MAX_SCHEDULE_BYTES + 1)}, {"cron": "61 * * * *"}, {"cron": None}, {"every_ms": 5_000},
        {"cron": None, "every_ms": 999}, {"priority": 10}, {"max_attempts": 0}, {"max_attempts": MAX_ATTEMPTS + 1},
        {"tz": "Nowhere/None"}, {"missed": "sometimes"},
    ],
    ids=str,
)  # fmt: skip
def test_a_schedule_that_is_none_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        schedule(**wrong).checked()


def test_a_schedule_at_its_limits_is_taken() -> None:
    largest = schedule(
        name="x" * MAX_NAME_BYTES, payload=b"x" * MAX_SCHEDULE_BYTES, priority=9, max_attempts=MAX_ATTEMPTS
    )
    assert largest.checked().cron == "0 0 * * *"
    assert schedule(cron=None, every_ms=1_000).checked().every_ms == 1_000


def test_a_schedule_of_another_kind_has_another_revision() -> None:
    first = schedule()
    others = [
        schedule(payload=b"y"),
        schedule(queue="r"),
        schedule(cron="@hourly"),
        schedule(tz="Asia/Tokyo"),
        schedule(priority=1),
    ]
    assert len({first.revision, *(other.revision for other in others)}) == 6
    assert schedule(name="other", paused=True).revision == first.revision


def test_ticks_of_an_interval_are_counted_from_its_beginning() -> None:
    ticks = Ticks(None, 10_000, begin_ms=3_000)
    assert list(islice(ticks.after(0), 3)) == [13_000, 23_000, 33_000]
    assert ticks.next(13_000) == 23_000
    assert ticks.next(12_999) == 13_000


def test_an_hour_that_occurs_twice_and_one_that_does_not() -> None:
    ticks = Ticks("30 2 * * *", None, "Europe/Berlin")
    assert ticks.next(at("2026-03-29T00:00:00+01:00")) == at("2026-03-29T03:00:00+02:00")
    autumn = list(islice(ticks.after(at("2026-10-25T00:00:00+02:00")), 2))
    assert autumn == [at("2026-10-25T02:30:00+02:00"), at("2026-10-26T02:30:00+01:00")]
    assert ticks.local(autumn[0]) == "2026-10-25T02:30:00+02:00[Europe/Berlin]"


def test_an_expression_may_name_a_day_that_never_comes() -> None:
    with pytest.raises(InvalidArgument):
        Ticks("0 0 30 2 *", None)


def test_a_tick_that_was_missed_is_skipped_or_caught_up() -> None:
    skipping, catching = Ticks(None, MINUTE), Ticks(None, MINUTE, missed="catch_up")
    now = 10 * MINUTE + 5
    assert skipping.due(MINUTE, now) == ([10 * MINUTE], 11 * MINUTE)
    assert skipping.due(9 * MINUTE + 5, now)[0] == [9 * MINUTE + 5, 10 * MINUTE]  # exactly within the tolerance
    assert catching.due(8 * MINUTE, now) == ([8 * MINUTE, 9 * MINUTE, 10 * MINUTE], 11 * MINUTE)
    many, following = catching.due(MINUTE, 10_000 * MINUTE)
    assert len(many) == 501
    assert following == many[-1] + MINUTE


# ── checksums ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_checksum_covers_what_a_move_must_keep() -> None:
    with tenure.open("memory:", sweep=False) as store:
        queue = store.queue("q")
        job = queue.get(queue.enqueue(b"x", headers={"a": "b"}, group="g").id)
    assert job is not None
    first = job_sum(job)
    for change in (
        {"payload": b"y"},
        {"priority": 3},
        {"headers": {"a": "c"}},
        {"group": None},
        {"attempt": 1},
        {"token": 4},
        {"state": "done"},
    ):
        assert job_sum(msgspec.structs.replace(job, **change)) != first, change
    assert job_sum(msgspec.structs.replace(job, state="scheduled")) == first
    assert first < 2**60
    total = Checksum().with_job(job).with_job(job)
    assert (total.jobs, total.total) == (2, 2 * first)
    assert str(total) == f"2 jobs, {2 * first:x}"


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("the result", "the result is 1,001 bytes, over the limit of 1,000"),
        ("the headers", "the headers are 1,001 bytes, over the limit of 1,000"),
        ("the number of steps of a job", "the number of steps of a job is 1,001, over the limit of 1,000"),
    ],
)
def test_what_is_too_large_is_named_with_its_unit(what: str, says: str) -> None:
    assert str(TooLarge(what, 1001, 1000)) == says
