"""Tenure: a durable, lease-based job queue. A job is settled only by the holder of its live lease.

    import tenure

    store = tenure.open("rocksdb:./data")
    queue = store.queue("emails")
    queue.enqueue(b"...")
    with queue.claim(limit=10, wait=5) as claim:
        for delivery in claim:
            queue.ack(delivery)

or, with tasks and workers:

    app = tenure.App("rocksdb:./data")

    @app.task
    def send(to: str) -> None: ...

    send.delay("ada")             # tenure worker tasks:app

For asyncio, see `tenure.aio`.
"""

import typing as _typing

from tenure.api.claim import Claim
from tenure.api.opening import open
from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock, SystemClock
from tenure.errors import (
    AlreadySettled,
    Corrupt,
    Forbidden,
    FormatError,
    InvalidArgument,
    JournalTrimmed,
    KeyConflict,
    LeaseLost,
    NotFound,
    OpenError,
    QueueFull,
    QueueNotEmpty,
    QuotaExceeded,
    RateLimited,
    SettingsError,
    SnapshotExpired,
    StoreClosed,
    StoreError,
    StoreLocked,
    TaskFailed,
    TenureError,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnknownEngine,
    WaitTimeout,
)
from tenure.model.event import Event
from tenure.model.group import GroupPolicy
from tenure.model.job import Enqueued, Job, NewJob, Where
from tenure.model.lease import Delivery
from tenure.model.quota import Quota
from tenure.model.rate import Rate
from tenure.model.retry import Backoff, Policy
from tenure.version import __version__

if _typing.TYPE_CHECKING:
    from tenure.worker.app import App
    from tenure.worker.context import current_job
    from tenure.worker.flows import Flow, chain, group
    from tenure.worker.outcomes import Dead, Retry, Snooze

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
    "Flow",
    "Forbidden",
    "FormatError",
    "GroupPolicy",
    "InvalidArgument",
    "Job",
    "JournalTrimmed",
    "KeyConflict",
    "LeaseLost",
    "ManualClock",
    "NewJob",
    "NotFound",
    "OpenError",
    "Policy",
    "Queue",
    "QueueFull",
    "QueueNotEmpty",
    "Quota",
    "QuotaExceeded",
    "Rate",
    "RateLimited",
    "Retry",
    "SettingsError",
    "SnapshotExpired",
    "Snooze",
    "Store",
    "StoreClosed",
    "StoreError",
    "StoreLocked",
    "SystemClock",
    "TaskFailed",
    "TenureError",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
    "UnknownEngine",
    "WaitTimeout",
    "Where",
    "__version__",
    "chain",
    "current_job",
    "group",
    "open",
]

#: Imported on first use: a program that only enqueues bytes needs none of them.
_LAZY = {
    "App": "tenure.worker.app",
    "Dead": "tenure.worker.outcomes",
    "Flow": "tenure.worker.flows",
    "Retry": "tenure.worker.outcomes",
    "Snooze": "tenure.worker.outcomes",
    "chain": "tenure.worker.flows",
    "current_job": "tenure.worker.context",
    "group": "tenure.worker.flows",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'tenure' has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
