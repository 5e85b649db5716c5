"""What the conformance suite needs to know of a store: how to open it, and what it can do."""

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
    """One place where a store keeps its data. The suite takes a new one for every test."""

    #: Whether what was written is still there when the store is closed and opened again.
    persistent: bool = True
    #: Whether `open` takes a ManualClock; where it does not, the tests that move time are skipped.
    manual_clock: bool = True
    #: What `tenure.open` takes in another process to reach the same data; None: no other process can.
    url: str | None = None
    #: How many jobs the races fight over.
    race_jobs: int = 20_000

    @abstractmethod
    def open(self, *, clock: Clock | None = None, sweep: bool = False, quick: bool = False) -> Store:
        """Open the store on this harness's data, made at the first call; the last one opened has been closed.

        `quick`: a durability below the default will do, where that is faster.
        """

    def url_at(self, path: Path) -> str | None:
        """The address of a store of this kind in that folder; None where a store is not a folder."""
        return None

    def damage(self, store: Store, queue: Queue, job_id: str, part: Part) -> bool:
        """Flip a byte of what the open store keeps of a job; False where that cannot be done."""
        return False

    def destroy(self) -> None:  # noqa: B027 - many stores have nothing to remove
        """Remove the data. Every store is closed by now."""


class EngineHarness(Harness):
    """A store that `tenure.open` makes on an engine of the seam."""

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
    """What the store is a façade of: for tests of the contract beneath it."""
    return store.backend


def engine_of(store: Store) -> Any:
    """The engine under an embedded store: for tests that reach below the contract."""
    return store.backend._engine  # type: ignore[attr-defined]


def driver_of(store: Store) -> Any:
    """The engine itself, without what makes rows of segments: for tests that reach below that."""
    engine = engine_of(store)
    return getattr(engine, "inner", engine)
