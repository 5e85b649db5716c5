"""Links restored jobs with their parents, which are in the store or among the jobs of the same call.

A restored blocked job waits for its parents that have not ended in this store. For a dead parent its on_parent_dead
decides; a parent that was replayed since counts as open again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tenure.model.job import OnParentDead
from tenure.model.lifecycle import State
from tenure.model.names import QueueName
from tenure.model.request import JobImage, ParentImage
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import records
from tenure.storage.keyspace import CHILDREN, PARENTS, STATE, of_queue, parents_row
from tenure.storage.records import HAS_CHILDREN, ON_PARENT_DEAD, PARENTS_A_ROW, StateRecord


class _Parent(NamedTuple):
    """A parent that a job can be linked with."""

    row: bytes
    #: None: it is not in this store, and the job does not wait for it.
    state: State | None


class RestoredLinks:
    """Links the jobs of one call with their parents. `images`: the jobs that are restored into `queue`."""

    def __init__(self, unit: UnitOfWork, queue: RegisteredQueue, images: Iterable[JobImage]) -> None:
        self._unit, self._queue = unit, queue
        self._here = {image.id: State[image.state.upper()] for image in images}
        self._stored: dict[bytes, StateRecord | None] = {}
        self._numbers: dict[str, int | None] = {}
        #: Jobs of the call that are parents of others; and stored parents' states that have to be written.
        self.parents_here: set[bytes] = set()
        self._adopted: dict[bytes, StateRecord] = {}

    def refuse(self, images: Sequence[JobImage], refused: dict[str, str]) -> None:
        """Add the blocked jobs that cannot be restored to `refused`, with the reason; then jobs that wait for those."""
        blocked = [image for image in images if image.state == "blocked" and image.id.hex() not in refused]
        while True:
            for job in refused:
                self._here.pop(bytes.fromhex(job), None)
            found = {image.id.hex(): why for image in blocked if (why := self._refusal(image)) is not None}
            if not found:
                return
            refused.update(found)
            blocked = [image for image in blocked if image.id.hex() not in found]

    def _refusal(self, image: JobImage) -> str | None:
        for parent in image.parents:
            found = self._find(parent)
            if found is None and not parent.ended:
                return f"it waits for job {parent.job.hex()} of queue {parent.queue!r}, which is not there"
            if found is not None and found.state is State.DEAD and image.on_parent_dead == "cancel":
                return f"it waits for job {parent.job.hex()} of queue {parent.queue!r}, which is dead"
        return None

    def write(self, image: JobImage) -> tuple[bool, int]:
        """Write the rows that link a job with its parents. Returns whether it has any, and how many are open."""
        child, rows, unmet = of_queue(self._queue.number, image.id), list[bytes](), 0
        for parent in image.parents:
            found = self._find(parent)
            if found is None:
                continue  # neither the parent nor its queue is in this store
            rows.append(found.row)
            if found.state is None or not self._leads_on(image, found.state):
                continue
            self._unit.tx.put(CHILDREN, found.row + child, b"")
            self._adopt(parent, found.row)
            unmet += found.state is not State.DONE
        for place in range(0, len(rows), PARENTS_A_ROW):
            some = records.encode_parents(rows[place : place + PARENTS_A_ROW])
            self._unit.tx.put(PARENTS, parents_row(child, place), some)
        return bool(rows), unmet

    def _leads_on(self, image: JobImage, state: State) -> bool:
        """Whether the parent needs an edge to the job: the job waits for it, or still needs its result."""
        if image.state == "blocked":
            return state is not State.DEAD or image.on_parent_dead == "wait"
        return state is State.DONE and image.state != "done"

    def write_parents(self) -> None:
        """Set HAS_CHILDREN in the states of stored parents. Called once."""
        rows = [(row, records.encode_state(state)) for row, state in self._adopted.items()]
        self._unit.tx.put_many(STATE, rows)

    def _adopt(self, parent: ParentImage, row: bytes) -> None:
        if self._is_here(parent):
            self.parents_here.add(parent.job)
            return
        state = self._stored[row]
        if state is not None and not state.flags & HAS_CHILDREN:
            self._adopted[row] = state._replace(flags=state.flags | HAS_CHILDREN)

    def _is_here(self, parent: ParentImage) -> bool:
        return parent.queue == self._queue.name.queue and parent.job in self._here

    def _find(self, parent: ParentImage) -> _Parent | None:
        """Find the parent by queue and id: two queues may have a job of the same id. None: it is not in this store."""
        number = self._number(parent.queue)
        if number is None:
            return None
        row = of_queue(number, parent.job)
        if self._is_here(parent):
            return _Parent(row, self._here[parent.job])
        if row not in self._stored:
            raw = self._unit.tx.get(STATE, row)
            self._stored[row] = None if raw is None else records.decode_state(raw, parent.job)
        state = self._stored[row]
        if state is not None:
            return _Parent(row, State(state.state))
        return _Parent(row, None) if parent.ended else None

    def _number(self, name: str) -> int | None:
        if name not in self._numbers:
            found = None
            if name == self._queue.name.queue:
                found = self._queue
            elif name:
                found = self._unit.known_queue(QueueName(self._queue.name.tenant, name))
            self._numbers[name] = None if found is None else found.number
        return self._numbers[name]


def blocked_row(unmet: int, on_parent_dead: OnParentDead) -> bytes:
    return records.encode_blocked(unmet, ON_PARENT_DEAD.index(on_parent_dead))
