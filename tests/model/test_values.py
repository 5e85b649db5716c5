"""Durations, times, names and receipts: valid values are accepted, and all others are refused."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenure.errors import InvalidArgument
from tenure.model.durations import MAX_MS, as_datetime, duration_ms, moment_ms
from tenure.model.job import NewJob
from tenure.model.lease import Delivery, Proof, proof_of, receipt
from tenure.model.names import NamesInTurn, QueueName, checked, queue_name, short_text
from tenure.model.request import job_request

NOT_NUMBERS: list[object] = [None, "1", b"1", True, False, Decimal(1), Fraction(1), 1j, [1], {}]
NOT_USABLE = [math.nan, math.inf, -math.inf, 2**63, 2.0**63, -(2**63), 10**400, 1e300]

# ── durations ────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, MAX_MS))
@example(68_352_636_797)
def test_whole_milliseconds_are_kept(ms: int) -> None:
    assert duration_ms("lease", timedelta(milliseconds=ms)) == ms
    if ms < 2**32:  # a larger float of seconds is not exact to the millisecond
        assert duration_ms("lease", ms / 1000) == ms


@given(st.floats(0, 1e8))
@example(0.0005)
@example(16.1)
def test_a_duration_is_rounded_up_and_never_by_a_whole_millisecond(seconds: float) -> None:
    exact = Fraction(seconds) * 1000
    ms = duration_ms("delay", seconds)
    assert exact - Fraction(1, 10**3) <= ms < exact + 1  # to the microsecond


@given(st.integers(0, 10**8))
def test_whole_seconds(seconds: int) -> None:
    assert duration_ms("delay", seconds) == seconds * 1000
    assert duration_ms("delay", timedelta(seconds=seconds)) == seconds * 1000


@pytest.mark.parametrize("value", [*NOT_NUMBERS, *NOT_USABLE, timedelta.max, timedelta.min], ids=repr)
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument) as refused:
        duration_ms("lease", value)
    assert "lease" in str(refused.value)


@pytest.mark.parametrize("value", [-1, -0.001, timedelta(seconds=-1), timedelta(milliseconds=-1)])
def test_a_negative_duration_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument):
        duration_ms("delay", value)


@pytest.mark.parametrize("value", [0, 0.0, -0.0, timedelta(0)])
def test_nothing_is_a_delay_but_no_lease(value: object) -> None:
    assert duration_ms("delay", value) == 0
    with pytest.raises(InvalidArgument):
        duration_ms("lease", value, minimum_ms=1)


def test_the_shortest_and_the_longest() -> None:
    assert duration_ms("lease", timedelta(microseconds=1), minimum_ms=1) == 1
    assert duration_ms("lease", MAX_MS / 1000) == MAX_MS
    with pytest.raises(InvalidArgument):
        duration_ms("lease", MAX_MS / 1000 + 1)


# ── moments ──────────────────────────────────────────────────────────────────────────────────────────────────────────

zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.integers(0, 4 * 10**12), zones)
@example(2**40, UTC)
def test_moments_of_any_zone(ms: int, zone: timezone) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    assert moment_ms("at", moment) == ms
    assert moment_ms("at", moment.astimezone(zone)) == ms
    assert moment_ms("at", ms / 1000) == ms
    assert as_datetime(ms) == moment


@pytest.mark.parametrize(
    "value",
    [*NOT_NUMBERS, *NOT_USABLE, -1, -0.001, datetime(1969, 12, 31, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)],
    ids=repr,
)
def test_what_is_no_moment_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument) as refused:
        moment_ms("at", value)
    assert "at" in str(refused.value)


def test_a_moment_without_a_zone_is_refused_and_told_why() -> None:
    with pytest.raises(InvalidArgument, match="time zone"):
        moment_ms("at", datetime(2027, 1, 1))  # noqa: DTZ001 - the point


@given(st.floats(allow_nan=True, allow_infinity=True) | st.integers() | st.booleans() | st.text(max_size=3))
def test_any_number_is_usable_or_refused(value: object) -> None:
    for check in (duration_ms, moment_ms):
        try:
            ms = check("it", value)
        except InvalidArgument:
            continue
        assert type(ms) is int
        assert 0 <= ms <= 2 * MAX_MS


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [-1, 10, 1.0, True, False, "5", None, 2**63, math.nan], ids=repr)
def test_what_is_no_priority_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument):
        job_request(NewJob(b"x", priority=value))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "5", 2**63, 1_000_001, math.nan], ids=repr)
def test_what_is_no_number_of_attempts_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument):
        job_request(NewJob(b"x", max_attempts=value))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, "text", 17, ["x"], bytearray, NewJob], ids=repr)
def test_what_is_no_job_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument):
        job_request(value)


@given(st.binary(max_size=100))
def test_bytes_of_any_kind_are_a_job(payload: bytes) -> None:
    for given_ in (payload, bytearray(payload), memoryview(payload), NewJob(payload)):
        request = job_request(given_)
        assert type(request.payload) is bytes
        assert (request.payload, request.priority, request.delay_ms) == (payload, 0, 0)


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True))
def test_good_names(name: str) -> None:
    assert checked("queue", name) == name
    assert queue_name(name) == QueueName("default", name)
    assert queue_name("q", name) == QueueName(name, "q")


@pytest.mark.parametrize(
    "name",
    [
        "", "a" * 65, "A", "a b", "a/b", "a\n", "\na", ".a", "-a", "_a", "é", "a\0", "ａ", "a:b", " a", "a ", None, 17,
        b"a", True, ["a"],
    ],
    ids=repr,
)  # fmt: skip
def test_bad_names(name: object) -> None:
    checks = [lambda: checked("queue", name), lambda: queue_name(name)]
    if name not in ("a" * 65, "A", "a:b"):  # valid names of tenants
        checks.append(lambda: queue_name("q", name))
    for check in checks:
        with pytest.raises(InvalidArgument):
            check()


@given(st.text(max_size=70))
def test_a_name_is_taken_by_its_letters_alone(text: str) -> None:
    good = (
        1 <= len(text) <= 64
        and text[0] not in "._-"
        and all(c in "abcdefghijklmnopqrstuvwxyz0123456789._-" for c in text)
    )
    try:
        checked("queue", text)
    except InvalidArgument:
        assert not good
    else:
        assert good


@pytest.mark.parametrize(
    "text", ["", None, 17, b"key", "\ud800", "x" * 513, "é" * 257], ids=lambda text: repr(text)[:12]
)
def test_bad_keys(text: object) -> None:
    with pytest.raises(InvalidArgument):
        short_text("key", text, 512)


@pytest.mark.parametrize("text", ["k", "x" * 512, "é" * 256, "\0", " "], ids=lambda text: repr(text)[:12])
def test_good_keys(text: str) -> None:
    assert short_text("key", text, 512) == text


# ── receipts ─────────────────────────────────────────────────────────────────────────────────────────────────────────

ids = st.binary(min_size=16, max_size=16)
tokens = st.integers(0, 2**64 - 1)
JOB, LEASE = "0" * 32, "f" * 32


@given(ids, ids, tokens)
def test_a_receipt_carries_the_proof(job: bytes, lease: bytes, token: int) -> None:
    written = receipt(job, lease, token)
    assert proof_of(written) == Proof(job, lease, token)
    delivery = Delivery(QueueName("default", "q"), job, lease, token, b"", 1, 3, 0, 0, {})
    assert delivery.receipt == written
    assert proof_of(delivery) == delivery.proof == Proof(job, lease, token)


@pytest.mark.parametrize(
    "wrong",
    [
        "", ".", "..", JOB, f"{JOB}.{LEASE}", f"{JOB}.{LEASE}.", f"{JOB}.{LEASE}.1.", f"{JOB}.{LEASE}.1.1",
        f"{JOB[1:]}.{LEASE}.1", f"{JOB}0.{LEASE}.1", f"{JOB}.{LEASE[1:]}.1", f"{JOB}.{LEASE}.{'1' * 17}",
        f"{JOB}.{LEASE}.g", f"{'g' * 32}.{LEASE}.1", f"{JOB}.{'g' * 32}.1", f"{JOB}:{LEASE}:1",
        f"{JOB}.{LEASE}.-1", f"{JOB}.{LEASE}.+1", f"{JOB}.{LEASE}.0x1", f"{JOB}.{LEASE}.1_0", f"{JOB}.{LEASE}. 1",
        f"{JOB}.{LEASE}.1\n", f"{JOB}.{LEASE}.１", f"{JOB[2:]}  .{LEASE}.1", f"{JOB}.{LEASE[2:]}  .1",
        f" {JOB}.{LEASE}.1", None, 17, b"", f"{JOB}.{LEASE}.1".encode(), ("job", "lease", 1),
    ],
    ids=repr,
)  # fmt: skip
def test_malformed_receipts_are_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgument):
        proof_of(wrong)


@given(
    st.text("0f.xF_+- ", min_size=0, max_size=70) | st.from_regex(r"[0-9a-f ]{32}\.[0-9a-f ]{32}\.[-+_0-9a-fx ]{1,17}")
)
def test_whatever_is_read_as_a_receipt_is_whole(text: str) -> None:
    try:
        proof = proof_of(text)
    except InvalidArgument:
        return
    assert (len(proof.job), len(proof.lease)) == (16, 16)
    assert 0 <= proof.token < 2**64
    head, _, token = text.rpartition(".")
    assert f"{head.lower()}.{int(token, 16):x}" == receipt(*proof)


def test_names_in_turn_are_a_sequence_that_begins_anywhere() -> None:
    names = [QueueName("t", f"q{n}") for n in range(5)]
    for first in range(5):
        turned = NamesInTurn(names).beginning(first)
        wanted = names[first:] + names[:first]
        assert (list(turned), len(turned), turned[0], turned[-1]) == (wanted, 5, wanted[0], wanted[-1])
        assert [turned[at] for at in range(5)] == wanted
        assert list(turned[1:3]) == wanted[1:3]
        assert names[2] in turned
        others = {names[1]: 0, names[4]: 0}
        assert turned.besides(others, "one") == [name for name in wanted if name not in others]
        assert turned.besides({}, "other") == wanted
        with pytest.raises(IndexError):
            turned[5]
