"""Jobs that wait for jobs: what blocks a job is counted right, and rows that join two jobs belong to both."""

from __future__ import annotations

from tenure.errors import Corrupt
from tenure.model.lifecycle import State
from tenure.queueing.checking.rebuild import LastEvents, link_flags, read_state
from tenure.queueing.checking.survey import Fault, Survey
from tenure.queueing.core import Core
from tenure.queueing.flows import open_parents, unblock
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records


def check(survey: Survey) -> None:
    for rows in survey.rows(keyspace.BLOCKED):
        for key, value in rows:
            _check_blocked(survey, key, value)
    for space, flag in ((keyspace.CHILDREN, records.HAS_CHILDREN), (keyspace.PARENTS, records.HAS_PARENTS)):
        for rows in survey.rows(space):
            for key, _ in rows:
                _check_link(survey, space, key, flag)


def _check_blocked(survey: Survey, key: bytes, value: bytes) -> None:
    queue, job = keyspace.split_of_queue(key)
    if survey.excused(queue, job):
        return
    try:
        said = records.decode_blocked(value, job).open
    except Corrupt as exc:
        survey.add(Fault("damaged", exc.detail, "recount_parents", queue, job, keyspace.BLOCKED, key))
        return
    found = open_parents(survey.reader, queue, job)
    if said != found:
        detail = f"it is said to wait for {said} jobs, and {found} of its parents have not ended"
        survey.add(Fault("index", detail, "recount_parents", queue, job, keyspace.BLOCKED, key))


def _check_link(survey: Survey, space: int, key: bytes, flag: int) -> None:
    queue, job = keyspace.split_of_queue(key[:20])
    if survey.excused(queue, job):
        return
    state = read_state(survey.reader, queue, job)
    name = keyspace.NAMES[space]
    if state is None:
        detail = f"a stray row in {name}: there is no such job"
        survey.add(Fault("orphan", detail, "delete_row", queue, job, space, key))
    elif not state.flags & flag:
        survey.add(Fault("index", f"it has rows in {name}, and does not know of them", "note_links", queue, job))


# ── repair ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def recount_parents(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    queue, job = fault.queue, fault.job
    state = read_state(unit.tx, queue, job)
    if state is None or state.state != State.BLOCKED:
        return "nothing to do any more: it is not blocked"
    found = open_parents(unit.tx, queue, job)
    if not found:
        unblock(unit, (queue, job), state)
        return "made it ready: its parents have all ended"
    unit.tx.put(
        keyspace.BLOCKED, keyspace.of_queue(queue, job), records.encode_blocked(found, _policy(unit, queue, job))
    )
    return f"it waits for {found} jobs, by a recount"


def _policy(unit: UnitOfWork, queue: int, job: bytes) -> int:
    """What a dead parent means for it; what is lost is "cancel", as where nothing was said."""
    try:
        raw = unit.tx.get(keyspace.BLOCKED, keyspace.of_queue(queue, job))
        return 0 if raw is None else records.decode_blocked(raw, job).on_parent_dead
    except Corrupt:
        return 0


def note_links(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    state = read_state(unit.tx, fault.queue, fault.job)
    if state is None:
        return "nothing to do any more: the job is gone"
    flags = state.flags | link_flags(unit.tx, fault.queue, fault.job)
    at = keyspace.of_queue(fault.queue, fault.job)
    unit.tx.put(keyspace.STATE, at, records.encode_state(state._replace(flags=flags)))
    return "its state says again what rows it has besides"
