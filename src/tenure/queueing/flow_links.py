"""The links of jobs that are being enqueued: which stored jobs, and which of the same call, each of them waits for.

Names are resolved when the call is planned; stored parents are read in its transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tenure.errors import InvalidArgument
from tenure.model.lifecycle import State
from tenure.model.request import FlowPart, JobRequest, dead_parent, unknown_parent
from tenure.queueing import locations
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.keyspace import CHILDREN, PARENTS
from tenure.storage.records import HAS_CHILDREN, HAS_PARENTS, ON_PARENT_DEAD

Place = tuple[int, bytes]
"""Queue number, job."""
_NO_FLOW = FlowPart()


class Link(NamedTuple):
    """What a job has besides what every job has."""

    flags: int
    #: Parents that have not ended: it is blocked, unless there is none.
    open: int = 0
    #: The value of its row in `blocked`.
    blocked: bytes = b""


_IS_PARENT = Link(HAS_CHILDREN)
_WAITING = int(State.WAITING)


def named(requests: Sequence[JobRequest]) -> dict[str, int]:
    """The places of the jobs that have a name.

    Raises InvalidArgument: a name twice, a parent that no job of the call has for a name, a cycle.
    """
    places: dict[str, int] = {}
    waiting: list[tuple[int, Sequence[bytes | str]]] = []
    for place, request in enumerate(requests):
        flow = request.flow
        if flow is None:
            continue
        if flow.name is not None and places.setdefault(flow.name, place) != place:
            raise InvalidArgument(f"two jobs of the call are named {flow.name!r}")
        if flow.after:
            waiting.append((place, flow.after))
    waits: dict[int, list[int]] = {}
    for place, after in waiting:
        try:
            here = [places[parent] for parent in after if type(parent) is str]
        except KeyError as unknown:
            raise InvalidArgument(f"no job of the call is named {unknown.args[0]!r}, which is a parent") from None
        if here:
            waits[place] = here
    _refuse_cycles(waits)
    return places


def _refuse_cycles(waits: dict[int, list[int]]) -> None:
    """Take away the jobs that wait for none that is left, until none is left to take."""
    open_parents = {place: len(parents) for place, parents in waits.items()}
    children: dict[int, list[int]] = {}
    for place, parents in waits.items():
        for parent in parents:
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
    places: dict[str, int],
    jobs: Sequence[Place],
    duplicates: Collection[int],
    settled: Mapping[bytes, str],
) -> dict[int, Link]:
    """Write the rows that join these jobs with their parents; what each job gets, by its place in the call.

    `jobs` are where they are stored, those of `duplicates` before this call; `settled` are jobs that the transaction
    settles, by what verb: their states are written there. Raises InvalidArgument for a parent that is not there.
    """
    found: dict[int, Link] = {}
    parents_here: set[int] = set()
    stored = _StoredParents(unit, tenant, settled)
    for index, request in enumerate(requests):
        flow = request.flow or _NO_FLOW
        if index in duplicates or not flow.after:
            continue
        known: dict[bytes, None] = {}
        writes, child, count = unit.tx.writes, keyspace.of_queue(*jobs[index]), 0
        for given in flow.after:
            at = places[given] if type(given) is str else None
            if at is not None and at not in duplicates:
                parents_here.add(at)
                parent, state = jobs[at], _WAITING
            else:
                parent, state = stored.adopt(given if isinstance(given, bytes) else jobs[places[given]][1])
            row = keyspace.of_queue(*parent)
            if row in known:
                continue  # two names may stand for one job: it is one parent
            writes.append((PARENTS, keyspace.parent_row(child, len(known), row), b""))
            known[row] = None
            if state == _WAITING:
                writes.append((CHILDREN, row + child, b""))
                count += 1
            else:
                count += _join(unit, row + child, parent[1], state, flow, settled)
        policy = ON_PARENT_DEAD.index(flow.on_parent_dead)
        found[index] = Link(HAS_PARENTS, count, records.encode_blocked(count, policy) if count else b"")
    for index in parents_here:
        before = found.get(index)
        found[index] = _IS_PARENT if before is None else before._replace(flags=before.flags | HAS_CHILDREN)
    stored.write()
    return found


def _join(
    unit: UnitOfWork, link: bytes, parent: bytes, state: int, flow: FlowPart, settled: Mapping[bytes, str]
) -> bool:
    """Write the row that leads from a stored parent, in this state, to a child. Whether it is still to end for the child."""
    dead = state == State.DEAD
    if dead and flow.on_parent_dead == "cancel":
        raise dead_parent(parent)
    if parent in settled:
        unit.flows().links.append(link)
    elif not (dead and flow.on_parent_dead == "run"):  # which counts now; done after a replay, it must not count again
        unit.tx.put(CHILDREN, link, b"")
    return (not dead and state != State.DONE) or (dead and flow.on_parent_dead == "wait")


class _StoredParents:
    """Parents that were there before the call: each is read once, and told that it has children."""

    def __init__(self, unit: UnitOfWork, tenant: str, settled: Mapping[bytes, str]) -> None:
        self._unit, self._tenant, self._settled = unit, tenant, settled
        self._known: dict[bytes, tuple[Place, int]] = {}
        self._writes: list[tuple[bytes, bytes]] = []

    def adopt(self, job: bytes) -> tuple[Place, int]:
        """Where it is, and its state once the transaction is over. Raises InvalidArgument."""
        return self._known.get(job) or self._read(job)

    def _read(self, job: bytes) -> tuple[Place, int]:
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
        self._known[job] = ((number, job), after)
        return self._known[job]

    def write(self) -> None:
        """Once all are read."""
        self._unit.tx.put_many(keyspace.STATE, self._writes)
