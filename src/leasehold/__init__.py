"""Leasehold: a durable, lease-based job queue. A job is settled only by the holder of its live lease.

    import leasehold

    store = leasehold.open("rocksdb:./data")
    queue = store.queue("emails")
    queue.enqueue(b"...")
    with queue.claim(limit=10, wait=5) as claim:
        for delivery in claim:
            queue.ack(delivery)

or, with tasks and workers:

    app = leasehold.App("rocksdb:./data")

    @app.task
    def send(to: str) -> None: ...

    send.delay("ada")             # leasehold worker tasks:app

For asyncio, see `leasehold.aio`.
"""

import typing as _typing

from leasehold.clock import ManualClock, SystemClock
from leasehold.errors import (
    AlreadySettled,
    Corrupt,
    Forbidden,
    FormatError,
    InvalidArgument,
    JournalTrimmed,
    KeyConflict,
    LeaseholdError,
    LeaseLost,
    NotFound,
    OpenError,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    SettingsError,
    SnapshotExpired,
    StoreClosed,
    StoreError,
    StoreLocked,
    TaskFailed,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnknownEngine,
    WaitTimeout,
)
from leasehold.model.event import Event
from leasehold.model.job import Enqueued, Job, NewJob, Where
from leasehold.model.lease import Delivery
from leasehold.model.quota import Quota
from leasehold.model.rate import Rate
from leasehold.model.retry import Backoff, Policy
from leasehold.stores.claim import Claim
from leasehold.stores.opening import open
from leasehold.stores.queue import Queue
from leasehold.stores.store import Store

if _typing.TYPE_CHECKING:
    from leasehold.worker.app import App
    from leasehold.worker.context import current_job
    from leasehold.worker.verdicts import Dead, Retry

__version__ = "0.1.0"

__all__ = [
    "AlreadySettled",
    "App",
    "Backoff",
    "Claim",
    "Corrupt",
    "Dead",
    "Delivery",
    "Enqueued",
    "Event",
    "Forbidden",
    "FormatError",
    "InvalidArgument",
    "Job",
    "JournalTrimmed",
    "KeyConflict",
    "LeaseLost",
    "LeaseholdError",
    "ManualClock",
    "NewJob",
    "NotFound",
    "OpenError",
    "Policy",
    "Queue",
    "QueueFull",
    "Quota",
    "QuotaExceeded",
    "Rate",
    "RateLimited",
    "Retry",
    "SettingsError",
    "SnapshotExpired",
    "Store",
    "StoreClosed",
    "StoreError",
    "StoreLocked",
    "SystemClock",
    "TaskFailed",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
    "UnknownEngine",
    "WaitTimeout",
    "Where",
    "__version__",
    "current_job",
    "open",
]

#: Loaded when they are first asked for: a program that only enqueues bytes needs none of them.
_LAZY = {
    "App": "leasehold.worker.app",
    "Dead": "leasehold.worker.verdicts",
    "Retry": "leasehold.worker.verdicts",
    "current_job": "leasehold.worker.context",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'leasehold' has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
