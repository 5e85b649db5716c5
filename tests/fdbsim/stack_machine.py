"""A stack machine that drives a binding of FoundationDB, as `bindingApiTester.md` in its repository specifies it.

Our own implementation of that specification. It runs on anything with the binding's API: the simulated one, and the
reference it is compared with.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tenure.testing.fdb import tuples
from tenure.testing.fdb.errors import FDBError
from tenure.testing.fdb.transaction import KeySelector, strinc
from tenure.testing.fdb.tuples import SingleFloat, Versionstamp

ABSENT = b"RESULT_NOT_PRESENT"


class _Later:
    """A result that is evaluated when it is popped."""

    def __init__(self, get: Callable[[], Any]) -> None:
        self.get = get


class StackMachine:
    def __init__(self, db: Any, prefix: bytes, transactions: dict[bytes, Any] | None = None) -> None:
        self._db = db
        self._prefix = self._name = prefix
        #: Shared by all machines of a test.
        self._transactions = {} if transactions is None else transactions
        self.stack: list[tuple[int, Any]] = []
        self._number = -1
        self._version = 0
        self._threads: list[threading.Thread] = []

    # ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """Execute the instructions stored under the prefix, and wait for the machines it started."""
        where = tuples.range((self._prefix,))
        rows = self._db.run(lambda tr: tr.get_range(where.start, where.stop).to_list())
        for row in rows:
            self.execute(tuples.unpack(row.value))
        for thread in self._threads:
            thread.join()

    def execute(self, instruction: Sequence[Any]) -> None:
        self._number += 1
        name = instruction[0]
        on_database, on_snapshot = name.endswith("_DATABASE"), name.endswith("_SNAPSHOT")
        base = name.removesuffix("_DATABASE").removesuffix("_SNAPSHOT")
        if base == "PUSH":
            self._push(instruction[1])
            return
        method = getattr(self, "_" + base.lower())
        if base in _PLAIN:
            method()
            return
        try:
            if base in _ON_TRANSACTION:
                self._on_transaction(method, on_database, on_snapshot)
            else:
                method()
        except FDBError as error:
            self._push(_told(error))

    def _on_transaction(self, method: Callable[[Any, Any], Any], on_database: bool, on_snapshot: bool) -> None:
        operands = [self.pop() for _ in range(_ON_TRANSACTION[method.__name__[1:].upper()])]
        if on_database:
            result = self._db.run(lambda tr: method(tr, operands))
            self._push(ABSENT if result is None else result)
            return
        current = self._current()
        result = method(current.snapshot if on_snapshot else current, operands)
        if result is not None:
            self._push(result)

    def _current(self) -> Any:
        if self._name not in self._transactions:
            self._transactions[self._name] = self._db.create_transaction()
        return self._transactions[self._name]

    # ── the stack ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _push(self, item: Any, number: int | None = None) -> None:
        self.stack.append((self._number if number is None else number, item))

    def _take(self) -> tuple[int, Any]:
        number, item = self.stack.pop()
        return number, _settled(item)

    def pop(self) -> Any:
        return self._take()[1]

    def settled(self) -> list[tuple[int, Any]]:
        """The whole stack, with all results evaluated."""
        self.stack = [(number, _settled(item)) for number, item in self.stack]
        return self.stack

    def _dup(self) -> None:
        self.stack.append(self.stack[-1])

    def _empty_stack(self) -> None:
        self.stack.clear()

    def _swap(self) -> None:
        depth = self.pop()
        top, other = len(self.stack) - 1, len(self.stack) - 1 - depth
        self.stack[top], self.stack[other] = self.stack[other], self.stack[top]

    def _pop(self) -> None:
        self.pop()

    def _sub(self) -> None:
        first, second = self.pop(), self.pop()
        self._push(first - second)

    def _concat(self) -> None:
        first, second = self.pop(), self.pop()
        self._push(first + second)

    def _wait_future(self) -> None:
        number, item = self._take()
        self._push(item, number)

    def _log_stack(self) -> None:
        prefix = self.pop()
        entries = list(enumerate(self.settled()))
        self.stack = []
        for at in range(0, len(entries), 100):

            def write(tr: Any, part: list[Any] = entries[at : at + 100]) -> None:
                for index, (number, item) in part:
                    tr.set(prefix + tuples.pack((index, number)), tuples.pack((item,))[:40_000])

            self._db.run(write)

    # ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _new_transaction(self) -> None:
        self._transactions[self._name] = self._db.create_transaction()

    def _use_transaction(self) -> None:
        self._name = self.pop()
        self._current()

    def _on_error(self) -> None:
        future = self._current().on_error(self.pop())
        self._push(_Later(future.wait))

    def _commit(self) -> None:
        future = self._current().commit()
        self._push(_Later(future.wait))

    def _reset(self) -> None:
        self._current().reset()

    def _cancel(self) -> None:
        self._current().cancel()

    def _get_read_version(self, tr: Any, operands: list[Any]) -> Any:
        self._version = tr.get_read_version().wait()
        return b"GOT_READ_VERSION"

    def _set_read_version(self) -> None:
        self._current().set_read_version(self._version)

    def _get_committed_version(self) -> None:
        self._version = self._current().get_committed_version()
        self._push(b"GOT_COMMITTED_VERSION")

    def _get_approximate_size(self) -> None:
        self._current().get_approximate_size().wait()
        self._push(b"GOT_APPROXIMATE_SIZE")

    def _get_versionstamp(self) -> None:
        stamp = self._current().get_versionstamp()
        self._push(_Later(lambda: stamp.value))

    # ── reads ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _get(self, tr: Any, operands: list[Any]) -> Any:
        value = tr.get(operands[0]).value
        return ABSENT if value is None else value

    def _get_key(self, tr: Any, operands: list[Any]) -> Any:
        key, or_equal, offset, prefix = operands
        result = tr.get_key(KeySelector(key, bool(or_equal), offset)).value
        if result.startswith(prefix):
            return result
        return prefix if result < prefix else strinc(prefix)

    def _get_range(self, tr: Any, operands: list[Any]) -> Any:
        begin, end, limit, reverse, mode = operands
        return _packed(tr.get_range(begin, end, limit, bool(reverse), mode).to_list())

    def _get_range_starts_with(self, tr: Any, operands: list[Any]) -> Any:
        prefix, limit, reverse, mode = operands
        return _packed(tr.get_range(prefix, strinc(prefix), limit, bool(reverse), mode).to_list())

    def _get_range_selector(self, tr: Any, operands: list[Any]) -> Any:
        begin = KeySelector(operands[0], bool(operands[1]), operands[2])
        end = KeySelector(operands[3], bool(operands[4]), operands[5])
        limit, reverse, mode, prefix = operands[6:]
        rows = tr.get_range(begin, end, limit, bool(reverse), mode).to_list()
        return _packed(row for row in rows if row.key.startswith(prefix))

    # ── writes ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _set(self, tr: Any, operands: list[Any]) -> None:
        tr.set(*operands)

    def _clear(self, tr: Any, operands: list[Any]) -> None:
        tr.clear(operands[0])

    def _clear_range(self, tr: Any, operands: list[Any]) -> None:
        tr.clear_range(*operands)

    def _clear_range_starts_with(self, tr: Any, operands: list[Any]) -> None:
        tr.clear_range(operands[0], strinc(operands[0]))

    def _atomic_op(self, tr: Any, operands: list[Any]) -> None:
        kind, key, value = operands
        tr.atomic(kind.lower(), key, value)

    def _disable_write_conflict(self) -> None:
        self._current().options.set_next_write_no_write_conflict_range()

    def _read_conflict_range(self) -> None:
        begin, end = self.pop(), self.pop()
        self._current().add_read_conflict_range(begin, end)
        self._push(b"SET_CONFLICT_RANGE")

    def _write_conflict_range(self) -> None:
        begin, end = self.pop(), self.pop()
        self._current().add_write_conflict_range(begin, end)
        self._push(b"SET_CONFLICT_RANGE")

    def _read_conflict_key(self) -> None:
        key = self.pop()
        self._current().add_read_conflict_range(key, key + b"\0")
        self._push(b"SET_CONFLICT_KEY")

    def _write_conflict_key(self) -> None:
        key = self.pop()
        self._current().add_write_conflict_range(key, key + b"\0")
        self._push(b"SET_CONFLICT_KEY")

    # ── tuples ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _several(self) -> list[Any]:
        return [self.pop() for _ in range(self.pop())]

    def _tuple_pack(self) -> None:
        self._push(tuples.pack(self._several()))

    def _tuple_pack_with_versionstamp(self) -> None:
        prefix = self.pop()
        items = self._several()
        try:
            packed = tuples.pack_with_versionstamp(items, prefix)
        except ValueError as error:
            self._push(b"ERROR: NONE" if str(error).startswith("no ") else b"ERROR: MULTIPLE")
            return
        self._push(b"OK")
        self._push(packed)

    def _tuple_unpack(self) -> None:
        for item in tuples.unpack(self.pop()):
            incomplete = isinstance(item, Versionstamp) and not item.is_complete()
            self._push(tuples.pack_with_versionstamp((item,))[:-4] if incomplete else tuples.pack((item,)))

    def _tuple_range(self) -> None:
        where = tuples.range(self._several())
        self._push(where.start)
        self._push(where.stop)

    def _tuple_sort(self) -> None:
        for packed in sorted(self._several()):
            self._push(packed)

    def _encode_float(self) -> None:
        self._push(SingleFloat(struct.unpack(">f", self.pop())[0]))

    def _encode_double(self) -> None:
        self._push(struct.unpack(">d", self.pop())[0])

    def _decode_float(self) -> None:
        self._push(struct.pack(">f", self.pop().value))

    def _decode_double(self) -> None:
        self._push(struct.pack(">d", self.pop()))

    # ── threads ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _start_thread(self) -> None:
        other = StackMachine(self._db, self.pop(), self._transactions)
        thread = threading.Thread(target=other.run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _wait_empty(self) -> None:
        prefix = self.pop()

        def look(tr: Any) -> None:
            if tr.get_range(prefix, strinc(prefix), 1).to_list():
                raise FDBError(1020)

        self._db.run(look)
        self._push(b"WAITED_FOR_EMPTY")


#: Operations on the stack itself, which cannot raise database errors.
_PLAIN = frozenset({"DUP", "EMPTY_STACK", "SWAP", "POP", "SUB", "CONCAT", "NEW_TRANSACTION", "USE_TRANSACTION"})
#: Operations on a transaction, its snapshot or the database, with their number of operands.
_ON_TRANSACTION = {
    "GET": 1, "GET_KEY": 4, "GET_RANGE": 5, "GET_RANGE_STARTS_WITH": 4, "GET_RANGE_SELECTOR": 10,
    "GET_READ_VERSION": 0, "SET": 2, "CLEAR": 1, "CLEAR_RANGE": 2, "CLEAR_RANGE_STARTS_WITH": 1, "ATOMIC_OP": 3,
}  # fmt: skip


def _settled(item: Any) -> Any:
    if not isinstance(item, _Later):
        return item
    try:
        result = item.get()
    except FDBError as error:
        return _told(error)
    return ABSENT if result is None else result


def _told(error: FDBError) -> bytes:
    return tuples.pack((b"ERROR", str(error.code).encode()))


def _packed(rows: Iterable[Any]) -> bytes:
    return tuples.pack([part for row in rows for part in (row.key, row.value)])
