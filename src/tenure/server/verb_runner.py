"""Carry out requests for an event loop: verbs run in threads, or on the loop if that is faster; waiting holds no
thread.

A small verb of a backend that waits for nothing runs on the loop: switching threads takes longer than the verb. If it
waits for a sync only, it also runs on the loop, which continues while the disk works (`Backend.deferring`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

from tenure import telemetry
from tenure.errors import TenureError
from tenure.protocol import messages as m
from tenure.protocol.answer import Abandoned
from tenure.protocol.dispatcher import DecodedRequest, Dispatcher, Wait

T = TypeVar("T")

#: With a larger body even a small verb may take long.
SMALL_BYTES = 16 * 1024
#: So may a claim of more jobs than this.
_SMALL_CLAIM = 1000
#: Verbs whose cost is not bounded by their request: they may search the whole journal, or change a whole queue.
_LONG_VERBS = frozenset({"timeline", "wait_for", "replay", "purge"})
#: How many of them a tenant runs at once. Its others wait, and hold no thread that another tenant needs.
LONG_AT_ONCE = 2


class CallerGone(Abandoned):
    """The caller has closed the connection."""


class VerbRunner:
    def __init__(self, dispatcher: Dispatcher, threads: int, name: str) -> None:
        """`name` is the threads' name in logs and debuggers."""
        self._dispatcher = dispatcher
        self._threads = ThreadPoolExecutor(threads, name)
        waits_on = dispatcher.backend.waits_on
        #: Whether small verbs run on the event loop.
        self.inline = waits_on == "nothing"
        self._defers = waits_on == "sync"
        self._slots: WeakValueDictionary[str | None, asyncio.Semaphore] = WeakValueDictionary()

    def close(self) -> None:
        """Return once the running verbs have ended."""
        self._threads.shutdown(wait=True)

    async def carry_out(
        self, request: DecodedRequest, caller_leaves: Callable[[], Awaitable[None]] | None = None
    ) -> object:
        """Return the request's answer. Raises what the operation raises, and CallerGone.

        `caller_leaves` returns once the caller has closed the connection; None: this task is cancelled then.
        """
        if request.waiting is not None:
            return await self._wait(request, caller_leaves)
        small = request.operation.small and request.size <= SMALL_BYTES
        if small and self.inline:
            return self._dispatcher.run(request)
        if small and self._defers:
            return await self._run_deferring(request)
        # A repeat of a request with an id gets the same jobs; those of a request without one are released.
        undo = None if isinstance(request.key, tuple) else lambda answer: self._dispatcher.release(request, answer)
        async with self._turn(request):
            return await self.run(self._dispatcher.run, request, undo=undo)

    def long_turn(self, tenant: str | None) -> asyncio.Semaphore:
        """Return the semaphore under which the tenant's work of unbounded length runs."""
        slots = self._slots.get(tenant)
        if slots is None:
            slots = self._slots[tenant] = asyncio.Semaphore(LONG_AT_ONCE)
        return slots

    def _turn(self, request: DecodedRequest) -> contextlib.AbstractAsyncContextManager[object]:
        return (
            self.long_turn(request.call.tenant) if request.operation.verb in _LONG_VERBS else contextlib.nullcontext()
        )

    async def run(self, work: Callable[..., T], *arguments: object, undo: Callable[[T], None] | None = None) -> T:
        """Run `work` in a thread. `undo` is called with the result if this task is cancelled before it gets it."""
        future = self._threads.submit(work, *arguments)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel() and undo is not None:
                future.add_done_callback(lambda done: _undo_result(done, undo))
            raise

    async def _run_deferring(self, request: DecodedRequest) -> object:
        """Run on the loop, then wait for the disk without a thread: commits made meanwhile share the next sync."""

        def work() -> object:
            try:
                return self._dispatcher.run(request)
            except TenureError as exc:  # storing the error as the outcome may be a commit, too
                return exc

        answer, sync = self._dispatcher.backend.deferring(work)
        if sync is not None:
            loop = asyncio.get_running_loop()
            durable: asyncio.Future[None] = loop.create_future()

            def notify() -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and so is the server
                    loop.call_soon_threadsafe(_resolve, durable)

            sync.then(notify)
            await durable
            sync.wait()  # returns at once, or raises why the commit is not durable
        if isinstance(answer, TenureError):
            raise answer
        return answer

    async def _wait(
        self, request: DecodedRequest, caller_leaves: Callable[[], Awaitable[None]] | None = None
    ) -> object:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        claim = request.call.request
        # Looking on the loop takes less than two thread switches, during which another worker may claim the job.
        on_loop = self.inline and isinstance(claim, m.ClaimBody) and claim.limit <= _SMALL_CLAIM
        run = _run_on_loop if on_loop else self.run

        def notify() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so is the server
                loop.call_soon_threadsafe(woken.set)

        gone: asyncio.Future[None] | None = None
        if caller_leaves is not None:
            gone = asyncio.ensure_future(caller_leaves())
            gone.add_done_callback(lambda done: woken.set())
        wait: Wait | None = None
        try:
            wait = await run(self._dispatcher.wait, request, notify, undo=Wait.close)
            while True:
                woken.clear()
                if gone is not None and gone.done():
                    raise CallerGone
                async with self._turn(request):
                    answer = await run(wait.look, undo=wait.release)
                if answer is not None:
                    if gone is not None and gone.done():
                        await run(wait.release, answer)
                        raise CallerGone
                    return answer
                await woken.wait()
        finally:
            if gone is not None:
                gone.cancel()
            if wait is not None:
                wait.close()


async def _run_on_loop(work: Callable[..., T], *arguments: object, undo: Callable[[T], None] | None = None) -> T:
    """As `VerbRunner.run`, without a thread: it cannot be cancelled meanwhile."""
    return work(*arguments)


def _undo_result(done: Future[T], undo: Callable[[T], None]) -> None:
    if done.exception() is None:
        try:
            undo(done.result())
        except Exception as exc:  # noqa: BLE001 - the lease expires by itself
            telemetry.warn("release_failed", exc)


def _resolve(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():  # its caller may have disconnected
        waiting.set_result(None)
