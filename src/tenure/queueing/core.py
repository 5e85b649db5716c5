"""What every verb works with: the engine, the time, ids, the queues' registry, and those who wait."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tenure.clock import Clock
from tenure.model.ids import IdSource
from tenure.queueing.ledger import Ledger, Tail
from tenure.queueing.priorities import Tiers
from tenure.queueing.registry import Registry
from tenure.queueing.store_time import StoreTime
from tenure.queueing.waiters import Waiters
from tenure.storage.engine import Engine, Reader, Transaction
from tenure.storage.segments import SegmentedEngine

if TYPE_CHECKING:
    from tenure.queueing.outcomes import Answer

T = TypeVar("T")
#: Where readers of the journal wait.
JOURNAL_LINE = "journal"


_cores: weakref.WeakSet[Core] = weakref.WeakSet()


def _renew_in_child() -> None:
    for core in list(_cores):
        core.ids.renew()
        core.waiters.renew()


os.register_at_fork(after_in_child=_renew_in_child)


#: How long the journal is kept where no setting says otherwise.
JOURNAL_KEPT_MS = 7 * 86_400_000


class Core:
    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.engine = engine
        self.clock = clock
        self.time = StoreTime(engine, clock)
        self.ids = IdSource()
        #: How long the journal is kept.
        self.journal_kept_ms = JOURNAL_KEPT_MS
        self.registry = Registry(cached=engine.traits.scope == "process")
        self.waiters = Waiters()
        self.tiers = Tiers(known=engine.traits.scope == "process")
        #: The journal's end as this process last wrote it; checked against the journal in each transaction.
        self.tail = Tail(-1, 0, 0)
        #: The short way for one job, where the engine has one.
        self.straight = engine.straight
        #: Who knows whether there are segments, which the short way does not see; None where there are none.
        self.segmented = engine if isinstance(engine, SegmentedEngine) else None
        #: This process is the only writer: what it did not do did not happen.
        self.only_writer = engine.traits.scope == "process"
        _cores.add(self)

    def write(
        self,
        fn: Callable[[Ledger], T],
        now_ms: int | None = None,
        *,
        answer: Answer[T] | None = None,
        step: bytes = b"",
    ) -> T:
        """Run `fn` as one transaction; once it is durable, wake whom it concerns.

        `answer` and `step` are for `OnceCore`: how the result is kept, and which of a verb's transactions this is.
        """
        now = self.time.now_ms() if now_ms is None else now_ms
        ledger: Ledger | None = None

        def run(tx: Transaction) -> T:
            nonlocal ledger
            ledger = Ledger(tx, self, now)
            result = fn(ledger)
            ledger.finish()
            if ledger.queues and self.only_writer:
                # Here, not after the commit, so that two changes of one queue are learnt in their order. An engine with
                # one writer runs `fn` once, and stops if its commit fails; elsewhere rows are learnt when they are read.
                for found in ledger.queues:
                    self.registry.learn(found)
            return result

        result = self.engine.transact(run)
        if ledger is not None and self.waiters.anyone:
            self._announce(ledger)
        return result

    def read(self, fn: Callable[[Reader], T]) -> T:
        return self.engine.read(fn)

    def _announce(self, ledger: Ledger) -> None:
        wake = self.waiters.wake
        for name, count in ledger.woken.items():
            wake(name, count)
        for job in ledger.ended:
            wake(job, 1 << 30)
        wake(JOURNAL_LINE, 1 << 30)
