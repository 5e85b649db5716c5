"""Where a store under test keeps its data, and the three ways its process can end: closed, killed, or never mind."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import tenure
from tenure.api.store import Store
from tenure.backends.embedded import EmbeddedBackend
from tenure.clock import ManualClock
from tenure.storage.engines.memory import MemoryEngine
from tenure.testing.fdb.cluster import Cluster
from tenure.testing.fdb.faults import Faults, Rates
from tenure.testing.fdb.harness import SimulatedHarness
from tenure.testing.harness import engine_of


class Place(Protocol):
    def open(self, clock: ManualClock) -> Store:
        """A store on new data."""

    def reopen(self, store: Store, clock: ManualClock) -> Store:
        """Closed, and opened again by another process."""

    def crash(self, store: Store, clock: ManualClock) -> Store:
        """Its process ended without a word; another opens what is there."""

    def destroy(self, store: Store) -> None: ...


class MemoryPlace:
    """The engine stays, as a disk would; all that a process knows beside it is lost."""

    def __init__(self, engine: Callable[[], MemoryEngine] = MemoryEngine) -> None:
        self._engine = engine()

    def open(self, clock: ManualClock) -> Store:
        return Store(EmbeddedBackend(self._engine, "memory:", clock))

    def reopen(self, store: Store, clock: ManualClock) -> Store:
        return self.open(clock)

    crash = reopen

    def destroy(self, store: Store) -> None:
        store.close()


class ClusterPlace:
    """A simulated FoundationDB cluster with faults. It stays; a crash leaves the process's transactions in flight.

    Claims follow the order strictly: conflicts, which the faults make, do not let them choose among more rows. (They
    may, since the engine's order is approximate; the reference model knows one order only.)
    """

    def __init__(self, seed: int = 0) -> None:
        self._harness = SimulatedHarness(Cluster(seed, faults=Faults(seed, _FAULTS)))

    def open(self, clock: ManualClock) -> Store:
        store = self._harness.open(clock=clock)
        engine_of(store).claim_width.conflict = lambda: None
        return store

    def reopen(self, store: Store, clock: ManualClock) -> Store:
        store.close()
        return self.crash(store, clock)

    def crash(self, store: Store, clock: ManualClock) -> Store:
        # Another process makes ids of its own: those of one millisecond are in no order with the ones before.
        clock.advance(0.001)
        return self.open(clock)

    def destroy(self, store: Store) -> None:
        store.close()


#: No recovery: it ends the version that a list is being read from, and the caller is told to look again.
_FAULTS = Rates(conflict=0.02, unknown=0.05, late=0.02, too_old=0.002)


class DiskPlace:
    """A folder. A crash goes on with a copy of its files as they were while the store was open."""

    def __init__(self, scheme: str, parent: Path, **options: Any) -> None:
        self._scheme = scheme
        self._options = options
        self._folder = Path(tempfile.mkdtemp(dir=parent, prefix=scheme))
        self._lives = 0

    @property
    def _data(self) -> Path:
        return self._folder / f"life-{self._lives}"

    def open(self, clock: ManualClock) -> Store:
        return tenure.open(f"{self._scheme}:{self._data}", clock=clock, sweep=False, **self._options)

    def reopen(self, store: Store, clock: ManualClock) -> Store:
        store.close()
        return self.open(clock)

    def crash(self, store: Store, clock: ManualClock) -> Store:
        old = self._data
        self._lives += 1
        _copy_one_moment(old, self._data)
        store.close()
        shutil.rmtree(old)
        return self.open(clock)

    def destroy(self, store: Store) -> None:
        store.close()
        shutil.rmtree(self._folder)


def _copy_one_moment(source: Path, target: Path) -> None:
    """Copy a folder whose owner may be tidying up in the background: until nothing changed while it was copied."""
    for _ in range(100):
        before = _listing(source)
        try:
            shutil.copytree(source, target, ignore=_sockets)
        except shutil.Error:  # a file went away
            pass
        else:
            if _listing(source) == before:
                return
        shutil.rmtree(target)
        time.sleep(0.01)
    raise AssertionError(f"{source} never stood still")


def _sockets(folder: str, names: list[str]) -> list[str]:
    """Where the owner listens: no copy of it would answer."""
    return [name for name in names if (Path(folder) / name).is_socket()]


def _listing(folder: Path) -> list[tuple[str, int, int]]:
    found = []
    for path in sorted(folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            stat = path.stat()
            found.append((str(path), stat.st_size, stat.st_mtime_ns))
    return found
