"""Groups: each group with jobs has a row with correct counts, and a turn for every priority of its jobs."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from typing import NamedTuple

from tenure.errors import Corrupt
from tenure.queueing import turns
from tenure.queueing.checking.survey import Fault, Survey
from tenure.queueing.groups import group_id, order_row
from tenure.queueing.turns import Status
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, get_each, iterate_keys
from tenure.storage.keyspace import GROUP_READY, GROUPS, TURNS
from tenure.storage.records import NO_PLACES, GroupRecord, TurnRecord

RULE = "groups"
_GROUP_ROW = 20
_TIERS = range(10)


class _Waiting(NamedTuple):
    """The waiting jobs of a group, from the rows of `group_ready`. `key`: its row in `groups`."""

    key: bytes
    #: Jobs by tier.
    tiers: Tally[int]


def check(survey: Survey) -> None:
    """Requires: the checks of jobs and of stray rows of `group_ready` have run."""
    if survey.unreadable & {keyspace.STATE, GROUP_READY, GROUPS} or survey.unknown or survey.damaged:
        for _ in survey.rows(GROUPS):
            pass  # read for the engine's count of rows; groups are recounted once the jobs are repaired
        return
    rows = ((key, value) for page in survey.rows(GROUPS) for key, value in page)
    waiting = _waiting(survey)
    held = iter(sorted(survey.group_leased))
    group, jobs, leased = next(rows, None), next(waiting, None), next(held, None)
    while group is not None or jobs is not None or leased is not None:
        key = min(each for each in (group and group[0], jobs and jobs.key, leased) if each is not None)
        value = group[1] if group is not None and group[0] == key else None
        tiers = jobs.tiers if jobs is not None and jobs.key == key else Tally()
        _check_group(survey, key, value, tiers, survey.group_leased[key])
        if value is not None:
            group = next(rows, None)
        if jobs is not None and jobs.key == key:
            jobs = next(waiting, None)
        if leased == key:
            leased = next(held, None)


def _waiting(survey: Survey) -> Iterator[_Waiting]:
    current = _Waiting(b"", Tally())
    for page in survey.rows(GROUP_READY, 5000):
        for key, _ in page:
            if key[:_GROUP_ROW] != current.key:
                if current.key:
                    yield current
                current = _Waiting(key[:_GROUP_ROW], Tally())
            current.tiers[key[_GROUP_ROW]] += 1
    if current.key:
        yield current


def _check_group(survey: Survey, key: bytes, value: bytes | None, tiers: Tally[int], leased: int) -> None:
    queue, group = keyspace.split_of_queue(key)
    try:
        record = None if value is None else records.decode_group(value)
    except Corrupt as exc:
        survey.add(Fault("damaged", exc.detail, "set_group", queue, space=GROUPS, key=key, number=leased))
        return
    waiting = tiers.total()
    counted = (0, 0) if record is None else (record.waiting, record.leased)
    if counted != (waiting, leased):
        name = "" if record is None else f" {record.name.decode('utf-8', 'replace')}"
        detail = (
            f"group{name} has {waiting} jobs waiting and {leased} leased, and {counted[0]} and {counted[1]} are counted"
        )
        survey.add(Fault(RULE, detail, "set_group", queue, space=GROUPS, key=key, number=leased))
        return
    lost, places = (0, NO_PLACES) if record is None else (record.at_limit, record.places)
    for tier in {*tiers, *places}:
        place = places.get(tier)
        served = place is not None and _is_there(survey.reader, order_row(queue, tier, group, place))
        if not served and (place is not None or not lost >> tier & 1):
            detail = f"a group has jobs of priority {9 - tier}, and no turn"
            survey.add(Fault(RULE, detail, "set_group", queue, space=GROUPS, key=key, number=leased))
            return


def _is_there(reader: Reader, row: bytes) -> bool:
    return isinstance(get_each(reader, TURNS, [row])[0], bytes)


def set_group(unit: UnitOfWork, fault: Fault) -> str:
    """Recount a group, and add its missing turns. `fault.number` is the number of its leased jobs."""
    tx, (queue, group) = unit.tx, keyspace.split_of_queue(fault.key)
    found = unit.numbered(queue)
    tiers: Tally[int] = Tally()
    some_job = b""
    for keys in iterate_keys(tx, GROUP_READY, *keyspace.group_range(queue, group)):
        tiers.update(key[_GROUP_ROW] for key in keys)
        some_job = keys[0][-16:]
    name = _name(tx, queue, group, some_job)
    there = _rows_of_turns(tx, queue, group)
    if found is None or not name or not (tiers or fault.number):
        tx.delete(GROUPS, fault.key)
        tx.delete_many(TURNS, [order_row(queue, tier, group, place) for tier in there for place in there[tier]])
        return "deleted the row of a group that has no jobs"
    weight = found.policy.of_group(name.decode()).weight
    places: dict[int, TurnRecord] = {}
    for tier, rows in there.items():
        if tier in tiers:
            places[tier] = rows.pop()
        tx.delete_many(TURNS, [order_row(queue, tier, group, place) for place in rows])
    for tier in tiers.keys() - places.keys():
        places[tier] = turns.arrived(turns.virtual_time(tx, keyspace.group_turns(queue, tier)), weight)
        tx.put(TURNS, order_row(queue, tier, group, places[tier]), b"")
    record = GroupRecord(0, tiers.total(), fault.number, 0, name, places)
    tx.put(GROUPS, fault.key, records.encode_group(record))
    unit.has_work(found, unit.now)
    return "counted the group's jobs anew, and saw to its turns"


def _rows_of_turns(reader: Reader, queue: int, group: bytes) -> dict[int, list[TurnRecord]]:
    """By tier: the places that the group's rows in `turns` belong to."""
    found: dict[int, list[TurnRecord]] = {}
    for tier in _TIERS:
        for keys in iterate_keys(reader, TURNS, *keyspace.turn_range(keyspace.group_turns(queue, tier))):
            for virtual_time, name in map(keyspace.split_turn, keys):
                if name == group:
                    found.setdefault(tier, []).append(TurnRecord(int(Status.ACTIVE), 0, virtual_time))
    for keys in iterate_keys(reader, TURNS, *keyspace.turn_range(keyspace.parked_groups(queue))):
        for at_ms, name in map(keyspace.split_turn, keys):
            if name[1:] == group and name[0] in _TIERS:
                found.setdefault(name[0], []).append(TurnRecord(int(Status.PARKED), at_ms, 0))
    return found


def _name(reader: Reader, queue: int, group: bytes, job: bytes) -> bytes:
    """The group's name, from its row or from one of its jobs; empty if neither can be read."""
    try:
        raw = reader.get(GROUPS, keyspace.of_queue(queue, group))
        if raw is not None:
            return records.decode_group(raw).name
    except Corrupt:
        pass
    try:
        raw = reader.get(keyspace.JOBS, keyspace.of_queue(queue, job)) if job else None
        name = b"" if raw is None else records.decode_job(raw, job).group
    except Corrupt:
        return b""
    return name if group_id(name) == group else b""
