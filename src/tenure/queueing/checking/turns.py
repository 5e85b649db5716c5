"""The order of turns: every queue with waiting jobs has a place, and every place a row in the order or in `due`."""

from __future__ import annotations

from tenure.errors import Corrupt
from tenure.model.lifecycle import State
from tenure.queueing.checking.survey import Fault, Survey
from tenure.queueing.claim import next_job
from tenure.queueing.groups import FORGET, REVISE
from tenure.queueing.queue_turns import queue_sub, tenant_sub
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.turns import Status, Sub
from tenure.storage import keyspace, records
from tenure.storage.engine import get_each
from tenure.storage.keyspace import GROUP_READY, GROUPS, TURNS
from tenure.storage.records import TurnRecord

#: The first byte of a row of the order; other rows are places.
_ORDER = 0


def check(survey: Survey) -> None:
    """Requires: the check of jobs has run."""
    for rows in survey.rows(TURNS):
        for key, value in rows:
            if key[0] == _ORDER:
                virtual_time, sub = keyspace.split_turn(key)
                _check_order(survey, key, key[1:9], sub, virtual_time)
            else:
                _check_place(survey, key, value)
    for number, queue in survey.queues.items():
        if survey.recount[number, State.WAITING] and not queue.deleted:
            _check_queue(survey, number)


def _check_order(survey: Survey, key: bytes, scope: bytes, sub: bytes, number: int) -> None:
    """A row of the order has the same virtual time as its place; a parked group's row has the same time."""
    queue = keyspace.split_parked_groups(scope)
    parked = queue is not None
    if queue is not None:
        if sub[0] in (FORGET, REVISE):
            return  # rows of idle groups, and of groups that the next claims have to check
        scope, sub = keyspace.group_turns(queue, sub[0]), sub[1:]
    try:
        place = _place(survey, scope, sub)
    except Corrupt:
        return  # the damaged row is a fault of its own
    wanted = (Status.PARKED, number) if parked else (Status.ACTIVE, number)
    if place is None or (place.status, place.at_ms if parked else place.virtual_time) != wanted:
        survey.add(Fault("index", "a stray row in turns: its place is another", "delete_row", space=TURNS, key=key))


def _place(survey: Survey, scope: bytes, sub: bytes) -> TurnRecord | None:
    """The place of a sub-queue; a group's place is in the group's row. Raises Corrupt."""
    of_group = keyspace.split_group_turns(scope) if sub else None
    if of_group is None:
        space, key = TURNS, keyspace.turn_place(scope, sub)
    else:
        space, key = GROUPS, keyspace.of_queue(of_group[0], sub)
    raw = get_each(survey.reader, space, [key])[0]
    if isinstance(raw, Corrupt):
        raise raw
    if of_group is None:
        return None if raw is None else records.decode_turn(raw)
    if raw is not None:
        return records.decode_group(raw).places.get(of_group[1])
    if survey.reader.keys(GROUP_READY, *keyspace.group_range(of_group[0], sub), 1):
        raise Corrupt("the group has no row")  # a fault of the group, whose repair uses this row of the order
    return None


def _check_place(survey: Survey, key: bytes, value: bytes) -> None:
    scope, sub = key[1:9], key[9:]
    try:
        place = records.decode_turn(value)
    except Corrupt as exc:
        survey.add(Fault("damaged", exc.detail, "delete_row", space=TURNS, key=key))
        return
    if place.status == Status.ACTIVE:
        there = survey.reader.get(TURNS, keyspace.turn(scope, place.virtual_time, sub)) is not None
    elif place.status == Status.PARKED:
        parked = Sub(scope, sub, (keyspace.queue_of(sub), keyspace.QUEUE_TURN)).parked_row(place.at_ms)
        there = survey.reader.get(*parked) is not None
    else:
        there = True
    if not there:
        survey.add(Fault("index", "a place in turns has no row that serves it", "delete_row", space=TURNS, key=key))


def _check_queue(survey: Survey, number: int) -> None:
    """A queue whose waiting jobs can be claimed, now or later, has a place; if it is in the order, so is its tenant."""
    queue = survey.queues[number]
    sub = queue_sub(queue)
    try:
        raw = survey.reader.get(TURNS, keyspace.turn_place(sub.scope, sub.name))
        place = None if raw is None else records.decode_turn(raw)
        tenant = survey.reader.get(TURNS, keyspace.turn_place(keyspace.TENANT_TURNS, tenant_sub(sub.scope).name))
        if place is None and next_job(survey.reader, queue) is None:
            return  # its groups are at their limits: the verb that lets a job go gives it its place
    except Corrupt:
        return  # the damaged row is a fault of its own
    if place is None or (place.status == Status.ACTIVE and tenant is None):
        survey.add(Fault("index", "it has jobs, and no place among those that take turns", "offer_turn", number))
    elif place.status == Status.BLOCKED and not queue.paused and _has_room(survey, queue):
        survey.add(Fault("index", "it has jobs, and is kept from its turn by no limit", "offer_turn", number))


def _has_room(survey: Survey, queue: RegisteredQueue) -> bool:
    most = queue.policy.max_leased
    return most is None or survey.recount[queue.number, State.LEASED] < most
