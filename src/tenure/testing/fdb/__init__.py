"""An imitation of the `fdb` module (FoundationDB's Python binding), on a cluster that is simulated in this process.

    import tenure.testing.fdb as fdb
    cluster = fdb.Cluster(seed=7, faults=fdb.Faults(7, fdb.Rates(unknown=0.1)))
    db = fdb.Database(cluster)

    cluster.py      versions, optimistic commits, watches, limits        faults.py     injected faults, by seed
    transaction.py  read-your-writes, key selectors, conflict ranges     scheduler.py  order of threads, by seed
    tuples.py       the tuple layer                                      database.py   retry loop, subspaces, directories
    shared.py       other processes reach the cluster by its file        locality.py   where shards begin

The build machines have no FoundationDB server or client library, so the engine is tested on this simulator.
`tests/fdbsim/` tests the simulator itself: a stack machine as FoundationDB's binding tester specifies it, compared with
a sequential reference; its tuples compared with `fdb.tuple`; and planted defects, each of which a test must find.
"""

from __future__ import annotations

from tenure.testing.fdb import locality
from tenure.testing.fdb import tuples as tuple  # noqa: A004 - the binding's name
from tenure.testing.fdb.cluster import Cluster
from tenure.testing.fdb.database import Database, DirectoryLayer, Subspace
from tenure.testing.fdb.errors import FDBError, predicates
from tenure.testing.fdb.faults import Faults, Rates
from tenure.testing.fdb.futures import Future, Value
from tenure.testing.fdb.shared import cluster_of
from tenure.testing.fdb.transaction import KeySelector, KeyValue, Transaction, strinc


class StreamingMode:
    """Accepted and ignored: rows are always fetched at once."""

    want_all, iterator, exact, small, medium, large, serial = -2, -1, 0, 1, 2, 3, 4


directory = DirectoryLayer()
#: Clusters by the name of their cluster file.
_clusters: dict[str, Cluster] = {}


def api_version(version: int) -> None:
    """Accepted: this is version 730."""


def open(cluster_file: str | None = None) -> Database:
    """The database of a cluster file: of another process (`shared`), or of the cluster with that name in this one."""
    name = cluster_file or ""
    shared = cluster_of(name)
    if shared is not None:
        return Database(shared)
    return Database(_clusters.setdefault(name, Cluster()))


__all__ = [
    "Cluster", "Database", "DirectoryLayer", "FDBError", "Faults", "Future", "KeySelector", "KeyValue", "Rates",
    "StreamingMode", "Subspace", "Transaction", "Value", "api_version", "directory", "locality", "open",
    "predicates", "strinc", "tuple",
]  # fmt: skip
