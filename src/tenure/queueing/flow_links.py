"""The links of jobs that are being enqueued: which stored jobs, and which of the same call, each of them waits for.

Names are resolved when the call is planned; stored parents are read in its transaction.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tenure.errors import InvalidArgument
from tenure.model.lifecycle import State
from tenure.model.request import FlowPart, JobRequest, dead_parent, unknown_parent
from tenure.queueing import locations
from tenure.queueing.edges import Run
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Transaction
from tenure.storage.keyspace import CHILDREN, PARENTS, parents_row
from tenure.storage.records import HAS_CHILDREN, HAS_PARENTS, ON_PARENT_DEAD, PARENTS_A_ROW

#: After every job of a queue.
_AFTER = b"\xff" * 17


class Link(NamedTuple):
    """What a job has besides what every job has."""

    flags: int
    #: Parents that have not ended: it is blocked, unless there is none.
    open: int = 0
    #: The value of its row in `blocked`.
    blocked: bytes = b""


_IS_PARENT = Link(HAS_CHILDREN)


class Names(NamedTuple):
    """How the jobs of a call name each other."""

    #: The places of the jobs that have a name.
    places: dict[str, int]
    #: Of each job that waits for others, those that are named, by their places.
    waits: dict[int, list[int]]


def named(requests: Sequence[JobRequest]) -> Names:
    """Raises InvalidArgument: a name twice, a parent that no job of the call has for a name, a cycle."""
    places: dict[str, int] = {}
    waiting: list[tuple[int, Sequence[bytes | str]]] = []
    for place, request in enumerate(requests):
        flow = request.flow
        if flow is None:
            continue
        name = flow.name
        if name is not None:
            if name in places:
                raise InvalidArgument(f"two jobs of the call are named {name!r}")
            places[name] = place
        if flow.after:
            waiting.append((place, flow.after))
    waits: dict[int, list[int]] = {}
    for place, after in waiting:
        try:
            waits[place] = [places[parent] for parent in after if type(parent) is str]
        except KeyError as unknown:
            raise InvalidArgument(f"no job of the call is named {unknown.args[0]!r}, which is a parent") from None
    _refuse_cycles(waits)
    return Names(places, waits)


def _refuse_cycles(waits: dict[int, list[int]]) -> None:
    """Take away the jobs that wait for none that is left, until none is left to take."""
    open_parents: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for place, parents in waits.items():
        # Those that wait for none of the call are in no circle, and are the most where a job has many parents.
        waiting = waits.keys() & parents
        if waiting:
            open_parents[place] = len(waiting)
        for parent in waiting:
            children.setdefault(parent, []).append(place)
    free = [place for place in children if place not in open_parents]
    while free:
        for child in children.get(free.pop(), ()):
            open_parents[child] -= 1
            if not open_parents[child]:
                del open_parents[child]
                free.append(child)
    if open_parents:
        raise InvalidArgument(
            f"jobs wait for each other in a circle: job {min(open_parents)} of the call is one of them"
        )


def linked(
    unit: UnitOfWork,
    tenant: str,
    requests: Sequence[JobRequest],
    names: Names,
    jobs: Sequence[bytes],
    duplicates: Collection[int],
    runs: Sequence[Run],
    settled: Mapping[bytes, str],
) -> dict[int, Link]:
    """Write the rows that join these jobs with their parents; what each job gets, by its place in the call.

    `jobs` are where they are stored (`of_queue`), those of `duplicates` before this call; `runs` are the others, by
    queue. `settled` are jobs that the transaction settles, by what verb: their states are written there. Raises
    InvalidArgument for a parent that is not there.
    """
    waiting: dict[int, Link] = {}
    parents_here: set[int] = set()
    stored = _StoredParents(unit, tenant, settled)
    writes = unit.tx.writes
    for index, here in names.waits.items():
        flow = requests[index].flow
        if index in duplicates or flow is None:
            continue
        child = jobs[index]
        if len(here) == len(flow.after) and not duplicates:
            parents_here.update(here)
            parents = fresh = [jobs[at] for at in here]
            count = 0
        else:
            parents, fresh, count = _mixed(
                unit, flow, child, names.places, jobs, duplicates, parents_here, stored, settled
            )
        for place in range(0, len(parents), PARENTS_A_ROW):
            row = records.encode_parents(parents[place : place + PARENTS_A_ROW])
            writes.append((PARENTS, parents_row(child, place), row))
        count += len(fresh)
        _join_fresh(unit.tx, runs, sorted(fresh), child)
        policy = ON_PARENT_DEAD.index(flow.on_parent_dead)
        waiting[index] = Link(HAS_PARENTS, count, records.encode_blocked(count, policy) if count else b"")
    found = dict.fromkeys(parents_here, _IS_PARENT)
    for index, link in waiting.items():
        found[index] = link._replace(flags=link.flags | HAS_CHILDREN) if index in parents_here else link
    stored.write()
    return found


def _mixed(
    unit: UnitOfWork,
    flow: FlowPart,
    child: bytes,
    places: Mapping[str, int],
    jobs: Sequence[bytes],
    duplicates: Collection[int],
    parents_here: set[int],
    stored: _StoredParents,
    settled: Mapping[bytes, str],
) -> tuple[list[bytes], list[bytes], int]:
    """Of a child some of whose parents were there before: its parents, the new ones of them, and how many others are open.

    The others are joined with it; the places of the new ones are added to `parents_here`.
    """
    known: dict[bytes, None] = {}
    fresh: list[bytes] = []
    count = 0
    for given in flow.after:
        at = places[given] if type(given) is str else None
        if at is not None and at not in duplicates:
            parents_here.add(at)
            parent, state = jobs[at], None
        else:
            parent, state = stored.adopt(given if isinstance(given, bytes) else jobs[places[given]][4:])
        if parent in known:
            continue  # two names may stand for one job: it is one parent
        known[parent] = None
        if state is None:
            fresh.append(parent)
        else:
            count += _join(unit, parent + child, state, flow, settled)
    return list(known), fresh, count


def _join_fresh(tx: Transaction, runs: Sequence[Run], parents: list[bytes], child: bytes) -> None:
    """Write the rows that lead from new parents, sorted, to a child."""
    for run in runs:
        begin = bisect_left(parents, run.prefix)
        end = bisect_left(parents, run.prefix + _AFTER, begin)
        if end > begin:
            tx.put_many(CHILDREN, [(parent + child, b"") for parent in run.join(tx, parents[begin:end], child)])


def _join(unit: UnitOfWork, edge: bytes, state: int, flow: FlowPart, settled: Mapping[bytes, str]) -> bool:
    """Write the row that leads from a stored parent, in this state, to a child. Whether it is still to end for the child."""
    dead, parent = state == State.DEAD, edge[4:20]
    if dead and flow.on_parent_dead == "cancel":
        raise dead_parent(parent)
    if parent in settled:
        unit.flows().links.append(edge)
    elif not (dead and flow.on_parent_dead == "run"):  # which counts now; done after a replay, it must not count again
        unit.tx.put(CHILDREN, edge, b"")
    return (not dead and state != State.DONE) or (dead and flow.on_parent_dead == "wait")


class _StoredParents:
    """Parents that were there before the call: each is read once, and told that it has children."""

    def __init__(self, unit: UnitOfWork, tenant: str, settled: Mapping[bytes, str]) -> None:
        self._unit, self._tenant, self._settled = unit, tenant, settled
        self._known: dict[bytes, tuple[bytes, int]] = {}
        self._writes: list[tuple[bytes, bytes]] = []

    def adopt(self, job: bytes) -> tuple[bytes, int]:
        """Where it is (`of_queue`), and its state once the transaction is over. Raises InvalidArgument."""
        return self._known.get(job) or self._read(job)

    def _read(self, job: bytes) -> tuple[bytes, int]:
        tx = self._unit.tx
        number = locations.locate(tx, job, self._unit.row)
        queue = None if number is None else self._unit.numbered(number)
        raw = None if number is None else tx.get(keyspace.STATE, keyspace.of_queue(number, job))
        if number is None or raw is None or queue is None or queue.name.tenant != self._tenant:
            raise unknown_parent(job)
        state = records.decode_state(raw, job)
        verb = self._settled.get(job)
        if verb not in (None, "ack"):
            raise InvalidArgument(f"parent {job.hex()} is settled by the same call, and not as done")
        after = state.state if verb is None else int(State.DONE)
        if verb is None and not state.flags & HAS_CHILDREN:
            row = records.encode_state(state._replace(flags=state.flags | HAS_CHILDREN))
            self._writes.append((keyspace.of_queue(number, job), row))
        self._known[job] = (keyspace.of_queue(number, job), after)
        return self._known[job]

    def write(self) -> None:
        """Once all are read."""
        self._unit.tx.put_many(keyspace.STATE, self._writes)
