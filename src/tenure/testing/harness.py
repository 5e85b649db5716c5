"""What the conformance suite needs of a store: how to open it, and what it can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Literal

import tenure
from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import Clock
from tenure.contract.backend import Backend
from tenure.model.ids import job_id_bytes
from tenure.storage import keyspace
from tenure.storage.engine import Reader, Transaction

Part = Literal["payload", "state"]
"""What of a job is damaged: the row that never changes (its payload), or the one that does (its state)."""


class Harness(ABC):
    """A location for one store's data. The suite makes a new one for every test."""

    #: Whether the data survives closing and reopening the store.
    persistent: bool = True
    #: Whether `open` takes a ManualClock; if not, the tests that move time are skipped.
    manual_clock: bool = True
    #: The URL by which `tenure.open` in another process opens the same data; None: no other process can.
    url: str | None = None
    #: How many jobs the race tests use.
    race_jobs: int = 20_000

    @abstractmethod
    def open(self, *, clock: Clock | None = None, sweep: bool = False, quick: bool = False) -> Store:
        """Open the store on this harness's data, which the first call creates. It is closed before the next call.

        `quick`: a durability below the default is enough, if it is faster.
        """

    def url_at(self, path: Path) -> str | None:
        """The URL of a store of this kind in that folder; None if a store is not a folder."""
        return None

    def damage(self, store: Store, queue: Queue, job_id: str, part: Part) -> bool:
        """Flip a byte of a job's row in the open store; False if that is not possible."""
        return False

    def destroy(self) -> None:  # noqa: B027 - many stores have nothing to remove
        """Remove the data. Every store is closed by now."""


class EngineHarness(Harness):
    """A store that `tenure.open` makes on an engine."""

    def __init__(self, scheme: str, folder: Path | None = None, quick: dict[str, Any] | None = None) -> None:
        self._scheme = scheme
        self._quick = quick or {}
        self.persistent = folder is not None
        self._url = scheme + ":" if folder is None else f"{scheme}:{folder}"
        self.url = None if folder is None else self._url

    def open(self, *, clock: Clock | None = None, sweep: bool = False, quick: bool = False) -> Store:
        options: dict[str, Any] = self._quick if quick else {}
        return tenure.open(self._url, clock=clock, sweep=sweep, **options)

    def url_at(self, path: Path) -> str | None:
        return f"{self._scheme}:{path}" if self.persistent else None

    def damage(self, store: Store, queue: Queue, job_id: str, part: Part) -> bool:
        number = next(q.number for q in store.queues() if (q.tenant, q.queue) == queue.name)
        space = {"payload": keyspace.JOBS, "state": keyspace.STATE}[part]
        key = keyspace.of_queue(number, job_id_bytes(job_id))
        engine = engine_of(store)

        def look(reader: Reader) -> bytes | None:
            return reader.get(space, key)

        value = engine.read(look)
        assert value is not None, f"there is no {part} of job {job_id} to damage"
        damaged = bytearray(value)
        damaged[len(damaged) // 2] ^= 0x10

        def write(tx: Transaction) -> None:
            tx.put(space, key, bytes(damaged))

        engine.transact(write)
        return True


def backend_of(store: Store) -> Backend:
    """The store's backend, for tests of the contract."""
    return store.backend


def engine_of(store: Store) -> Any:
    """The engine of an embedded store, for tests below the contract."""
    return store.backend._engine  # type: ignore[attr-defined]


def driver_of(store: Store) -> Any:
    """The engine without the layer of segments, for tests below that layer."""
    engine = engine_of(store)
    return getattr(engine, "inner", engine)
