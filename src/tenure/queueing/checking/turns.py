"""The turn index: every queue that has a job to give has a place, and every place its row in the order or in `due`."""

from __future__ import annotations

from tenure.errors import Corrupt
from tenure.model.lifecycle import State
from tenure.queueing.checking.survey import Fault, Survey
from tenure.queueing.queue_turns import queue_sub, tenant_sub
from tenure.queueing.turns import Status
from tenure.storage import keyspace, records
from tenure.storage.engine import get_each
from tenure.storage.keyspace import DUE, TURNS, Due

#: How a row of the order begins; the others are places.
_ORDER = 0


def check(survey: Survey) -> None:
    """Requires: the jobs were recounted."""
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


def _check_order(survey: Survey, key: bytes, scope: bytes, sub: bytes, virtual_time: int) -> None:
    raw = get_each(survey.reader, TURNS, [keyspace.turn_place(scope, sub)])[0]
    if isinstance(raw, Corrupt):
        return  # noted with its own row
    try:
        place = None if raw is None else records.decode_turn(raw)
    except Corrupt:
        return
    if place is None or place.status != Status.ACTIVE or place.virtual_time != virtual_time:
        survey.add(Fault("index", "a stray row in turns: its place is another", "delete_row", space=TURNS, key=key))


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
        number = keyspace.queue_of(sub)
        there = survey.reader.get(DUE, keyspace.due(Due.TURN, place.at_ms, number, keyspace.QUEUE_TURN)) is not None
    else:
        there = True
    if not there:
        survey.add(Fault("index", "a place in turns has no row that serves it", "delete_row", space=TURNS, key=key))


def _check_queue(survey: Survey, number: int) -> None:
    """A queue with waiting jobs has a place; if it is in the order, so is its tenant."""
    queue = survey.queues[number]
    sub = queue_sub(queue)
    try:
        raw = survey.reader.get(TURNS, keyspace.turn_place(sub.scope, sub.name))
        place = None if raw is None else records.decode_turn(raw)
        tenant = survey.reader.get(TURNS, keyspace.turn_place(keyspace.TENANT_TURNS, tenant_sub(sub.scope).name))
    except Corrupt:
        return  # noted with its own row
    if place is None or (place.status == Status.ACTIVE and tenant is None):
        survey.add(Fault("index", "it has jobs, and no place among those that take turns", "offer_turn", number))
