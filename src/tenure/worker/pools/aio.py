"""A pool of one event loop: for hundreds of `async def` handlers. Plain `def` handlers run in threads."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

from tenure.worker import execution, log
from tenure.worker.background import BackgroundThread
from tenure.worker.held_claims import HeldJob
from tenure.worker.outcomes import Outcome
from tenure.worker.parent_results import takes_results
from tenure.worker.pools.contract import PoolHost, slot_failed, start_job, whole_payload

_SLOT = "event loop"


class AsyncPool:
    def __init__(self, host: PoolHost) -> None:
        self._host = host
        self._free_slots = threading.Semaphore(host.concurrency)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_ready = threading.Event()
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots_taken_back = 0
        self._count = 0
        self._busy = 0
        self._executor = ThreadPoolExecutor(host.concurrency, "tenure-slot")
        self._loop_thread = threading.Thread(target=self._run_loop, name="tenure-loop", daemon=True)
        self._feeder = BackgroundThread("feeder", self._feed_one)

    @property
    def finished(self) -> tuple[int, int]:
        return self._count, self._busy

    def start(self) -> None:
        self._loop_thread.start()
        self._loop_ready.wait()
        self._feeder.start()

    def end(self, job: HeldJob) -> None:
        if job.current is not None:
            job.current.mark_lost()
        task = job.slot
        if self._loop is not None and isinstance(task, asyncio.Task):
            self._call_on_loop(task.cancel)

    def stop(self, timeout: float) -> bool:
        until = monotonic() + timeout
        self._host.backlog.put(None)
        self._feeder.join(timeout)
        # If all slots are taken back, no handler runs. Keep them: `stop` may be called repeatedly.
        while not self._feeder.is_alive() and self._slots_taken_back < self._host.concurrency:
            if not self._free_slots.acquire(timeout=max(0.0, until - monotonic())):
                break
            self._slots_taken_back += 1
        ended = self._slots_taken_back == self._host.concurrency
        if ended and self._loop is not None:
            self._closing = True
            self._call_on_loop(self._loop.stop)
            self._loop_thread.join(5.0)
            self._executor.shutdown(wait=False)
        return ended

    def kill(self) -> None:
        for task in list(self._tasks):
            self._call_on_loop(task.cancel)

    def _call_on_loop(self, function: Callable[[], object]) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def _run_loop(self) -> None:
        with asyncio.Runner() as runner:
            loop = self._loop = runner.get_loop()
            loop.call_soon(self._loop_ready.set)
            while not self._closing:
                try:
                    loop.run_forever()  # returns early if a handler calls loop.stop()
                except BaseException as exc:  # noqa: BLE001 - SystemExit of a task that a handler started arrives here
                    log.error("slot_failed", slot=_SLOT, error=repr(exc), exc_info=exc)

    def _feed_one(self) -> bool:
        """Take a job only if there is a slot for it: jobs in the backlog can still be released."""
        self._free_slots.acquire()
        job = self._host.backlog.get()
        if job is not None and job.try_begin():
            try:
                self._call_on_loop(functools.partial(self._start, job))
            except RuntimeError as exc:  # the loop has just been closed
                self._free_slots.release()
                slot_failed(self._host, _SLOT, job, exc)
        else:
            self._free_slots.release()
        return job is None

    def _start(self, job: HeldJob) -> None:
        """Start the job's task. Runs on the loop."""
        coroutine = self._run(job)
        try:
            task = asyncio.ensure_future(coroutine)
        except BaseException as exc:  # noqa: BLE001 - a failing task factory must not occupy the slot
            coroutine.close()
            self._finish(job, exc)
            return
        job.slot = task
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._done, job))

    async def _run(self, job: HeldJob) -> None:
        host = self._host
        current = start_job(host, job)
        payload = job.delivery.payload
        if takes_results(payload):
            payload = await asyncio.get_running_loop().run_in_executor(self._executor, whole_payload, job)
        task = host.app.tasks.get(current.task)
        if task is None or task.is_async:
            outcome = await execution.run_async(host.app, current, payload)
        else:
            outcome = await self._run_in_thread(functools.partial(execution.run, host.app, current, payload))
        host.job_ended(job, outcome)

    async def _run_in_thread(self, call: Callable[[], Outcome]) -> Outcome:
        """Run `call` in a thread.

        It returns exceptions as outcomes: a future cannot carry StopIteration or GeneratorExit.
        """
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: context.run(call))

    def _done(self, job: HeldJob, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._finish(job, asyncio.CancelledError("cancelled") if task.cancelled() else task.exception())

    def _finish(self, job: HeldJob, error: BaseException | None) -> None:
        self._busy += job.stop_clock()
        self._count += 1
        self._free_slots.release()
        if isinstance(error, asyncio.CancelledError) and not job.is_running:
            error = None  # the pool cancelled it: it is settled already
        if error is None:
            self._host.slot_freed()
        else:
            slot_failed(self._host, _SLOT, job, error)
