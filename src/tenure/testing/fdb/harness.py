"""The conformance suite's harness for FoundationDB: a simulated cluster, or a real one."""

from __future__ import annotations

import secrets
import time

from tenure.api.store import Store
from tenure.api.sweeper import Sweeper
from tenure.backends.embedded import EmbeddedBackend
from tenure.clock import Clock, ManualClock, SystemClock
from tenure.storage.engines.foundationdb import FoundationEngine
from tenure.testing import fdb
from tenure.testing.fdb.cluster import Cluster
from tenure.testing.harness import EngineHarness


class SimulatedHarness(EngineHarness):
    """A store in its own cluster, simulated in this process. The cluster keeps the data when the store is closed."""

    url = None
    persistent = True
    race_jobs = 400

    #: Seconds of the machine's clock for one second of the cluster: the simulation is slower than a real cluster.
    slower = 4

    def __init__(self, cluster: Cluster | None = None, *, grace: float = 0.0) -> None:
        self.cluster = cluster or Cluster(time_us=lambda: time.monotonic_ns() // 1000 // self.slower)
        self._grace = grace

    def open(self, *, clock: Clock | None = None, sweep: bool = False, quick: bool = False) -> Store:
        # Slightly fewer versions than a second has: commits advance the version while a manual clock stands still.
        versions = 990_000
        if isinstance(clock, ManualClock):
            follow(self.cluster, clock)
        else:
            versions //= self.slower
        engine = FoundationEngine(
            fdb,
            fdb.Database(self.cluster),
            grace=self._grace,
            lease_versions=versions,
            steady=lambda: self.cluster.time_us() / 1e6,
        )
        clock = SystemClock() if clock is None else clock
        backend = EmbeddedBackend(engine, "foundationdb:simulated", clock)
        return Store(backend, sweeper=Sweeper(clock, 1.0) if sweep else None)

    def url_at(self, path: object) -> str | None:
        return None

    def destroy(self) -> None:
        assert self.cluster.largest <= 1_000_000, f"a transaction had {self.cluster.largest:,} bytes"


class ClusterHarness(EngineHarness):
    """A store in a real cluster, in its own directory, which is removed at the end."""

    url = None
    persistent = True
    manual_clock = False
    race_jobs = 400

    def __init__(self, cluster_file: str) -> None:
        from tenure.storage.engines.foundationdb.binding import load

        self._fdb = load()
        self._db = self._fdb.open(cluster_file)
        self._path = ("tenure-conformance", secrets.token_hex(8))

    def open(self, *, clock: Clock | None = None, sweep: bool = False, quick: bool = False) -> Store:
        engine = FoundationEngine(self._fdb, self._db, self._path, grace=0.0)
        clock = SystemClock() if clock is None else clock
        return Store(EmbeddedBackend(engine, "foundationdb:", clock), sweeper=Sweeper(clock, 1.0) if sweep else None)

    def url_at(self, path: object) -> str | None:
        return None

    def destroy(self) -> None:
        self._fdb.directory.remove(self._db, self._path)


def follow(cluster: Cluster, clock: ManualClock) -> None:
    """Make the cluster's versions follow the steady time of a manual clock."""
    base = cluster.current_version()
    began = clock.unset_ms()
    elapsed = cluster.time_us()
    cluster.time_us = lambda: elapsed + 1000 * (clock.unset_ms() - began)
    assert cluster.current_version() >= base
