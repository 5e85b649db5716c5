"""A pool that is one event loop: for `async def` handlers by the hundred. Plain `def` handlers go to threads beside it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

from tenure.worker import execution
from tenure.worker.held_claims import Work
from tenure.worker.outcomes import Outcome
from tenure.worker.pools.contract import Site, begin


class AsyncPool:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._free = threading.Semaphore(site.concurrency)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._taken_back = 0
        self._count = 0
        self._busy = 0
        self._executor = ThreadPoolExecutor(site.concurrency, "tenure-slot")
        self._looping = threading.Thread(target=self._run_loop, name="tenure-loop", daemon=True)
        self._feeding = threading.Thread(target=self._feed, name="tenure-feeder", daemon=True)

    @property
    def finished(self) -> tuple[int, int]:
        return self._count, self._busy

    def start(self) -> None:
        self._looping.start()
        self._ready.wait()
        self._feeding.start()

    def end(self, work: Work) -> None:
        if work.current is not None:
            work.current.tell_lost()
        task = work.slot
        if self._loop is not None and isinstance(task, asyncio.Task):
            self._call(task.cancel)

    def stop(self, timeout: float) -> bool:
        until = monotonic() + timeout
        self._site.backlog.put(None)
        self._feeding.join(timeout)
        # Whoever has every slot knows that nobody else has one. They are kept: this is asked again and again.
        while not self._feeding.is_alive() and self._taken_back < self._site.concurrency:
            if not self._free.acquire(timeout=max(0.0, until - monotonic())):
                break
            self._taken_back += 1
        ended = self._taken_back == self._site.concurrency
        if ended and self._loop is not None:
            self._call(self._loop.stop)
            self._looping.join(5.0)
            self._executor.shutdown(wait=False)
        return ended

    def kill(self) -> None:
        for task in list(self._tasks):
            self._call(task.cancel)

    def _call(self, what: Callable[[], object]) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what)

    def _run_loop(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(self._ready.set)
            self._loop.run_forever()

    def _feed(self) -> None:
        """Takes a work only when there is a slot for it: what waits in the backlog can still be given back."""
        assert self._loop is not None
        while True:
            self._free.acquire()
            work = self._site.backlog.get()
            if work is None:
                self._free.release()
                return
            if work.begin():
                self._call(_Start(self, work))
            else:
                self._free.release()

    async def _run(self, work: Work) -> None:
        site = self._site
        current = begin(site, work)

        async def in_thread(call: Callable[[], Any]) -> Any:
            context = contextvars.copy_context()
            return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: context.run(call))

        try:
            outcome = await execution.run_async(site.app, current, work.delivery.payload, in_thread)
        except asyncio.CancelledError:
            # By `end`, when it is decided already, or by `kill`.
            outcome = Outcome("nack", None, "the worker was stopped before it ended", 0)
        self._busy += work.stop_clock()
        self._count += 1
        site.ended(work, outcome)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._free.release()
        self._site.freed()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._site.broken(error)


class _Start:
    """Starts a work on the loop, from the loop."""

    def __init__(self, pool: AsyncPool, work: Work) -> None:
        self._pool = pool
        self._work = work

    def __call__(self) -> None:
        pool = self._pool
        task = asyncio.ensure_future(pool._run(self._work))
        self._work.slot = task
        pool._tasks.add(task)
        task.add_done_callback(pool._done)
