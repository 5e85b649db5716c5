"""Which conformance tests a store runs in `make test`, where another store has already shown what they assert.

A client speaks to one of two servers (the server of `tenure serve`, the listener of a store's owner) in one of two
encodings (JSON, MessagePack): four pairings. Behind all of them are the same verbs, which the embedded stores show whole. So
a test speaks in one pairing, chosen by its name, and in more where that finds more:

- in both servers, if its theme is in `BY_SERVER`: each server waits, and ends connections, in its own way;
- in further pairings, if the method of `Queue` or `Store` that it calls would not be called there otherwise.

ALL_COMBINATIONS=1 (`make test-full`) runs every test everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from types import CodeType, FunctionType
from typing import Any, Literal

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.testing import conformance
from tests.combinations import ALL_COMBINATIONS, in_turn

BY_SERVER = {"opening", "processes", "races", "requests", "waiting"}

ServerName = Literal["server", "listener"]
Encoding = Literal["json", "msgpack"]
Pairing = tuple[ServerName, Encoding]
SERVERS: tuple[ServerName, ...] = ("server", "listener")
ENCODINGS: tuple[Encoding, ...] = ("json", "msgpack")
PAIRINGS: frozenset[Pairing] = frozenset(product(SERVERS, ENCODINGS))
#: The methods that a test may call on a queue or a store.
METHODS = frozenset(name for kind in (Queue, Store) for name in vars(kind) if not name.startswith("_"))


def remove(names: dict[str, Any], unwanted: Callable[[str], bool]) -> None:
    """Remove tests from a module's names, unless all combinations run."""
    for test in () if ALL_COMBINATIONS else TESTS:
        if unwanted(test):
            del names[test]


def encodings_of(test: str, server: ServerName) -> list[Encoding]:
    """In which encodings this test speaks to that server."""
    pairings = PAIRINGS if ALL_COMBINATIONS else chosen_pairings()[test]
    return [encoding for encoding in ENCODINGS if (server, encoding) in pairings]


@cache
def chosen_pairings() -> dict[str, set[Pairing]]:
    """The pairings of each test: together they call each method in all four."""
    chosen: dict[str, set[Pairing]] = {}
    for test in TESTS:
        first = in_turn(test, sorted(PAIRINGS))
        chosen[test] = {first}
        if theme_of(test) in BY_SERVER:
            chosen[test] |= {
                (server, encoding) for server, encoding in PAIRINGS if server != first[0] and encoding != first[1]
            }
    uses = {name: names_in(test.__code__) for name, test in TESTS.items()}
    for method in sorted(METHODS):
        callers = [test for test in TESTS if method in uses[test]]
        missing = PAIRINGS.difference(*(chosen[test] for test in callers))
        for pairing in sorted(missing) if callers else ():
            chosen[min(callers, key=lambda test: len(chosen[test]))].add(pairing)
    return chosen


def theme_of(test: str) -> str:
    return TESTS[test].__module__.rpartition(".")[2]


def names_in(code: CodeType) -> set[str]:
    """The names that a function uses, and the functions within it."""
    return set(code.co_names).union(*(names_in(part) for part in code.co_consts if isinstance(part, CodeType)))


TESTS: dict[str, FunctionType] = {
    name: vars(conformance)[name] for name in conformance.__all__ if name.startswith("test_")
}
