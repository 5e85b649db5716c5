"""The simulated database: transactions, the retry loop, subspaces and directories."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenure.testing.fdb import tuples
from tenure.testing.fdb.cluster import Cluster
from tenure.testing.fdb.errors import FDBError
from tenure.testing.fdb.futures import Future
from tenure.testing.fdb.shared import SharedCluster
from tenure.testing.fdb.transaction import Transaction
from tenure.testing.fdb.tuples import Item

T = TypeVar("T")


class DatabaseOptions:
    """Defaults of the transactions that the database makes."""

    def __init__(self) -> None:
        self.retry_limit = -1
        self.timeout = 0
        self.idempotent = False

    def set_transaction_retry_limit(self, limit: int) -> None:
        self.retry_limit = limit

    def set_transaction_timeout(self, milliseconds: int) -> None:
        self.timeout = milliseconds

    def set_transaction_automatic_idempotency(self) -> None:
        self.idempotent = True

    def set_transaction_max_retry_delay(self, milliseconds: int) -> None:
        """Accepted and ignored: there is no delay between tries."""


class Database:
    def __init__(self, cluster: Cluster | SharedCluster) -> None:
        self.cluster = cluster
        self.options = DatabaseOptions()

    def create_transaction(self) -> Transaction:
        made = Transaction(self, self.cluster)
        made.retry_limit = self.options.retry_limit
        made.idempotent = self.options.idempotent
        if self.options.timeout:
            made.options.set_timeout(self.options.timeout)
        return made

    def run(self, work: Callable[[Transaction], T]) -> T:
        """Run the work in a transaction, again while its error can be retried."""
        transaction = self.create_transaction()
        while True:
            try:
                result = work(transaction)
                transaction.commit().wait()
                return result
            except FDBError as error:
                transaction.on_error(error).wait()

    def get(self, key: bytes) -> bytes | None:
        return self.run(lambda tr: tr.get(key).value)

    def set(self, key: bytes, value: bytes) -> None:
        self.run(lambda tr: tr.set(key, value))

    def clear(self, key: bytes) -> None:
        self.run(lambda tr: tr.clear(key))

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self.run(lambda tr: tr.clear_range(begin, end))

    def get_and_watch(self, key: bytes) -> tuple[bytes | None, Future[None]]:
        return self.run(lambda tr: (tr.get(key).value, tr.watch(key)))


class Subspace:
    """The keys that begin with a packed tuple."""

    def __init__(self, items: tuple[Item, ...] = (), raw_prefix: bytes = b"") -> None:
        self.raw_prefix = tuples.pack(items, raw_prefix)

    def key(self) -> bytes:
        return self.raw_prefix

    def pack(self, items: tuple[Item, ...] = ()) -> bytes:
        return tuples.pack(items, self.raw_prefix)

    def pack_with_versionstamp(self, items: tuple[Item, ...]) -> bytes:
        return tuples.pack_with_versionstamp(items, self.raw_prefix)

    def unpack(self, key: bytes) -> tuple[Item, ...]:
        if not self.contains(key):
            raise ValueError("that key is not in this subspace")
        return tuples.unpack(key, len(self.raw_prefix))

    def range(self, items: tuple[Item, ...] = ()) -> slice:
        packed = self.pack(items)
        return slice(packed + b"\x00", packed + b"\xff")

    def contains(self, key: bytes) -> bool:
        return key.startswith(self.raw_prefix)

    def subspace(self, items: tuple[Item, ...]) -> Subspace:
        return Subspace(items, self.raw_prefix)

    def __getitem__(self, item: Item) -> Subspace:
        return Subspace((item,), self.raw_prefix)


class DirectoryLayer:
    """Short prefixes for long paths. It has the real layer's API, but its own storage format."""

    _NODES = b"\xfe"

    def create_or_open(self, db: Database | Transaction, path: tuple[str, ...] | str) -> Subspace:
        names = (path,) if isinstance(path, str) else tuple(path)

        def work(tr: Transaction) -> Subspace:
            node = tuples.pack(("path", *names), self._NODES)
            prefix = tr.get(node).value
            if prefix is None:
                counter = tuples.pack(("next",), self._NODES)
                number = int.from_bytes(tr.get(counter).value or b"\x01", "big")
                prefix = tuples.pack((number,))
                tr.set(counter, (number + 1).to_bytes(8, "big"))
                tr.set(node, prefix)
            return Subspace((), prefix)

        return self._run(db, work)

    def exists(self, db: Database | Transaction, path: tuple[str, ...] | str) -> bool:
        names = (path,) if isinstance(path, str) else tuple(path)
        return self._run(db, lambda tr: tr.get(tuples.pack(("path", *names), self._NODES)).present())

    def list(self, db: Database | Transaction, path: tuple[str, ...] = ()) -> list[str]:
        def work(tr: Transaction) -> list[str]:
            prefix = tuples.pack(("path", *path), self._NODES)
            rows = tr.get_range(prefix + b"\0", prefix + b"\xff").to_list()
            return [
                str(names[-1]) for names in (tuples.unpack(row.key, len(prefix)) for row in rows) if len(names) == 1
            ]

        return self._run(db, work)

    def remove(self, db: Database | Transaction, path: tuple[str, ...] | str) -> bool:
        names = (path,) if isinstance(path, str) else tuple(path)

        def work(tr: Transaction) -> bool:
            node = tuples.pack(("path", *names), self._NODES)
            prefix = tr.get(node).value
            if prefix is None:
                return False
            tr.clear(node)
            tr.clear_range_startswith(prefix)
            return True

        return self._run(db, work)

    @staticmethod
    def _run(db: Database | Transaction, work: Callable[[Transaction], T]) -> T:
        return db.run(work) if isinstance(db, Database) else work(db)
