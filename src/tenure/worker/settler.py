"""The settler: one thread that writes outcomes, as many to a transaction as have come while it wrote the last ones.

A lone result is written at once; under load batches form by themselves, and nothing is ever held back to make one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from tenure.api.queue import Queue
from tenure.clock import Clock
from tenure.errors import AlreadySettled, Corrupt, TenureError
from tenure.model.lease import Settle
from tenure.worker import metrics
from tenure.worker.held_claims import Hands, Work
from tenure.worker.outcomes import Outcome

_BATCH = 500
_SHOWN = {"ack": "done", "nack": "retried", "fail": "dead", "release": "released"}
Item = tuple[Work, Outcome]


class Settler:
    def __init__(self, hands: Hands, clock: Clock, settled: Callable[[Work, str], None]) -> None:
        self._hands = hands
        self._clock = clock
        self._settled = settled
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        self._giving_up = threading.Event()
        self.put: Callable[[Item], None] = self._queue.put
        self.thread = threading.Thread(target=self._run, name="tenure-settler", daemon=True)

    def pending(self) -> int:
        return self._queue.qsize()

    def stop(self) -> None:
        """Once everything before this is written. `give_up` ends the trying."""
        self._queue.put(None)

    def give_up(self) -> None:
        self._giving_up.set()

    def _run(self) -> None:
        queue = self._queue
        stopping = False
        while not stopping:
            item = queue.get()
            batch: list[Item] = []
            while True:
                if item is None:
                    stopping = True
                    break
                batch.append(item)
                if len(batch) >= _BATCH:
                    break
                try:
                    item = queue.get_nowait()
                except Empty:
                    break
            by_queue: dict[Queue, list[Item]] = {}
            for one in batch:
                by_queue.setdefault(one[0].held.queue, []).append(one)
            for target, items in by_queue.items():
                self._write(target, items)

    def _write(self, queue: Queue, items: list[Item]) -> None:
        """Tried again while the store is out of reach, for as long as a lease may still hold."""
        settles = [
            Settle(outcome.verb, work.delivery.proof, outcome.result, outcome.error, outcome.delay_ms)
            for work, outcome in items
        ]
        answers = self._answers(queue, settles, [work for work, _ in items])
        for (work, outcome), answer in zip(items, answers, strict=True):
            self._hands.settled(work)
            self._tell(work, outcome, answer)

    def _answers(self, queue: Queue, settles: Sequence[Settle], works: Sequence[Work]) -> Sequence[TenureError | None]:
        pause = 0.05
        while True:
            try:
                return queue.settle_many(settles)
            except TenureError as exc:
                metrics.warn("settling_failed", queue=str(queue.name), jobs=len(works), error=str(exc))
                now = self._clock.steady_ms()
                hopeless = all(work.held.lost or work.held.deadline_ms <= now for work in works)
                if hopeless or self._giving_up.is_set():
                    return [exc] * len(works)
                self._giving_up.wait(pause)
                pause = min(pause * 2, 1.0)

    def _tell(self, work: Work, outcome: Outcome, answer: TenureError | None) -> None:
        delivery = work.delivery
        became = _SHOWN[outcome.verb]
        if became == "retried" and delivery.attempt >= delivery.max_attempts:
            became = "dead"
        if answer is not None and not isinstance(answer, AlreadySettled):
            became = "lost"
        seconds = None if work.busy_ns is None else work.busy_ns / 1e9
        metrics.METERS.ran(work.task, became, seconds)
        self._settled(work, became)
        if became == "done":
            if metrics.told(logging.INFO):
                metrics.info(
                    "task_done",
                    task=work.task,
                    id=delivery.id,
                    attempt=delivery.attempt,
                    seconds=round(seconds or 0, 4),
                )
        elif became == "lost":
            corrupt = isinstance(answer, Corrupt)
            said = metrics.error if corrupt else metrics.warn
            said("not_settled", task=work.task, id=delivery.id, verb=outcome.verb, error=str(answer))
        elif became != "released":
            first = (outcome.error or "").partition("\n")[0]
            (metrics.error if became == "dead" else metrics.warn)(
                f"task_{became}", task=work.task, id=delivery.id, attempt=delivery.attempt,
                max_attempts=delivery.max_attempts, error=first,
            )  # fmt: skip
