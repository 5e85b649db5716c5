"""Backoffs and policies: how long a failed job waits, and when it is dead."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenure.errors import InvalidArgument
from tenure.model.durations import MAX_MS
from tenure.model.retry import Backoff, Policy, after_expiry, after_failure

rolls = st.floats(0, 1, exclude_max=True)
attempts = st.integers(1, 1_000_000)
milliseconds = st.integers(0, 10**9)
kinds = st.sampled_from(["fixed", "linear", "exponential"])
jitters = st.sampled_from(["none", "equal", "full"])
backoffs = st.builds(
    lambda kind, base, factor, cap, jitter: Backoff(kind, base / 1000, factor, cap / 1000, jitter).checked(),
    kinds,
    milliseconds,
    st.floats(1, 1000),
    milliseconds,
    jitters,
)


@given(backoffs, attempts, rolls)
def test_a_delay_is_within_its_bounds(backoff: Backoff, attempt: int, roll: float) -> None:
    plain = Backoff(backoff.kind, backoff.base, backoff.factor, backoff.cap, "none").delay_ms(attempt, 0)
    assert 0 <= plain <= round(backoff.cap * 1000) <= MAX_MS
    delay = backoff.delay_ms(attempt, roll)
    low = {"none": plain, "equal": plain // 2, "full": 0}[backoff.jitter]
    assert type(delay) is int
    assert low <= delay <= plain


@given(backoffs, attempts, rolls, rolls)
def test_jitter_is_the_rolls_and_nothing_elses(backoff: Backoff, attempt: int, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert backoff.delay_ms(attempt, low) <= backoff.delay_ms(attempt, high)
    assert backoff.delay_ms(attempt, one) == backoff.delay_ms(attempt, one)
    if backoff.jitter == "none":
        assert backoff.delay_ms(attempt, low) == backoff.delay_ms(attempt, high)


@given(backoffs, attempts)
def test_a_later_attempt_never_waits_less(backoff: Backoff, attempt: int) -> None:
    assert backoff.delay_ms(attempt, 0.5) <= backoff.delay_ms(attempt + 1, 0.5)


@given(milliseconds, milliseconds, attempts)
@example(16_100, 16_100, 1)  # 16.1 * 1000 is a little more than 16100
@example(100, 900_000, 3)
def test_without_jitter_a_delay_is_exact(base: int, cap: int, attempt: int) -> None:
    assert Backoff.fixed(base / 1000).delay_ms(attempt, 0.9) == base
    assert Backoff.linear(base / 1000, cap=cap / 1000).delay_ms(attempt, 0.9) == min(base * attempt, cap)
    doubling = Backoff.exponential(base / 1000, 2, cap / 1000, "none")
    few = min(attempt, 90)
    assert doubling.delay_ms(few, 0.9) == min(base * 2 ** (few - 1), cap)


def test_full_jitter_reaches_from_nothing_to_all() -> None:
    backoff = Backoff.fixed(10, jitter="full")
    assert [backoff.delay_ms(1, roll) for roll in (0, 0.25, 0.5)] == [0, 2500, 5000]
    assert 9990 < backoff.delay_ms(1, 0.9999) <= 10_000


def test_equal_jitter_keeps_the_first_half() -> None:
    backoff = Backoff.fixed(10, jitter="equal")
    assert [backoff.delay_ms(1, roll) for roll in (0, 0.5)] == [5000, 7500]


def test_patient_waits_1_5_and_25_minutes() -> None:
    assert [Backoff.patient().delay_ms(n, 0) for n in (1, 2, 3, 4)] == [60_000, 300_000, 1_500_000, 1_500_000]


def test_the_default_is_exponential_with_full_jitter() -> None:
    assert Policy().backoff == Backoff.exponential(base=5, factor=2, cap=900, jitter="full")


UNHEARD_OF: Any = "sometimes"
BAD = [math.nan, math.inf, -1, 2**63]


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_bad_backoffs_are_refused(bad: float) -> None:
    for make in (
        lambda: Backoff.fixed(bad),
        lambda: Backoff.linear(bad),
        lambda: Backoff.linear(1, cap=bad),
        lambda: Backoff.exponential(base=bad),
        lambda: Backoff.exponential(cap=bad),
        lambda: Backoff.exponential(factor=bad),
        lambda: Policy(backoff=Backoff("fixed", bad)).checked(),
    ):
        with pytest.raises(InvalidArgument):
            make()


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0}, {"max_attempts": True}, {"max_attempts": 1.5}, {"max_attempts": 2**63}, {"lease": 0},
        {"lease": -1}, {"lease": math.nan}, {"lease": math.inf}, {"lease": 2**63}, {"lease": "30"}, {"lease": True},
        {"retention": -1}, {"retention": math.nan}, {"result_retention": -1}, {"dedup_window": math.inf},
        {"dedup_window": None}, {"max_waiting": 0}, {"max_waiting": -1}, {"max_waiting": 1.0}, {"backoff": None},
        {"backoff": 5}, {"backoff": Backoff(UNHEARD_OF)}, {"backoff": Backoff(jitter=UNHEARD_OF)},
        {"backoff": Backoff(factor=0.5)}, {"backoff_on_expiry": 1}, {"backoff_on_expiry": None},
    ],
    ids=repr,
)  # fmt: skip
def test_bad_policies_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        Policy(**wrong).checked()  # type: ignore[arg-type]


def test_a_policys_times_may_be_timedeltas() -> None:
    policy = Policy(lease=timedelta(minutes=1), retention=timedelta(hours=1))  # type: ignore[arg-type]
    assert policy.checked() == Policy(lease=60, retention=3600)


# ── the verdict ──────────────────────────────────────────────────────────────────────────────────────────────────────


@given(backoffs, st.integers(1, 10), st.integers(1, 10), milliseconds, st.none() | milliseconds, rolls)
def test_attempts_decide_and_then_the_delay(
    backoff: Backoff, attempt: int, most: int, now: int, delay: int | None, roll: float
) -> None:
    verdict = after_failure(Policy(backoff=backoff), attempt, most, now, delay, roll).retry_at_ms
    if attempt >= most:
        assert verdict is None
    else:
        assert verdict == now + (backoff.delay_ms(attempt, roll) if delay is None else delay)


@given(backoffs, st.integers(1, 10), st.integers(1, 10), milliseconds, rolls, st.booleans())
def test_expiry_counts_as_a_failure(
    backoff: Backoff, attempt: int, most: int, now: int, roll: float, patient: bool
) -> None:
    policy = Policy(backoff=backoff, backoff_on_expiry=patient)
    expired = after_expiry(policy, attempt, most, now, roll)
    assert expired == after_failure(policy, attempt, most, now, None if patient else 0, roll)
