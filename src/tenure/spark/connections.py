"""Opening a store from Spark's processes: Spark plans, reads, writes and commits in Pythons of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tenure.api import opening
from tenure.api.store import Store
from tenure.bulk.snapshot_locations import is_server
from tenure.errors import StoreLocked

#: How long to wait for another process of the same job that has the store for a moment, in seconds.
PATIENCE = 30.0


@contextmanager
def opened(url: str, token: str | None = None, *, patience: float = PATIENCE) -> Iterator[Store]:
    """The store, for a while: the one this process has open already, which stays open, or one opened here.

    `token` is for a server, and passed over elsewhere. Where another process has the store and does not let others in,
    this waits for up to `patience` seconds. Raises StoreLocked then.
    """
    shared = opening.already_open(url)
    if shared is not None:
        yield shared
        return
    with _waited(url, token, patience) as store:
        yield store


def _waited(url: str, token: str | None, patience: float) -> Store:
    deadline = time.monotonic() + patience
    pause = 0.02
    while True:
        try:
            # The process that serves the store sweeps it; one that runs for the length of a task need not.
            if token is not None and is_server(url):
                return opening.open(url, sweep=False, token=token)
            return opening.open(url, sweep=False)
        except StoreLocked:
            if time.monotonic() > deadline:
                raise
            time.sleep(pause)
            pause = min(pause * 2, 0.5)
