"""What every verb works with: the engine, the time, ids, the queues' registry, and those who wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tenure.clock import Clock
from tenure.model.ids import IdSource
from tenure.model.names import ANY_QUEUE
from tenure.model.tokens import first_token
from tenure.process import Layer, renewed_after_fork
from tenure.queueing.decoded_groups import DecodedGroups
from tenure.queueing.epoch import begin_epoch
from tenure.queueing.flows import end_parents
from tenure.queueing.priorities import Priorities
from tenure.queueing.queue_turns import QueueTurns
from tenure.queueing.registry import Registry
from tenure.queueing.store_time import StoreTime
from tenure.queueing.unit_of_work import ALL, JournalEnd, UnitOfWork, begin_unit
from tenure.queueing.waiters import Waiters
from tenure.storage.engine import Engine, Reader, Transaction

if TYPE_CHECKING:
    from tenure.queueing.outcomes import Answer

T = TypeVar("T")
#: Where readers of the journal wait.
JOURNAL_LINE = "journal"
_UNKNOWN: JournalEnd = (-1, 0, 0)


#: How long the journal is kept where no setting says otherwise.
JOURNAL_KEPT_MS = 7 * 86_400_000
#: How many expired leases, and how many unusable rows, one step of a claim inspects (`storage.inspect_limit`).
INSPECT_LIMIT = 200


class Core:
    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.engine = engine
        self.traits = engine.traits
        self.clock = clock
        self.time = StoreTime(engine, clock)
        self.ids = IdSource()
        #: Tokens that are given from now on are larger.
        self.first_token = first_token(begin_epoch(engine))
        #: How long the journal is kept.
        self.journal_kept_ms = JOURNAL_KEPT_MS
        self.inspect_limit = INSPECT_LIMIT
        #: This process is the only writer: what it did not do did not happen.
        self.only_writer = self.traits.scope == "process"
        self.registry = Registry(cached=self.only_writer)
        self.waiters = Waiters()
        self.priorities = Priorities(known=self.only_writer)
        self.turns = QueueTurns(known=self.only_writer)
        self.group_rows = DecodedGroups()
        #: The journal's end as this process last wrote it; checked against the journal in each transaction.
        self.journal_end = _UNKNOWN
        #: Due rows that the last sweep could not read, by kind: each change is logged once.
        self.unreadable_due: dict[int, int] = {}
        engine.forgetters.append(self._forget)
        renewed_after_fork(self, Layer.QUEUEING)

    @property
    def plain(self) -> Core:
        """The core whose transactions are remembered under no request."""
        return self

    def renew_after_fork(self) -> None:
        self.ids.renew()
        self.waiters.renew()

    def write(
        self,
        plan: Callable[[UnitOfWork], T],
        now_ms: int | None = None,
        answer: Answer[T] | None = None,
        step: bytes = b"",
    ) -> T:
        """Run `plan` as one transaction; once it is durable, wake the waiters that it concerns.

        `answer` and `step` are for `RememberingCore`: how the result is kept, and which of a verb's transactions this is.
        """
        now = self.time.now_ms() if now_ms is None else now_ms
        unit: UnitOfWork | None = None

        def run(tx: Transaction) -> T:
            nonlocal unit
            unit = begin_unit(tx, self, now)
            result = plan(unit)
            if unit.flow_work is not None:
                end_parents(unit, unit.flow_work)
            unit.finish()
            return result

        transact = self.engine.transact  # an attribute of the engine, which a layer above it may set
        result = transact(run)
        if self.waiters.lines and unit is not None:
            self._announce(unit)
        return result

    def read(self, fn: Callable[[Reader], T]) -> T:
        return self.engine.read(fn)

    def _forget(self) -> None:
        """A commit was interrupted: what is remembered of the store may not be what is stored."""
        self.registry.forget()
        self.priorities.forget()
        self.turns.forget()
        self.journal_end = _UNKNOWN

    def _announce(self, unit: UnitOfWork) -> None:
        wake = self.waiters.wake
        for name, count in unit.woken.items():
            wake(name, count)
            wake(ANY_QUEUE, count)
        for job in unit.ended:
            wake(job, ALL)
        wake(JOURNAL_LINE, ALL)
