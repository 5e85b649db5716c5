"""An operation carried out from an event loop: verbs run in threads, waiting holds none.

Whoever calls it off meanwhile loses nothing: what was leased to them by then goes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tenure import telemetry
from tenure.protocol.dispatcher import Begun, Host
from tenure.protocol.in_flight import Attended, Turn

T = TypeVar("T")


class Carrier:
    def __init__(self, host: Host, threads: int = 8) -> None:
        self._host = host
        self._threads = ThreadPoolExecutor(threads, "tenure-capnp-verb")

    def close(self) -> None:
        self._threads.shutdown()

    async def carry(self, begun: Begun) -> object:
        if begun.waiting is not None:
            return await self._attend(begun)
        entry = Attended(Turn(), lambda: None)
        return await self._thread(lambda: self._host.run(begun), lambda answer: self._return(begun, entry, answer))

    async def _attend(self, begun: Begun) -> object:
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def told() -> None:
            loop.call_soon_threadsafe(news.set)

        host = self._host
        entry = host.attendance.enter(begun.key, told)
        watch = host.watch(begun, told)
        try:
            while True:
                news.clear()
                answer = await self._thread(
                    lambda: host.look(begun, watch, entry), lambda answer: self._return(begun, entry, answer)
                )
                if answer is not None:
                    return answer
                await news.wait()
        finally:
            watch.close()
            host.attendance.leave(begun.key, entry)

    async def _thread(self, work: Callable[[], T], undo: Callable[[T], None]) -> T:
        future = self._threads.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            # It may not be stopped any more; then its answer has nobody to go to.
            if not future.cancel():
                future.add_done_callback(lambda done: None if done.exception() else undo(done.result()))
            raise

    def _return(self, begun: Begun, entry: Attended, answer: object) -> None:
        try:
            self._host.give_back(begun, entry, answer)
        except Exception as exc:  # noqa: BLE001 - its lease runs out by itself
            telemetry.warn("capnp_give_back_failed", exc)
