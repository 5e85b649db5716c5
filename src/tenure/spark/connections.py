"""Open a store in Spark's processes: Spark plans, reads, writes and commits in separate Python processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tenure.api import opening
from tenure.api.store import Store
from tenure.bulk.snapshot_locations import is_server
from tenure.errors import StoreLocked

#: Seconds to wait while another process of the same Spark job has the store open.
PATIENCE = 30.0


@contextmanager
def opened(url: str, token: str | None = None, *, patience: float = PATIENCE) -> Iterator[Store]:
    """The store, open within the block: one that this process has open already, which stays open, or a new one.

    `token` is for a server; other stores ignore it. If another process has the store open and serves no clients, this
    waits up to `patience` seconds, and then raises StoreLocked.
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
            # The store's owner sweeps it; a process that lives as long as one task need not.
            if token is not None and is_server(url):
                return opening.open(url, sweep=False, token=token)
            return opening.open(url, sweep=False)
        except StoreLocked:
            if time.monotonic() > deadline:
                raise
            time.sleep(pause)
            pause = min(pause * 2, 0.5)
