"""Stored events in users' words: the same for every store, however it keeps them."""

from __future__ import annotations

from typing import Protocol

import msgspec
from msgspec import Struct

from tenure.model.event import Event
from tenure.model.ids import NO_ID
from tenure.model.lifecycle import Change, Reason, State
from tenure.model.names import QueueName

_CHANGES = {int(change): change.name.lower() for change in Change}
_STATES = {int(state): state.name.lower() for state in State}
_WHEN = frozenset({Change.ENQUEUED, Change.CLAIMED, Change.EXTENDED, Change.RETRIED, Change.RELEASED, Change.EXPIRED,
                   Change.REPLAYED, Change.UNBLOCKED, Change.SIGNALLED, Change.REPAIRED, Change.RESTORED})  # fmt: skip
#: Bits of an event's place that are its index in its commit.
_REF_BITS = 10


class Stored(Protocol):
    """What any journal keeps of an event."""

    @property
    def change(self) -> int: ...
    @property
    def state(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def reason(self) -> int: ...
    @property
    def job(self) -> bytes: ...
    @property
    def lease(self) -> bytes: ...
    @property
    def token(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def at_ms(self) -> int: ...
    @property
    def previous(self) -> int: ...


class Place(Struct, frozen=True):
    """Where an event stands, and when it was written."""

    commit: int
    index: int
    number: int
    time_ms: int


def told(event: Stored, place: Place, name: QueueName, text: bytes) -> Event:
    """A type this Tenure does not know is shown by its number."""
    job = event.job != NO_ID
    return Event(
        commit=place.commit,
        index=place.index,
        number=place.number,
        time_ms=place.time_ms,
        type=_CHANGES.get(event.change, f"type_{event.change}"),
        tenant=name.tenant,
        queue=name.queue,
        job_id=event.job.hex() if job else None,
        state=_STATES.get(event.state, str(event.state)) if job else None,
        priority=event.priority,
        attempt=event.attempt,
        max_attempts=event.max_attempts,
        token=event.token,
        lease_id=event.lease.hex() if event.lease != NO_ID else None,
        at_ms=event.at_ms if event.change in _WHEN else None,
        reason=Reason(event.reason).name.lower() if event.reason in (1, 2) else None,
        text=_text(event.change, text),
        previous=divmod(event.previous, 1 << _REF_BITS) if event.previous else None,
    )


def _text(change: int, raw: bytes) -> str | None:
    if not raw:
        return None
    if change in (Change.QUEUE_CREATED, Change.QUEUE_CONFIGURED):
        return msgspec.json.encode(msgspec.msgpack.decode(raw)).decode()
    return raw.decode("utf-8", "replace")
