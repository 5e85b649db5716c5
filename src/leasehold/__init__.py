"""Leasehold: a durable, lease-based job queue. A job is settled only by the holder of its live lease.

    import leasehold

    store = leasehold.open("rocksdb:./data")
    queue = store.queue("emails")
    queue.enqueue(b"...")
    with queue.claim(limit=10, wait=5) as claim:
        for delivery in claim:
            queue.ack(delivery)

For asyncio, see `leasehold.aio`.
"""

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
    OpenError,
    QueueFull,
    SettingsError,
    SnapshotExpired,
    StoreClosed,
    StoreError,
    StoreLocked,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnknownEngine,
    WaitTimeout,
)
from leasehold.model.event import Event
from leasehold.model.job import Enqueued, Job, NewJob, Where
from leasehold.model.lease import Delivery
from leasehold.model.retry import Backoff, Policy
from leasehold.stores.claim import Claim
from leasehold.stores.opening import open
from leasehold.stores.queue import Queue
from leasehold.stores.store import Store

__version__ = "0.1.0"

__all__ = [
    "AlreadySettled",
    "Backoff",
    "Claim",
    "Corrupt",
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
    "OpenError",
    "Policy",
    "Queue",
    "QueueFull",
    "SettingsError",
    "SnapshotExpired",
    "Store",
    "StoreClosed",
    "StoreError",
    "StoreLocked",
    "SystemClock",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
    "UnknownEngine",
    "WaitTimeout",
    "Where",
    "__version__",
    "open",
]
