"""Opening a store from Spark's processes, of which there are many kinds, and none of them is the driver's own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tenure.api import opening
from tenure.api.store import Store
from tenure.errors import StoreLocked

#: How long to wait for another process of the same job that has the store for a moment, in seconds.
PATIENCE = 30.0


@contextmanager
def opened(url: str, patience: float = PATIENCE) -> Iterator[Store]:
    """The store, for a while: the one this process has open already, which stays so, or one of our own.

    Where another process has it and does not let others in, wait for it to let go.
    """
    shared = opening.already_open(url)
    if shared is not None:
        yield shared
        return
    with _waited(url, patience) as store:
        yield store


def _waited(url: str, patience: float) -> Store:
    deadline = time.monotonic() + patience
    pause = 0.02
    while True:
        try:
            # Whoever serves the store sweeps it; what runs for the length of a task need not.
            return opening.open(url, sweep=False)
        except StoreLocked:
            if time.monotonic() > deadline:
                raise
            time.sleep(pause)
            pause = min(pause * 2, 0.5)
