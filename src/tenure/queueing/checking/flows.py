"""Parents and children: a blocked job's count of open parents is correct; rows that link two jobs belong to both."""

from __future__ import annotations

from contextlib import suppress

from tenure.errors import Corrupt
from tenure.model.lifecycle import State
from tenure.queueing.checking.rebuild import LastEvents, link_flags, read_state
from tenure.queueing.checking.survey import Fault, Survey
from tenure.queueing.core import Core
from tenure.queueing.edges import joined, may_be_in_block, members, parents_by_children
from tenure.queueing.flows import open_parents, parents_in, unblock
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, get_each, iterate_keys


def check(survey: Survey) -> None:
    for rows in survey.rows(keyspace.BLOCKED):
        for key, value in rows:
            _check_blocked(survey, key, value)
    for space, flag in ((keyspace.CHILDREN, records.HAS_CHILDREN), (keyspace.PARENTS, records.HAS_PARENTS)):
        for rows in survey.rows(space):
            for key, value in rows:
                if space == keyspace.CHILDREN and keyspace.is_child_block(key):
                    _check_block(survey, key, value)
                else:
                    _check_link(survey, space, key, flag)
                if space == keyspace.PARENTS:
                    _check_parents(survey, key, value)


def _check_parents(survey: Survey, key: bytes, value: bytes) -> None:
    queue, job = keyspace.split_of_queue(key[:20])
    try:
        parents_in((key, value))
    except Corrupt as exc:
        survey.add(Fault("damaged", exc.detail, "rebuild_parents", queue, job, keyspace.PARENTS, key))


def _check_block(survey: Survey, key: bytes, value: bytes) -> None:
    """Each job of a block exists, and its state has the flag HAS_CHILDREN."""
    try:
        jobs = members(key, value)
    except Corrupt as exc:
        queue, job = keyspace.split_of_queue(keyspace.split_child_block(key)[1])
        survey.add(Fault("damaged", exc.detail, "replace_block", queue, job, keyspace.CHILDREN, key))
        return
    gone = 0
    for at in jobs:
        queue, job = keyspace.split_of_queue(at)
        state = None if survey.excused(queue, job) else read_state(survey.reader, queue, job)
        if state is not None and not state.flags & records.HAS_CHILDREN:
            detail = "it is in a row of children, and does not know of it"
            survey.add(Fault("index", detail, "note_links", queue, job))
        gone += state is None and not survey.excused(queue, job)
    if gone or not jobs:
        detail = f"a row of children has {gone} jobs that are not there" if jobs else "a row of children has no job"
        survey.add(Fault("orphan", detail, "thin_block", space=keyspace.CHILDREN, key=key))


def _check_blocked(survey: Survey, key: bytes, value: bytes) -> None:
    queue, job = keyspace.split_of_queue(key)
    if survey.excused(queue, job):
        return
    try:
        said = records.decode_blocked(value, job).open
    except Corrupt as exc:
        survey.add(Fault("damaged", exc.detail, "recount_parents", queue, job, keyspace.BLOCKED, key))
        return
    try:
        found = open_parents(survey.reader, queue, job)
    except Corrupt:
        return  # the unreadable row is a fault of its own; a later pass counts again
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
    try:
        found = open_parents(unit.tx, queue, job)
    except Corrupt:
        return ""  # the unreadable row must be repaired first
    if not found:
        unblock(unit, (queue, job), state)
        return "made it ready: its parents have all ended"
    unit.tx.put(
        keyspace.BLOCKED, keyspace.of_queue(queue, job), records.encode_blocked(found, _policy(unit, queue, job))
    )
    return f"it waits for {found} jobs, by a recount"


def _policy(unit: UnitOfWork, queue: int, job: bytes) -> int:
    """Its on_parent_dead, as an index of `ON_PARENT_DEAD`; 0 ("cancel", the default) if the row is lost."""
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


def thin_block(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    """Remove jobs that no longer exist from a block."""
    raw = unit.tx.get(keyspace.CHILDREN, fault.key)
    if raw is None:
        return "nothing to do any more: the row is gone"
    gone = [at for at in members(fault.key, raw) if unit.tx.get(keyspace.STATE, at) is None]
    unit.flows().edges.cut_all(gone)
    if len(gone) == len(members(fault.key, raw)):
        unit.tx.delete(keyspace.CHILDREN, fault.key)
    return f"took {len(gone)} jobs that are gone out of a row of children"


def replace_block(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    """Replace a damaged block by one row for each parent that it may have had and that has not ended for the child."""
    tx = unit.tx
    last, child = keyspace.split_child_block(fault.key)
    queue, job = keyspace.split_of_queue(child)
    if read_state(tx, queue, job) is None:
        tx.delete(keyspace.CHILDREN, fault.key)
        return "deleted the row: the job that waited is gone"
    runs_after_dead = records.ON_PARENT_DEAD[_policy(unit, queue, job)] == "run"
    lost = []
    for parent in _named(tx, queue, job):
        state = read_state(tx, *keyspace.split_of_queue(parent)) if may_be_in_block(parent, last) else None
        if state is not None and not (state.state == State.DEAD and runs_after_dead):
            lost.append(parent)
    known = joined(tx, lost, child, without=fault.key)
    tx.delete(keyspace.CHILDREN, fault.key)
    tx.put_many(keyspace.CHILDREN, [(parent + child, b"") for parent in lost if parent not in known])
    return f"deleted the row, and joined {len(lost) - len(known)} parents with the job again"


def _named(reader: Reader, queue: int, job: bytes, without: bytes = b"") -> list[bytes]:
    """A job's parents from all readable rows except `without`."""
    found: list[bytes] = []
    for keys in iterate_keys(reader, keyspace.PARENTS, *keyspace.job_range(queue, job)):
        for key, raw in zip(keys, get_each(reader, keyspace.PARENTS, keys), strict=True):
            if isinstance(raw, bytes) and key != without:
                with suppress(Corrupt):
                    found += parents_in((key, raw))
    return found


def rebuild_parents(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    """Rebuild a damaged row of parents from the rows of `children`. Their order is lost."""
    tx, at = unit.tx, fault.key[:20]
    queue, job = keyspace.split_of_queue(at)
    if read_state(tx, queue, job) is None:
        tx.delete(keyspace.PARENTS, fault.key)
        return "deleted the row: the job is gone"
    named = set(_named(tx, queue, job, without=fault.key))
    found = [parent for parent in parents_by_children(tx, at) if parent not in named][: records.PARENTS_A_ROW]
    if found:
        tx.put(keyspace.PARENTS, fault.key, records.encode_parents(found))
    else:
        tx.delete(keyspace.PARENTS, fault.key)
    return f"named {len(found)} parents again, by the rows that lead from them"
