"""A look-alike of the `fdb` module (FoundationDB's Python binding), on a cluster that is simulated in this process.

    import tenure.testing.fdb as fdb
    cluster = fdb.Cluster(seed=7, faults=fdb.Faults(7, fdb.Rates(unknown=0.1)))
    db = fdb.Database(cluster)

    cluster.py      versions, optimistic commits, watches, limits        faults.py     what goes wrong, by seed
    transaction.py  read-your-writes, key selectors, conflict ranges     scheduler.py  who goes next, by seed
    tuples.py       the tuple layer                                      database.py   retry loop, subspaces, directories
    shared.py       other processes reach the cluster by its file        locality.py   where shards begin

No FoundationDB server or client library can be had on the build machines, so the adapter is proved on this. The
simulator itself is proved by `tests/fdbsim/`: a stack machine as FoundationDB's binding tester specifies it, run against
a sequential reference; its tuples against `fdb.tuple`; and defects put in on purpose, each of which a test must find.
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
    """How rows are fetched; here all at once, whatever is asked for."""

    want_all, iterator, exact, small, medium, large, serial = -2, -1, 0, 1, 2, 3, 4


directory = DirectoryLayer()
#: Clusters by the name of their cluster file.
_clusters: dict[str, Cluster] = {}


def api_version(version: int) -> None:
    """Accepted: this is version 730."""


def open(cluster_file: str | None = None) -> Database:
    """The database of a cluster file: that of another process (`shared`), or else the same name, the same cluster."""
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
