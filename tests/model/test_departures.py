"""Each way in which a journal can depart from the specification, by a journal that departs in this way only."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.model.event import Event
from tenure.model.specification import Trace, departure
from tenure.model.tokens import TOKEN_COUNT

#: A whole life of job j: enqueued at 10, claimed at 20 until 50. Tests add one event, or change one of these.
LIFE: tuple[dict[str, Any], ...] = (
    {"type": "queue_created", "time_ms": 5},
    {"type": "enqueued", "job": "j", "state": "waiting", "time_ms": 10, "at_ms": 10},
    {"type": "claimed", "job": "j", "state": "leased", "time_ms": 20, "at_ms": 50, "lease": "l", "token": 1, "attempt": 1},
)  # fmt: skip
DONE: dict[str, Any] = {
    "type": "done", "job": "j", "state": "done", "time_ms": 30, "lease": "l", "token": 1, "attempt": 1
}  # fmt: skip


def journal(*told: dict[str, Any]) -> list[Event]:
    """Events from short descriptions: numbers and links are made, where a description does not give its own."""
    last: dict[str, tuple[int, int]] = {}
    made = []
    for number, given in enumerate(told, 1):
        job = given.get("job")
        fields: dict[str, Any] = {
            "commit": number, "index": 0, "number": number, "tenant": "default", "queue": "q", "job_id": job,
            "lease_id": given.get("lease"), "max_attempts": 3 if job else 0, "previous": last.get(job or ""),
        }  # fmt: skip
        fields |= {name: value for name, value in given.items() if name not in ("job", "lease")}
        made.append(Event(**fields))
        if job:
            last[job] = number, 0
    return made


def why(*told: dict[str, Any]) -> str | None:
    """How the last of these events departs; those before it are all allowed."""
    events = journal(*told)
    found = departure(events)
    if found is not None:
        assert found.event == events[-1], str(found)
    return None if found is None else found.why


def test_a_whole_life_is_allowed() -> None:
    assert why(*LIFE, DONE) is None
    retired = {"type": "retired", "job": "j", "state": "gone", "time_ms": 90, "token": 1, "attempt": 1}
    assert why(*LIFE, DONE, retired) is None


WRONG: dict[str, tuple[dict[str, Any], ...]] = {
    "the specification knows no vanished": (*LIFE, DONE | {"type": "vanished"}),
    "it names no job": (*LIFE, DONE | {"job": None}),
    "its number follows 3": (*LIFE, DONE | {"number": 5}),
    "it is earlier than the event before it, by 1 ms": (*LIFE, DONE | {"time_ms": 19}),
    "it leads to waiting": (*LIFE, DONE | {"state": "waiting"}),
    "the job is gone": (*LIFE, DONE | {"job": "k"}),
    "the job is done": (*LIFE, DONE, DONE | {"time_ms": 31}),
    "it names an event before it that is not there": (LIFE[0], LIFE[1] | {"previous": (1, 0)}),
    "it names (2, 0) as the event before it, which is (3, 0)": (*LIFE, DONE | {"previous": (2, 0)}),
    "it changes what was fixed when the job was enqueued": (*LIFE, DONE | {"priority": 5}),
    "its token is 2 after 1": (*LIFE, DONE | {"token": 2}),
    "its token is 2 after 0": (*LIFE[:2], LIFE[2] | {"token": 2}),
    "its attempt is 2 after 1": (*LIFE, DONE | {"attempt": 2}),
    "it is delivery 4 of at most 3": (
        LIFE[0], {"type": "restored", "job": "j", "state": "waiting", "time_ms": 10, "at_ms": 10, "attempt": 3},
        LIFE[2] | {"attempt": 4},
    ),
    "it had no attempt left": (
        LIFE[0], {"type": "restored", "job": "j", "state": "waiting", "time_ms": 10, "at_ms": 10, "attempt": 2},
        LIFE[2] | {"attempt": 3},
        {"type": "retried", "job": "j", "state": "waiting", "time_ms": 30, "at_ms": 30, "lease": "l", "token": 1, "attempt": 3},
    ),
    "it had attempts left": (*LIFE, DONE | {"type": "died", "state": "dead", "reason": "max_attempts"}),
    "the job is not visible for another 1 ms": (LIFE[0], LIFE[1] | {"at_ms": 21}, LIFE[2]),
    "it makes the job visible before now": (LIFE[0], LIFE[1] | {"at_ms": 9}),
    "it moves the job to an earlier time": (
        *LIFE, DONE | {"type": "released", "state": "waiting", "attempt": 0, "at_ms": 29},
    ),
    "it names another lease than the one that holds the job": (*LIFE, DONE | {"lease": "m"}),
    "its lease ended 0 ms before": (*LIFE, DONE | {"time_ms": 50}),
    "its lease lasts 1 ms more": (
        *LIFE, DONE | {"type": "expired", "state": "waiting", "time_ms": 49, "at_ms": 49},
    ),
    "it grants no lease": (*LIFE[:2], LIFE[2] | {"lease": None}),
    "its lease ends before it begins": (*LIFE[:2], LIFE[2] | {"at_ms": 20}),
    "its queue is paused": (*LIFE[:2], {"type": "queue_paused", "time_ms": 15}, LIFE[2]),
    "its lease was granted before": (
        *LIFE, {"type": "enqueued", "job": "k", "state": "waiting", "time_ms": 25, "at_ms": 25},
        LIFE[2] | {"job": "k", "time_ms": 25},
    ),
    "it extends a lease that nobody holds": (*LIFE, {"type": "extended", "time_ms": 30, "lease": "m", "at_ms": 90}),
    "it does not say until when": (*LIFE, {"type": "extended", "time_ms": 30, "lease": "l"}),
    "it extends a lease that ended 0 ms before": (*LIFE, {"type": "extended", "time_ms": 50, "lease": "l", "at_ms": 90}),
    "it does not extend its lease": (*LIFE, {"type": "extended", "time_ms": 30, "lease": "l", "at_ms": 50}),
}  # fmt: skip


@pytest.mark.parametrize("said", WRONG)
def test_a_departure_is_told(said: str) -> None:
    assert why(*WRONG[said]) == said


ALLOWED: dict[str, tuple[dict[str, Any], ...]] = {
    "settled in the last millisecond": (*LIFE, DONE | {"time_ms": 49}),
    "expired in the first millisecond": (
        *LIFE, DONE | {"type": "expired", "state": "waiting", "time_ms": 50, "at_ms": 50},
    ),
    "claimed in its first visible millisecond": (LIFE[0], LIFE[1] | {"at_ms": 20}, LIFE[2]),
    "two jobs under one lease": (
        *LIFE[:2], {"type": "enqueued", "job": "k", "state": "waiting", "time_ms": 20, "at_ms": 20}, LIFE[2],
        LIFE[2] | {"job": "k"}, DONE, DONE | {"job": "k"},
    ),
    "extended, and settled behind its old end": (
        *LIFE, {"type": "extended", "time_ms": 30, "lease": "l", "at_ms": 90}, DONE | {"time_ms": 89},
    ),
    "resumed before the claim": (
        *LIFE[:2], {"type": "queue_paused", "time_ms": 15}, {"type": "queue_resumed", "time_ms": 16}, LIFE[2],
    ),
    "released to where it was": (*LIFE, DONE | {"type": "released", "state": "waiting", "attempt": 0, "at_ms": 10}),
    "snoozed": (*LIFE, DONE | {"type": "released", "state": "waiting", "attempt": 0, "at_ms": 30}),
    "failed with attempts left": (*LIFE, DONE | {"type": "died", "state": "dead", "reason": "failed"}),
    "a token of the next epoch": (*LIFE[:2], LIFE[2] | {"token": TOKEN_COUNT + 7}),
    "repaired, whatever it was": (
        *LIFE, {"type": "repaired", "job": "j", "state": "waiting", "time_ms": 30, "at_ms": 3, "token": 9, "priority": 4, "previous": None},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ALLOWED)
def test_a_step_at_the_border_is_allowed(case: str) -> None:
    assert why(*ALLOWED[case]) is None


def test_what_was_trimmed_is_taken_as_its_first_event_tells_it() -> None:
    """The journal begins behind the claim: then the job is checked from there on."""
    _, _, claimed, done, again = journal(*LIFE, DONE, DONE | {"time_ms": 31})
    assert departure([claimed, done]) is None
    assert departure([done]) is None
    found = departure([done, again])
    assert found is not None
    assert found.why == "the job is done"


def test_an_extension_of_a_trimmed_lease_is_allowed() -> None:
    extended = {"type": "extended", "time_ms": 30, "lease": "l", "at_ms": 90}
    assert departure(journal(*LIFE, extended)[3:]) is None


def test_where_events_get_their_time_afterwards_ends_are_not_judged() -> None:
    """A store whose writers do not take turns tells of an ack after its lease's end, which was decided before it."""
    trace = Trace(timed=False)
    assert [trace.take(event) for event in journal(*LIFE, DONE | {"time_ms": 60})] == [None] * 4


def test_parts_of_journals_have_gaps() -> None:
    """Not dense: numbers are of no concern, nor is what is not told."""
    life = journal(*LIFE, DONE)
    assert departure([life[1], life[3]], dense=False) is not None
    assert departure([life[1], life[2], life[3]], dense=False) is None
    assert departure([life[3]], dense=False) is None


def test_of_several_journals_only_a_jobs_own_times_are_in_order() -> None:
    """Partitions of a queue are read page by page: an event of one may be earlier than what was read of another."""
    assert departure(journal(*LIFE, LIFE[1] | {"job": "k"}, DONE), dense=False) is None
    found = departure(journal(*LIFE, DONE | {"time_ms": 19}), dense=False)
    assert found is not None
    assert found.why == "it is earlier than the job's event before it, by 1 ms"
