"""The links of jobs that are being enqueued: which stored jobs, and which of the same call, each of them waits for.

Names are resolved when the call is planned; stored parents are read in its transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tenure.errors import InvalidArgument
from tenure.model.lifecycle import State
from tenure.model.names import QueueName
from tenure.model.request import FlowPart, JobRequest, dead_parent, unknown_parent
from tenure.queueing import locations
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
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


def named(requests: Sequence[JobRequest]) -> dict[str, int]:
    """The places of the jobs that have a name.

    Raises InvalidArgument: a name twice, a parent that no job of the call has for a name, a cycle.
    """
    places: dict[str, int] = {}
    for place, request in enumerate(requests):
        name = request.flow.name if request.flow is not None else None
        if name is not None and places.setdefault(name, place) != place:
            raise InvalidArgument(f"two jobs of the call are named {name!r}")
    waits: dict[int, list[int]] = {}
    for place, request in enumerate(requests):
        for parent in request.flow.after if request.flow is not None else ():
            if isinstance(parent, str):
                if parent not in places:
                    raise InvalidArgument(f"no job of the call is named {parent!r}, which is a parent")
                waits.setdefault(place, []).append(places[parent])
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
        open_parents: dict[Place, bool] = {}
        for given in flow.after:
            at = places[given] if isinstance(given, str) else None
            if at is not None and at not in duplicates:
                parents_here.add(at)
                parent, state = jobs[at], int(State.WAITING)
            else:
                parent, state = stored.adopt(given if isinstance(given, bytes) else jobs[places[given]][1])
            # Two names may stand for one job: it is one parent.
            if parent not in open_parents:
                open_parents[parent] = _join(unit, jobs[index], len(open_parents), parent, state, flow, settled)
        count = sum(open_parents.values())
        policy = ON_PARENT_DEAD.index(flow.on_parent_dead)
        found[index] = Link(HAS_PARENTS, count, records.encode_blocked(count, policy) if count else b"")
    for index in parents_here:
        before = found.get(index)
        found[index] = Link(HAS_CHILDREN) if before is None else before._replace(flags=before.flags | HAS_CHILDREN)
    stored.write()
    return found


def _join(
    unit: UnitOfWork, child: Place, place: int, parent: Place, state: int, flow: FlowPart, settled: Mapping[bytes, str]
) -> bool:
    """Write the rows that join two jobs. Whether the parent, which is in this state, is still to end for the child."""
    dead = state == State.DEAD
    if dead and flow.on_parent_dead == "cancel":
        raise dead_parent(parent[1])
    unit.tx.put(keyspace.PARENTS, keyspace.parent(*child, place, *parent), b"")
    link = keyspace.child(*parent, *child)
    if parent[1] in settled:
        unit.flows().links.append(link)
    elif not (dead and flow.on_parent_dead == "run"):  # which counts now; done after a replay, it must not count again
        unit.tx.put(keyspace.CHILDREN, link, b"")
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


def queue_of(name: QueueName, request: JobRequest) -> QueueName:
    """The queue that a job of a call on `name` goes to."""
    return name if request.flow is None or request.flow.queue is None else QueueName(name.tenant, request.flow.queue)
