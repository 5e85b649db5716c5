"""Conversion of a stored event to the public `Event`, shared by every backend."""

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
_TIMED = frozenset({Change.ENQUEUED, Change.CLAIMED, Change.EXTENDED, Change.RETRIED, Change.RELEASED, Change.EXPIRED,
                   Change.REPLAYED, Change.UNBLOCKED, Change.SIGNALLED, Change.REPAIRED, Change.RESTORED})  # fmt: skip
#: The low bits of a stored event reference are the index in its commit; the rest is the commit.
_REF_BITS = 10


class StoredEvent(Protocol):
    """The fields of an event that every backend's journal stores."""

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


class EventPosition(Struct, frozen=True):
    """An event's position in the journal, its number, and the time of its commit."""

    commit: int
    index: int
    number: int
    time_ms: int


def public_event(event: StoredEvent, position: EventPosition, name: QueueName, text: bytes) -> Event:
    """Make the public `Event` of a stored one. An event type unknown to this version is shown as `type_NUMBER`."""
    job = event.job != NO_ID
    return Event(
        commit=position.commit,
        index=position.index,
        number=position.number,
        time_ms=position.time_ms,
        type=_CHANGES.get(event.change) or f"type_{event.change}",
        tenant=name.tenant,
        queue=name.queue,
        job_id=event.job.hex() if job else None,
        state=_STATES.get(event.state) or str(event.state) if job else None,
        priority=event.priority,
        attempt=event.attempt,
        max_attempts=event.max_attempts,
        token=event.token,
        lease_id=event.lease.hex() if event.lease != NO_ID else None,
        at_ms=event.at_ms if event.change in _TIMED else None,
        reason=Reason(event.reason).name.lower() if event.reason in (1, 2) else None,
        text=_text(event.change, text) if text else None,
        previous=divmod(event.previous, 1 << _REF_BITS) if event.previous else None,
    )


def _text(change: int, raw: bytes) -> str:
    if change in (Change.QUEUE_CREATED, Change.QUEUE_CONFIGURED):
        return msgspec.json.encode(msgspec.msgpack.decode(raw)).decode()
    return raw.decode("utf-8", "replace")
