"""The settler: one thread that writes outcomes; those that arrive during a transaction share the next one.

A single outcome is written at once; batches form only under load, and no outcome waits for others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from tenure.api.queue import Queue
from tenure.clock import Clock
from tenure.errors import AlreadySettled, Corrupt, InvalidArgument, TenureError, TooLarge
from tenure.model.failure import ANSWERS
from tenure.worker import log, metrics
from tenure.worker.background import BackgroundThread
from tenure.worker.held_claims import HeldClaims, HeldJob
from tenure.worker.outcomes import Outcome, split_error

_BATCH = 500
_OUTCOMES = {"ack": "done", "nack": "retried", "fail": "dead", "release": "released"}
#: Errors that a retry cannot fix; others come from the store's state or the network.
_PERMANENT = (InvalidArgument, TooLarge, TypeError, ValueError)
Item = tuple[HeldJob, Outcome]
Answer = BaseException | None


class Settler:
    def __init__(self, held_claims: HeldClaims, clock: Clock, settled: Callable[[HeldJob, str], None]) -> None:
        self._held_claims = held_claims
        self._clock = clock
        self._settled = settled
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        self._giving_up = threading.Event()
        self.put: Callable[[Item], None] = self._queue.put
        self.thread = BackgroundThread("settler", self._step)

    def pending(self) -> int:
        """Outcomes that wait to be written."""
        return self._queue.qsize()

    def stop(self) -> None:
        """End the thread once all earlier outcomes are written. `give_up` ends the retries."""
        self._queue.put(None)

    def give_up(self) -> None:
        self._giving_up.set()

    def _step(self) -> bool:
        batch, stopping = self._next_batch()
        by_queue: dict[Queue, list[Item]] = {}
        for item in batch:
            by_queue.setdefault(item[0].claim.queue, []).append(item)
        for queue, items in by_queue.items():
            try:
                self._write(queue, items)
            except BaseException as exc:  # noqa: BLE001 - the outcomes of other queues must still be written
                log.error("settling_failed", queue=str(queue.name), jobs=len(items), error=repr(exc), exc_info=exc)
                for job, _ in items:
                    self._held_claims.remove_job(job)  # otherwise it would be extended forever
        return stopping

    def _next_batch(self) -> tuple[list[Item], bool]:
        """Wait for an outcome and take all others that have arrived; True once `stop` was called."""
        item = self._queue.get()
        batch: list[Item] = []
        while item is not None:
            batch.append(item)
            if len(batch) >= _BATCH:
                return batch, False
            try:
                item = self._queue.get_nowait()
            except Empty:
                return batch, False
        return batch, True

    def _write(self, queue: Queue, items: list[Item]) -> None:
        plain = [item for item in items if item[1].then is None]
        answered = [*zip(plain, self._answers(queue, plain), strict=True)] if plain else []
        for (job, outcome), answer in answered + [self._hand_over(queue, item) for item in items if item[1].then]:
            self._held_claims.remove_job(job)
            try:
                self._report(job, outcome, answer)
            except Exception as exc:  # noqa: BLE001 - the job is settled, even if its log line fails
                log.error("settled_not_logged", id=job.delivery.id, error=repr(exc))

    def _hand_over(self, queue: Queue, item: Item) -> tuple[Item, Answer]:
        """Settle a job with follow-up jobs, alone: if these are refused (a full queue), its attempt has failed."""
        job, outcome = item
        try:
            return item, queue.settle_many([outcome.settle(job.delivery.proof)])[0]
        except ANSWERS as exc:
            item = (job, Outcome("nack", None, f"its follow-up jobs could not be enqueued: {exc}"))
        except Exception:  # noqa: BLE001 - the store may be out of reach: retried, as all outcomes are
            log.warning("settling_failed", queue=str(queue.name), jobs=1)
        return item, self._answers(queue, [item])[0]

    def _answers(self, queue: Queue, items: Sequence[Item]) -> Sequence[Answer]:
        """Settle, retrying while the store is out of reach, as long as one of the leases may still be valid."""
        settles = [outcome.settle(job.delivery.proof) for job, outcome in items]
        pause = 0.05
        while True:
            try:
                return queue.settle_many(settles)
            except Exception as exc:  # noqa: BLE001 - an outcome must not be lost because of another one in its batch
                log.warning("settling_failed", queue=str(queue.name), jobs=len(items), error=str(exc) or repr(exc))
                if isinstance(exc, _PERMANENT):
                    if len(items) == 1:
                        return [exc]
                    return [answer for item in items for answer in self._answers(queue, [item])]
                now = self._clock.steady_ms()
                hopeless = all(job.claim.lost or job.claim.deadline_ms <= now for job, _ in items)
                if hopeless or self._giving_up.is_set():
                    return [exc] * len(items)
                self._giving_up.wait(pause)
                pause = min(pause * 2, 1.0)

    def _report(self, job: HeldJob, outcome: Outcome, answer: Answer) -> None:
        """Count the job's outcome, and log it."""
        delivery = job.delivery
        outcome_name = _OUTCOMES[outcome.verb]
        if outcome_name == "retried" and delivery.attempt >= delivery.max_attempts:
            outcome_name = "dead"
        if answer is not None and not isinstance(answer, AlreadySettled):
            outcome_name = "lost"
        seconds = None if job.busy_ns is None else job.busy_ns / 1e9
        metrics.METERS.record(job.task, outcome_name, seconds)
        self._settled(job, outcome_name)
        if outcome_name == "done":
            if log.enabled(logging.INFO):
                took = round(seconds or 0, 4)
                log.info("task_done", task=job.task, id=delivery.id, attempt=delivery.attempt, seconds=took)
        elif outcome_name == "lost":
            refused = isinstance(answer, Corrupt) or not isinstance(answer, TenureError)
            write = log.error if refused else log.warning
            write("not_settled", task=job.task, id=delivery.id, verb=outcome.verb, error=str(answer) or repr(answer))
        elif outcome_name != "released":
            summary, traceback = split_error(outcome.error or "")
            # Log formatters know a traceback by the name `exception`, and print it on its own lines.
            facts: dict[str, object] = {} if traceback is None else {"exception": traceback}
            (log.error if outcome_name == "dead" else log.warning)(
                f"task_{outcome_name}", task=job.task, id=delivery.id, attempt=delivery.attempt,
                max_attempts=delivery.max_attempts, error=summary, **facts,
            )  # fmt: skip
