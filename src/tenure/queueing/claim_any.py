"""Claims from any queue: tenants take turns, and the queues of each tenant take turns.

    tenants in turn ──▶ queues of each in turn ──▶ the first that can be claimed from
                                                   before it: empty queues lose their place, others are parked

Everything is read before a place is moved (`turns`). One transaction moves a bounded number of places without finding a
job; then it commits, and the claim continues in the next.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from tenure.errors import Corrupt
from tenure.model.lease import AnyQueues, ClaimRequest, Leased
from tenure.model.names import ANY_QUEUE, QueueName
from tenure.queueing import claim, limits, turns
from tenure.queueing.claim import FIRST, Step
from tenure.queueing.core import Core
from tenure.queueing.grant import ClaimIdentity, Grant
from tenure.queueing.queue_turns import tenant_sub
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.turns import Status, Sub
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace
from tenure.storage.keyspace import Due
from tenure.storage.records import TurnRecord
from tenure.storage.transaction import NOTHING_TOLD

#: Places that one transaction may move without finding a job.
_IN_VAIN = 500
_JOBS_ONLY = Step(jobs_only=True, leases=None)
_TURNS_DUE = keyspace.due_prefix(Due.TURN)


def claim_any(
    core: Core, request: ClaimRequest, among: AnyQueues, cancel: threading.Event | None = None
) -> Leased | None:
    """A lease over jobs of the queue whose turn it is; waits up to `request.wait_ms` for one."""
    leased = _try(core, request, among)
    if leased is not None or not request.wait_ms:
        return leased
    return claim.wait_in_line(core, (ANY_QUEUE,), request.wait_ms, partial(_try, core, request, among), cancel)


def _try(core: Core, request: ClaimRequest, among: AnyQueues) -> Leased | None:
    now = core.time.now_ms()
    lease = core.ids.one(now)
    steps = _Steps()
    while True:
        try:
            outcome = core.write(partial(_round, core, request, among, lease, steps), now)
        except claim.LateParents as late:
            try:
                late.remove(core, now)
            except Corrupt as exc:  # another queue may still be served
                steps = steps._replace(passed=steps.passed | {row.queue for row in late.due}, damaged=exc)
            continue
        except Corrupt:
            if steps.leases.leases is None:
                raise
            outcome = steps._replace(leases=claim.past_damaged_leases(core, steps.leases))
        if not isinstance(outcome, _Steps):
            return outcome
        steps = outcome


def _round(
    core: Core, request: ClaimRequest, among: AnyQueues, lease: bytes, steps: _Steps, unit: UnitOfWork
) -> Leased | _Steps | None:
    return _Round(core, unit, request, among, lease, steps).run()


class _Steps(NamedTuple):
    """The progress of a claim over several transactions: in taking over leases, and in each queue it has begun."""

    leases: Step = FIRST
    queues: Mapping[QueueName, Step] = MappingProxyType({})
    #: The numbers of the queues that it does not look at any more, since it met this damage.
    passed: frozenset[int] = frozenset()
    damaged: Corrupt | None = None


class _Round:
    """One transaction of a claim."""

    def __init__(
        self, core: Core, unit: UnitOfWork, request: ClaimRequest, among: AnyQueues, lease: bytes, steps: _Steps
    ) -> None:
        self._core, self._unit, self._request, self._among, self._lease = core, unit, request, among, lease
        self._steps = steps
        self._until = keyspace.commit(unit.now + 1)
        self._identity: ClaimIdentity | None = None
        #: Places before and after.
        self._moves: list[tuple[Sub, TurnRecord, TurnRecord | None]] = []
        self._damaged = steps.damaged

    def run(self) -> Leased | _Steps | None:
        """A lease; the steps to continue with in another transaction; or None: no queue has a job."""
        core, unit = self._core, self._unit
        if self._request.id is not None:
            self._identity = claim.identity_of(self._request)
            name = claim.any_claimed(core, unit.tx, self._identity)
            if name is not None:
                return claim.given_before(core, unit, (name,), self._identity)
        unit.tx.answers_after = NOTHING_TOLD  # until jobs are leased (`grant`)
        if self._steps.leases.leases is not None:
            step = claim.take_over(core, unit, self._steps.leases, self._until)
            self._steps = self._steps._replace(leases=msgspec.structs.replace(step, jobs_only=False))
            if step.jobs_only:
                return self._steps
        if unit.tx.keys(keyspace.DUE, _TURNS_DUE, _TURNS_DUE + self._until, 1) and core.turns.bring_back(unit):
            return self._steps
        found = self._served()
        for sub, before, after in self._moves:
            turns.move(unit.tx, sub, before, after)
            if sub.due[0]:
                core.turns.learn(unit, sub.due[0], after)
        if found is None and self._damaged is not None and not self._moves:
            raise self._damaged
        return found

    def _served(self) -> Leased | _Steps | None:
        """Lease jobs of the first queue in turn that has some. Notes the moves of places; writes none of them."""
        for scope in self._tenants():
            tenant = turns.place(self._unit.tx, tenant_sub(scope))
            if tenant is None:
                continue
            left = False
            for number, record in self._queues(scope):
                name = QueueName(*keyspace.split_queue_row(record.name))
                if not self._among.includes(name) or keyspace.queue_of(number) in self._steps.passed:
                    left = True
                    continue
                found, after = self._look(name, record)
                if isinstance(found, Leased):
                    count = len(found.columns.jobs) if found.columns is not None else len(found.deliveries)
                    after = turns.served(record, count, self._among.weight(name))
                    served = turns.served(tenant, count, self._among.weight(name.tenant))
                    self._moves.append((tenant_sub(scope), tenant, served))
                sub = Sub(scope, number, (keyspace.queue_of(number), keyspace.QUEUE_TURN))
                if after != record:
                    self._moves.append((sub, record, after))
                left = left or (after is not None and after.status == Status.ACTIVE)
                if found is not None or len(self._moves) > _IN_VAIN:
                    return self._steps if found is None else found
            if not left:
                self._moves.append((tenant_sub(scope), tenant, None))
        return None

    def _tenants(self) -> Iterator[bytes]:
        """The scopes of tenants that have a turn, in order."""
        named = self._among.tenants
        if named is None:
            for _, scope in turns.InTurn(self._unit.tx, keyspace.TENANT_TURNS):
                yield scope
            return
        scopes = [keyspace.queue_turns(tenant) for tenant in named]
        found = [(place.virtual_time, s) for s in scopes if (place := turns.place(self._unit.tx, tenant_sub(s)))]
        for _, scope in sorted(found):
            yield scope

    def _queues(self, scope: bytes) -> Iterator[tuple[bytes, TurnRecord]]:
        for _, number in turns.InTurn(self._unit.tx, scope):
            record = turns.place(self._unit.tx, Sub(scope, number))
            if record is not None:
                yield number, record

    def _look(self, name: QueueName, record: TurnRecord) -> tuple[Leased | _Steps | None, TurnRecord | None]:
        """The queue's jobs for this claim, if any, and the queue's new place if there are none."""
        core, unit, request = self._core, self._unit, self._request
        queue = core.registry.find(unit.tx, name)
        if queue is None:
            return None, None
        if queue.paused:
            return None, turns.blocked(record)
        if queue.limited:
            room = limits.room(unit.tx, queue, unit.now, request.limit)
            if not room:
                opens = limits.opens_at(unit.tx, queue)
                return None, turns.blocked(record) if opens is None else turns.parked(record, max(opens, unit.now + 1))
            request = msgspec.structs.replace(request, limit=room)
        # `jobs_only`: `run` has taken over expired leases already.
        step = self._steps.queues.get(name, _JOBS_ONLY)
        try:
            found = claim.take(core, Grant(unit, queue, name, request, self._lease, self._identity), self._until, step)
        except Corrupt as exc:
            self._damaged = exc  # another queue may still be served
            return None, record
        if isinstance(found, Step):
            return self._steps._replace(queues={**self._steps.queues, name: found}), record
        if found is not None and self._identity is not None:
            claim.note_any(unit, queue, self._identity)
        if found is None and unit.tx.writes:
            return self._steps, record  # it deleted rows: the next transaction reads the queue again
        if found is None:
            return None, self._later(queue, record)
        return found, record

    def _later(self, queue: RegisteredQueue, record: TurnRecord) -> TurnRecord | None:
        """The place of a queue without ready jobs: parked until its next job's time, or none."""
        due = claim.next_job(self._unit.tx, queue)
        return None if due is None else turns.parked(record, max(due, self._unit.now + 1))
