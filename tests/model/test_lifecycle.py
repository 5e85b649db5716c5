"""The transition table has exactly the documented transitions."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import InvalidArgument
from tenure.model.lifecycle import SHOWN, TERMINAL, TRANSITIONS, Change, Reason, State, allowed, checked_shown, shown

GONE, WAITING, LEASED, DONE, DEAD, BLOCKED = State

#: Every documented transition.
ARROWS = {
    (Change.ENQUEUED, GONE, WAITING),
    (Change.ENQUEUED, GONE, BLOCKED),  # after=…
    (Change.UNBLOCKED, BLOCKED, WAITING),
    (Change.SIGNALLED, WAITING, WAITING),
    (Change.CANCELLED, BLOCKED, GONE),
    (Change.TTL_PASSED, BLOCKED, GONE),
    (Change.PURGED, BLOCKED, GONE),
    (Change.CLAIMED, WAITING, LEASED),
    (Change.DONE, LEASED, DONE),
    (Change.DONE, LEASED, GONE),  # retention 0: removed at once
    (Change.RETRIED, LEASED, WAITING),
    (Change.RELEASED, LEASED, WAITING),
    (Change.EXPIRED, LEASED, WAITING),
    (Change.DIED, LEASED, DEAD),  # fail, or attempts = max by nack or expiry
    (Change.REPLAYED, DEAD, WAITING),
    (Change.RETIRED, DONE, GONE),
    (Change.CANCELLED, WAITING, GONE),
    (Change.CANCELLED, LEASED, GONE),
    (Change.TTL_PASSED, WAITING, GONE),
    (Change.PURGED, WAITING, GONE),
    (Change.PURGED, DONE, GONE),
    (Change.PURGED, DEAD, GONE),
    (Change.RESTORED, GONE, WAITING),  # from another store or an archive
    (Change.RESTORED, GONE, BLOCKED),
    (Change.RESTORED, GONE, DONE),
    (Change.RESTORED, GONE, DEAD),
}
OF_QUEUES = {Change.QUEUE_CREATED, Change.QUEUE_CONFIGURED, Change.QUEUE_PAUSED, Change.QUEUE_RESUMED,
             Change.QUEUE_DELETED}  # fmt: skip
OF_LEASES = {Change.EXTENDED}
#: A repair may change any state to any other.
OF_REPAIRS = {Change.REPAIRED}


@pytest.mark.parametrize("change", Change)
def test_the_table_is_the_picture(change: Change) -> None:
    for before, after in product(State, State):
        expected = (change, before, after) in ARROWS or change in OF_REPAIRS
        assert allowed(change, before, after) == expected, (change.name, before.name, after.name)


def test_every_change_of_a_job_is_in_the_table_and_no_other() -> None:
    assert set(TRANSITIONS) == {change for change, _, _ in ARROWS} | OF_REPAIRS
    assert set(Change) == set(TRANSITIONS) | OF_QUEUES | OF_LEASES


def test_what_has_ended_comes_back_only_by_replay() -> None:
    for change, before, after in ARROWS:
        if before in TERMINAL and after is not GONE:
            assert change is Change.REPLAYED
    assert {DONE, DEAD} == TERMINAL


def test_only_a_lease_leads_to_an_end() -> None:
    """A job is settled only by the holder of its live lease."""
    ends = {(change, before) for change, before, after in ARROWS if after in TERMINAL}
    assert {before for change, before in ends if change is not Change.RESTORED} == {LEASED}


@given(st.sampled_from(State), st.integers(0, 100), st.integers(0, 100))
def test_waiting_is_shown_as_scheduled_or_ready(state: State, visible: int, now: int) -> None:
    word = shown(state, visible, now)
    if state is WAITING:
        assert word == ("ready" if visible <= now else "scheduled")
    else:
        assert word == state.name.lower()
    assert word in (*SHOWN, "gone")


def test_words_for_states() -> None:
    assert SHOWN == ("scheduled", "ready", "leased", "done", "dead", "blocked")
    for word in SHOWN:
        assert checked_shown(word) == word
    for wrong in ("waiting", "gone", "", "READY", None, 1, State.DONE, ["ready"]):
        with pytest.raises(InvalidArgument):
            checked_shown(wrong)


def test_numbers_on_disk_do_not_move() -> None:
    assert {state.name: int(state) for state in State} == {
        "GONE": 0,
        "WAITING": 1,
        "LEASED": 2,
        "DONE": 3,
        "DEAD": 4,
        "BLOCKED": 5,
    }
    assert {reason.name: int(reason) for reason in Reason} == {"NONE": 0, "MAX_ATTEMPTS": 1, "FAILED": 2}
    assert {change.name: int(change) for change in Change} == {
        "QUEUE_CREATED": 1, "QUEUE_CONFIGURED": 2, "QUEUE_PAUSED": 3, "QUEUE_RESUMED": 4, "QUEUE_DELETED": 5, "ENQUEUED": 10, "CLAIMED": 11,
        "EXTENDED": 12, "DONE": 13, "RETRIED": 14, "DIED": 15, "RELEASED": 16, "EXPIRED": 17, "CANCELLED": 18,
        "REPLAYED": 19, "TTL_PASSED": 20, "PURGED": 21, "RETIRED": 22, "REPAIRED": 23, "RESTORED": 24, "UNBLOCKED": 25, "SIGNALLED": 26,
    }  # fmt: skip
