"""Random instruction streams for the stack machine, run on the simulator and on the reference model."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tenure.testing.fdb import tuples
from tenure.testing.fdb.atomics import OPERATIONS
from tenure.testing.fdb.cluster import Cluster
from tenure.testing.fdb.database import Database
from tenure.testing.fdb.tuples import Versionstamp
from tests.fdbsim.reference import ReferenceDatabase
from tests.fdbsim.stack_machine import StackMachine

_NAMES = (b"one", b"two", b"three")
_P = b"p"


class Stream:
    """Generates groups of instructions: the operands of an operation are pushed before it."""

    def __init__(self, seed: int) -> None:
        self._r = Random(seed)

    def groups(self) -> Iterator[list[tuple[Any, ...]]]:
        """Groups of instructions, without end: operands, then an operation."""
        makers = (
            (self._get, 8), (self._range, 8), (self._selector, 6), (self._range_selector, 5), (self._write, 14),
            (self._atomic, 8), (self._stamped, 3), (self._conflict, 4), (self._commit, 10), (self._use, 8),
            (self._version, 3), (self._stack, 4), (self._tuples, 5), (self._database, 3), (self._rare, 2),
        )  # fmt: skip
        while True:
            made: list[tuple[Any, ...]] = self._r.choices([m for m, _ in makers], [w for _, w in makers])[0]()
            yield made

    # ── operands ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _key(self) -> bytes:
        r = self._r
        return _P + bytes(r.choice(b"abcd") for _ in range(r.randint(1, 2))) + (b"\0" if r.random() < 0.05 else b"")

    def _value(self) -> bytes:
        return bytes(self._r.randrange(256) for _ in range(self._r.choice((0, 1, 2, 4, 8))))

    def _bounds(self) -> tuple[bytes, bytes]:
        one, other = self._key(), self._key()
        return (one, other) if one <= other or self._r.random() < 0.05 else (other, one)

    def _mode(self) -> str:
        return self._r.choice(("", "", "_SNAPSHOT", "_DATABASE"))

    @staticmethod
    def _pushed(*operands: Any) -> list[tuple[Any, ...]]:
        """Pushes, so that the first operand is popped first."""
        return [("PUSH", operand) for operand in reversed(operands)]

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _get(self) -> list[tuple[Any, ...]]:
        return [*self._pushed(self._key()), ("GET" + self._mode(),)]

    def _range(self) -> list[tuple[Any, ...]]:
        limit, reverse = self._r.choice((0, 1, 2, 5)), self._r.randrange(2)
        if self._r.random() < 0.3:
            prefix = self._key()[:2]
            return [*self._pushed(prefix, limit, reverse, -1), ("GET_RANGE_STARTS_WITH" + self._mode(),)]
        begin, end = self._bounds()
        return [*self._pushed(begin, end, limit, reverse, -1), ("GET_RANGE" + self._mode(),)]

    def _selector(self) -> list[tuple[Any, ...]]:
        operands = (self._key(), self._r.randrange(2), self._r.randint(-4, 5), _P)
        return [*self._pushed(*operands), ("GET_KEY" + self._mode(),)]

    def _range_selector(self) -> list[tuple[Any, ...]]:
        r = self._r
        begin, end = self._bounds()
        places = (begin, r.randrange(2), r.randint(-2, 3), end, r.randrange(2), r.randint(-2, 3))
        return [
            *self._pushed(*places, r.choice((0, 1, 3)), r.randrange(2), -1, _P),
            ("GET_RANGE_SELECTOR" + self._mode(),),
        ]

    def _write(self) -> list[tuple[Any, ...]]:
        r = self._r
        quiet = [("DISABLE_WRITE_CONFLICT",)] if r.random() < 0.05 else []
        kind = r.random()
        if kind < 0.6:
            return [*quiet, *self._pushed(self._key(), self._value()), ("SET",)]
        if kind < 0.8:
            return [*quiet, *self._pushed(self._key()), ("CLEAR",)]
        if kind < 0.95:
            return [*quiet, *self._pushed(*self._bounds()), ("CLEAR_RANGE",)]
        return [*quiet, *self._pushed(self._key()[:2]), ("CLEAR_RANGE_STARTS_WITH",)]

    def _atomic(self) -> list[tuple[Any, ...]]:
        kind = self._r.choice(sorted(OPERATIONS)).upper()
        return [*self._pushed(kind, self._key(), self._value()), ("ATOMIC_OP",)]

    def _stamped(self) -> list[tuple[Any, ...]]:
        if self._r.random() < 0.5:
            key = tuples.pack_with_versionstamp((Versionstamp(),), _P + b"s")
            return [*self._pushed("SET_VERSIONSTAMPED_KEY", key, self._value()), ("ATOMIC_OP",)]
        value = b"at" + bytes(10) + b"." + struct.pack("<I", self._r.choice((2, 2, 2, 60)))
        return [*self._pushed("SET_VERSIONSTAMPED_VALUE", self._key(), value), ("ATOMIC_OP",)]

    def _conflict(self) -> list[tuple[Any, ...]]:
        side = self._r.choice(("READ", "WRITE"))
        if self._r.random() < 0.5:
            return [*self._pushed(self._key()), (f"{side}_CONFLICT_KEY",)]
        return [*self._pushed(*self._bounds()), (f"{side}_CONFLICT_RANGE",)]

    def _commit(self) -> list[tuple[Any, ...]]:
        r = self._r
        stamp = [("GET_VERSIONSTAMP",)] if r.random() < 0.3 else []
        after: list[tuple[Any, ...]] = [("RESET",)] if r.random() < 0.8 else [("PUSH", 1020), ("ON_ERROR",)]
        looked = [("GET_COMMITTED_VERSION",), ("WAIT_FUTURE",)] if r.random() < 0.2 else []
        too_late = [*self._pushed(self._key()), ("GET",)] if r.random() < 0.1 else []
        return [*stamp, ("COMMIT",), ("WAIT_FUTURE",), *looked, *too_late, *after]

    def _use(self) -> list[tuple[Any, ...]]:
        return [*self._pushed(self._r.choice(_NAMES)), ("USE_TRANSACTION",)]

    def _version(self) -> list[tuple[Any, ...]]:
        if self._r.random() < 0.5:
            return [("GET_READ_VERSION" + self._r.choice(("", "_SNAPSHOT")),)]
        return [("RESET",), ("SET_READ_VERSION",)]

    def _stack(self) -> list[tuple[Any, ...]]:
        r = self._r
        return r.choice(
            (
                [("PUSH", self._value()), ("DUP",), ("CONCAT",)],
                [("PUSH", r.randrange(100)), ("PUSH", r.randrange(100)), ("SUB",)],
                [("PUSH", b"x"), ("PUSH", b"y"), ("PUSH", 1), ("SWAP",), ("POP",)],
                [("EMPTY_STACK",)],
                [("PUSH", _P + b"log"), ("LOG_STACK",)],
            )
        )

    def _tuples(self) -> list[tuple[Any, ...]]:
        r = self._r
        items = [random_item(r) for _ in range(r.randint(0, 4))]
        pushed = [("PUSH", item) for item in items]
        packed = [tuples.pack((random_item(r), random_item(r))) for _ in range(3)]
        bits = r.getrandbits(64).to_bytes(8, "big")
        return r.choice(
            (
                [*pushed, ("PUSH", len(items)), ("TUPLE_PACK",), ("TUPLE_UNPACK",)],
                [*pushed, ("PUSH", len(items)), ("TUPLE_RANGE",)],
                [*[("PUSH", p) for p in packed], ("PUSH", 3), ("TUPLE_SORT",)],
                [*pushed, ("PUSH", len(items)), ("PUSH", b"x"), ("TUPLE_PACK_WITH_VERSIONSTAMP",)],
                [("PUSH", struct.pack(">d", r.uniform(-9, 9))), ("ENCODE_DOUBLE",), ("DECODE_DOUBLE",)],
                [("PUSH", b"\x3f" + bits[:3]), ("ENCODE_FLOAT",), ("DECODE_FLOAT",)],
            )
        )

    def _database(self) -> list[tuple[Any, ...]]:
        kind = self._r.choice(("SET", "CLEAR", "CLEAR_RANGE", "ATOMIC_OP"))
        operands: tuple[Any, ...] = {
            "SET": (self._key(), self._value()),
            "CLEAR": (self._key(),),
            "CLEAR_RANGE": tuple(sorted((self._key(), self._key()))),
            "ATOMIC_OP": ("ADD", self._key(), self._value()),
        }[kind]
        return [*self._pushed(*operands), (kind + "_DATABASE",)]

    def _rare(self) -> list[tuple[Any, ...]]:
        r = self._r
        return r.choice(
            (
                [("CANCEL",), *self._pushed(self._key()), ("GET",), ("RESET",)],
                [*self._pushed(b"\xff\x01", b"v"), ("SET",)],
                [*self._pushed(_P + bytes(10_001), b"v"), ("SET",)],
                [*self._pushed(self._key(), bytes(100_001)), ("SET",)],
                [("GET_APPROXIMATE_SIZE",)],
                [("NEW_TRANSACTION",)],
            )
        )


def random_item(r: Random) -> Any:
    """A value of any type that the tuple layer has, except version stamps."""
    return r.choice(
        (
            lambda: None,
            lambda: bytes(r.choice((0, 0, 1, 255, 97)) for _ in range(r.randint(0, 5))),
            lambda: "".join(r.choice("a\0é漢\U0001f600") for _ in range(r.randint(0, 4))),
            lambda: r.choice((-1, 1)) * r.getrandbits(r.choice((0, 1, 8, 16, 32, 63, 64, 65, 80, 200))),
            lambda: r.uniform(-1e9, 1e9),
            lambda: r.random() < 0.5,
            lambda: uuid.UUID(int=r.getrandbits(128)),
            lambda: tuple(random_item(r) for _ in range(r.randint(0, 3))),
        )
    )()


def still() -> Database:
    """A database whose clock stands still: versions grow only with commits, as in the reference."""
    return Database(Cluster(time_us=lambda: 0))


def compare(seed: int, instructions: int, made: Callable[[], Database] = still) -> int:
    """Run a stream on both, and assert that they agree. Returns the number of instructions."""
    db = made()
    simulated, reference = StackMachine(db, b"one"), StackMachine(ReferenceDatabase(), b"one")
    done = 0
    for group in Stream(seed).groups():
        for instruction in group:
            simulated.execute(instruction)
            reference.execute(instruction)
        done += len(group)
        one, other = simulated.settled(), reference.settled()
        assert one == other, f"seed {seed}: after {done} instructions, {group}: {one[-2:]} and {other[-2:]}"
        if len(one) > 30:
            simulated.stack.clear()
            reference.stack.clear()
        if done >= instructions:
            break
    where = slice(b"", b"\xff")
    rows = db.run(lambda tr: tr.get_range(where.start, where.stop).to_list())
    assert rows == reference._db.run(lambda tr: tr.get_range(where.start, where.stop).to_list()), (
        f"seed {seed}: the rows differ at the end"
    )
    return done
