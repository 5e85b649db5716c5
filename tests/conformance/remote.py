"""Stores behind a listener or a server of this process, for the conformance suite."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.backends.owner.listener import Listener
from tenure.clock import Clock
from tenure.errors import TenureError
from tenure.protocol.dispatcher import Dispatcher
from tenure.server.service import Bind, Service, listening
from tenure.server_settings import Limits, Server
from tenure.testing.harness import EngineHarness, Harness, Part

#: Tests whose store has to be closed and opened: a process, or the machine, was started again.
_STARTED_AGAIN = {
    "test_a_lease_outlives_a_restart_of_the_machine",
    "test_after_a_step_back_and_reopening_no_lease_revives_and_nothing_is_early",
    "test_it_outlives_the_process_that_took_it",
    "test_the_calendar_far_in_the_future_and_back",
}


def behind(request: pytest.FixtureRequest, folder: Path) -> EngineHarness:
    """The store behind: RocksDB for tests on the machine's clock, which wait for syncs; else one that opens at once.

    It stays open while the client closes and opens. RocksDB itself has the whole suite in `test_rocksdb`.
    """
    again = request.node.originalname in _STARTED_AGAIN
    if "world" in request.fixturenames and "live" not in request.fixturenames and not again:
        return EngineHarness("memory")
    return EngineHarness("rocksdb", folder / "data", quick={"durability": "os"})


class ListenerHarness(Harness):
    """The suite's store is the client's. What is behind stays open while the client closes and opens, unless it is a folder."""

    race_jobs = 3_000

    def __init__(self, inner: EngineHarness, folder: Path, *, unix: bool, encoding: str) -> None:
        self._inner = inner
        self._encoding = encoding
        self._unix = folder / "s" if unix else None
        self._port = 0
        self._behind: Store | None = None
        self._listener: Any = None

    @property
    def url(self) -> str:  # type: ignore[override]
        return f"http+unix:{self._unix}" if self._unix else f"http://127.0.0.1:{self._port}"

    def open(self, *, clock: Clock | None = None, sweep: bool = False, quick: bool = False) -> Store:
        if self._behind is not None and self._inner.persistent:
            self.destroy()
        if self._behind is None:
            self._behind = self._inner.open(clock=clock, quick=quick)
            self._listener = self.listen(self._behind)
        return tenure.open(self.url, clock=clock, sweep=sweep, encoding=self._encoding)

    def listen(self, store: Store) -> Any:
        if self._unix:
            self._unix.unlink(missing_ok=True)
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(str(self._unix))
            listening.listen(128)
        else:
            listening = self._same_port(lambda port: socket.create_server(("127.0.0.1", port)))
        return Listener(listening, Dispatcher(store._backend))

    def _same_port(self, bound: Callable[[int], socket.socket]) -> socket.socket:
        """As before, unless somebody else has got it since it was let go."""
        try:
            made = bound(self._port)
        except (OSError, TenureError):
            made = bound(0)
        self._port = made.getsockname()[1]
        return made

    def damage(self, store: Store, queue: Queue, job_id: str, part: Part) -> bool:
        assert self._behind is not None
        return self._inner.damage(self._behind, queue, job_id, part)

    def destroy(self) -> None:
        if self._behind is not None:
            self._listener.stop()
            self._behind.close()
            self._behind = None


class ServerHarness(ListenerHarness):
    """Likewise, behind the server as `tenure serve` runs it, in a thread."""

    def listen(self, store: Store) -> Any:
        stack = contextlib.ExitStack()
        if self._unix:
            bind = Bind(path=str(self._unix))
            sock = stack.enter_context(listening(bind))
        else:
            sock = self._same_port(lambda port: stack.enter_context(listening(Bind("127.0.0.1", port))))
            bind = Bind("127.0.0.1", self._port)
        stack.enter_context(Service(store, bind, Server(limits=Limits(lease=10.0**9))).running(sock))
        return _Stopping(stack)


class _Stopping:
    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.stop = stack.close
