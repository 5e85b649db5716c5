"""What an exception means for its job."""

from __future__ import annotations

import pytest

from tenure import Backoff, Dead, InvalidArgument, Retry, Snooze
from tenure.model.job import MAX_ERROR_CHARS
from tenure.worker.outcomes import FailureRules, error_text


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as exc:
        return exc


@pytest.mark.parametrize(
    ("rules", "error", "verb", "delay"),
    [
        (FailureRules(), ValueError(), "nack", None),
        (FailureRules(backoff=Backoff.fixed(3)), ValueError(), "nack", 3000),
        (FailureRules(backoff=Backoff.exponential(1, jitter="none")), ValueError(), "nack", 4000),
        (FailureRules(dead_on=(ValueError,)), ValueError(), "fail", None),
        (FailureRules(dead_on=(ValueError,)), KeyError(), "nack", None),
        (FailureRules(retry_on=(OSError,)), ConnectionError(), "nack", None),
        (FailureRules(retry_on=(OSError,)), ValueError(), "fail", None),
        (FailureRules(retry_on=(OSError,), dead_on=(FileNotFoundError,)), FileNotFoundError(), "fail", None),
        (FailureRules(retry_on=()), ValueError(), "fail", None),
        (FailureRules(retry_on=()), Retry(after=2), "nack", 2000),
        (FailureRules(backoff=Backoff.fixed(3)), Retry(), "nack", 3000),
        (FailureRules(backoff=Backoff.fixed(3)), Retry(after=0), "nack", 0),
        (FailureRules(), Dead("no"), "fail", None),
        (FailureRules(), Snooze(60), "release", 60_000),
        (FailureRules(retry_on=(KeyError,)), Snooze(1), "release", 1_000),
        (FailureRules(), SystemExit(1), "nack", None),
        (FailureRules(), KeyboardInterrupt(), "nack", None),
    ],
)
def test_the_rules(rules, error, verb, delay):
    outcome = rules.outcome(raised(error), attempt=3)
    assert (outcome.verb, outcome.delay_ms) == (verb, delay)


def test_the_error_is_told_in_one_line_and_then_where_it_came_from():
    text = error_text(raised(ValueError("bad address")))
    assert text.startswith("ValueError: bad address\n\nTraceback")
    assert "in raised" in text
    assert error_text(raised(Dead("the account is closed"))) == "the account is closed"
    assert error_text(raised(Retry("rate limited"))) == "rate limited"


def test_a_long_error_keeps_its_beginning_and_its_end():
    text = error_text(raised(ValueError("x" * 50_000)))
    assert len(text) <= MAX_ERROR_CHARS
    assert text.startswith("ValueError: xxx")
    assert text.endswith("xxx")
    assert "(cut)" in text


def test_what_is_no_unicode_does_not_cost_the_verdict():
    assert "\\udcff" in error_text(raised(ValueError("\udcff")))


def test_retry_takes_a_duration():
    with pytest.raises(InvalidArgument):
        Retry(after=-1)
