"""Reads and changes a store's rows directly, below the verbs."""

from __future__ import annotations

from collections.abc import Callable

import tenure
from tenure.storage import keyspace
from tenure.storage.engine import Transaction
from tenure.testing.harness import engine_of


def write(store: tenure.Store, fn: Callable[[Transaction], None]) -> None:
    engine_of(store).transact(fn)


def rows(store: tenure.Store, space: int) -> list[tuple[bytes, bytes]]:
    with engine_of(store).snapshot((space,)) as moment:
        found: list[tuple[bytes, bytes]] = moment.scan(space, b"", keyspace.LAST, 1000)
        return found


def mended(store: tenure.Store) -> set[str]:
    """Repair the store, which must succeed. Returns the violated rules."""
    report = store.check(repair=True)
    assert report.ok, report.findings
    assert store.check().clean
    return {finding.rule for finding in report.findings}
