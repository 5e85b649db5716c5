"""What happened, as the journal tells it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

from tenure.model.durations import as_datetime


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened. (commit, index) is its place; `number` counts events from 1 without a gap."""

    commit: int
    index: int
    number: int
    time_ms: int
    #: enqueued, claimed, done, … (`model.lifecycle.Change`, in lower case)
    type: str
    tenant: str
    queue: str
    job_id: str | None = None
    #: waiting, leased, done, dead or gone: the job's state from here on
    state: str | None = None
    priority: int = 0
    attempt: int = 0
    max_attempts: int = 0
    token: int = 0
    lease_id: str | None = None
    #: When the job is visible (enqueued, retried, released, expired, replayed) or the lease ends (claimed, extended).
    at_ms: int | None = None
    #: Of a death: max_attempts or failed.
    reason: str | None = None
    #: The worker of a claim, the error of a failure, the policy of a configuration.
    text: str | None = None
    #: The place of this job's event before this one.
    previous: tuple[int, int] | None = None

    @property
    def time(self) -> datetime:
        return as_datetime(self.time_ms)


class EventPage(msgspec.Struct, frozen=True):
    """Some events in order, and the cursor to go on from (always there: the journal has no last page)."""

    events: list[Event]
    cursor: str

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)
