"""Compares counters with a recount, and checks conservation: every enqueued job is counted in some state or removed."""

from __future__ import annotations

from tenure.errors import Corrupt
from tenure.model.lifecycle import State
from tenure.queueing.checking.survey import Fault, Survey
from tenure.storage import keyspace, records
from tenure.storage.keyspace import Counter

RULES = ("counters", "conservation")

#: The counter that must equal how many jobs are in a state.
COUNTS = {
    Counter.WAITING: int(State.WAITING),
    Counter.LEASED: int(State.LEASED),
    Counter.DONE: int(State.DONE),
    Counter.DEAD: int(State.DEAD),
    Counter.BLOCKED: int(State.BLOCKED),
}


def check(survey: Survey) -> None:
    if keyspace.STATE in survey.unreadable:
        return
    for queue in sorted({queue for queue, _ in survey.recount} | set(survey.queues)):
        _check_queue(survey, queue)


def _check_queue(survey: Survey, queue: int) -> None:
    found = {name: _read(survey, queue, name) for name in Counter}
    # Jobs whose state cannot be read are in an unknown state: the recount may be too low by their number.
    unknown = sum(number == queue for number, _ in survey.unknown)
    alive = 0
    for name, state in COUNTS.items():
        recount = survey.recount[queue, state]
        alive += recount
        count = found[name]
        if isinstance(count, Corrupt):
            survey.add(_set(queue, name, recount, count.detail))
        elif not recount <= count <= recount + unknown:
            detail = f"counter {name.name.lower()} says {count}, and {recount} are there"
            survey.add(_add("counters", detail, queue, name, recount - count))
    enqueued, removed = found[Counter.ENQUEUED], found[Counter.REMOVED]
    if isinstance(enqueued, Corrupt):
        # Each of the two counters follows from the other.
        known = 0 if isinstance(removed, Corrupt) else removed
        survey.add(_set(queue, Counter.ENQUEUED, alive + known, enqueued.detail))
    if isinstance(removed, Corrupt):
        known = alive if isinstance(enqueued, Corrupt) else enqueued
        survey.add(_set(queue, Counter.REMOVED, known - alive, removed.detail))
    if isinstance(enqueued, int) and isinstance(removed, int):
        missing = enqueued - alive - removed
        if not 0 <= missing <= unknown:
            detail = f"{enqueued} were enqueued, and {alive + removed} are there or removed"
            # Too many enqueued: removals were not counted. Too few: enqueues were not.
            name, number = (Counter.REMOVED, missing) if missing > 0 else (Counter.ENQUEUED, -missing)
            survey.add(_add("conservation", detail, queue, name, number))


def _read(survey: Survey, queue: int, name: Counter) -> int | Corrupt:
    try:
        return records.decode_count(survey.reader.get(keyspace.COUNTERS, keyspace.counter(queue, name)))
    except Corrupt as exc:
        return exc


def _add(rule: str, detail: str, queue: int, name: Counter, delta: int) -> Fault:
    key = keyspace.counter(queue, name)
    return Fault(rule, detail, "add_counter", queue, space=keyspace.COUNTERS, key=key, number=delta)


def _set(queue: int, name: Counter, number: int, detail: str) -> Fault:
    key = keyspace.counter(queue, name)
    text = f"counter {name.name.lower()}: {detail}"
    return Fault("counters", text, "set_counter", queue, space=keyspace.COUNTERS, key=key, number=number)
