"""Events of the journal, as users read them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

from tenure.model.durations import as_datetime

#: A timeline holds at most this many events of its job, with texts of about so many characters: the newest.
MAX_TIMELINE = 10_000
MAX_TIMELINE_TEXT = 16 * 1024**2


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event. (commit, index) is its position in the journal; `number` counts events from 1 without a gap."""

    commit: int
    index: int
    number: int
    time_ms: int
    #: enqueued, claimed, done, … (`model.lifecycle.Change`, in lower case)
    type: str
    tenant: str
    queue: str
    job_id: str | None = None
    #: The job's state after this event: blocked, waiting, leased, done, dead or gone
    state: str | None = None
    priority: int = 0
    attempt: int = 0
    max_attempts: int = 0
    token: int = 0
    lease_id: str | None = None
    #: When the job is visible (enqueued, retried, released, expired, replayed) or the lease ends (claimed, extended).
    at_ms: int | None = None
    #: Why the job died: max_attempts or failed. None for other events.
    reason: str | None = None
    #: claimed: the worker. retried, died: the error. queue_created, queue_configured: the policy as JSON.
    text: str | None = None
    #: The position of this job's preceding event.
    previous: tuple[int, int] | None = None

    @property
    def time(self) -> datetime:
        return as_datetime(self.time_ms)


class EventPage(msgspec.Struct, frozen=True):
    """Events in order, and the cursor of the next page (always set: the journal has no last page)."""

    events: list[Event]
    cursor: str

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)
