"""Requests that wait or were just answered, by their ids."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct


class RequestKey(NamedTuple):
    """The key of a request with an id: who asked for what, and the id that the caller chose."""

    tenant: str | None
    subject: str
    request_id: str
    operation: str
    #: The named segments of the path: the queue, the job.
    words: tuple[str, ...]


class SharedOutcome:
    """The outcome of one request, shared by all connections on which it arrived.

    A network may deliver a request twice, while the caller reads only one reply: jobs leased in the other reply would
    be held by nobody. The store remembers leased jobs under the request's id; an empty outcome is remembered here.
    """

    __slots__ = ("answer", "answered", "ended", "entries", "lock")

    def __init__(self) -> None:
        #: Held while one connection looks: its result counts for all.
        self.lock = threading.Lock()
        self.entries: set[InFlight] = set()
        #: Answered with nothing.
        self.ended = False
        #: The leased jobs, and whether a caller has received them.
        self.answer: object | None = None
        self.answered = False


class InFlight(Struct, eq=False):
    """A request on one connection, from arrival to answer."""

    outcome: SharedOutcome
    notify: Callable[[], None]
    #: The caller cancelled it: end it with an empty answer.
    cancelled: bool = False
    #: The caller has received jobs.
    received: bool = False


#: How many ended requests are remembered.
_REMEMBERED = 32_768


class RequestsInFlight:
    """Requests that wait or may arrive again, by `RequestKey`; one without an id has a unique key. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes: dict[object, SharedOutcome] = {}
        #: For ended requests: whether they received jobs.
        self._ended_requests: OrderedDict[object, bool] = OrderedDict()

    def enter(self, key: object, notify: Callable[[], None]) -> InFlight:
        """Record an arrival. `notify` is called when the request is cancelled or the server stops."""
        with self._lock:
            outcome = self._outcomes.get(key)
            if outcome is None:
                outcome = self._outcomes[key] = SharedOutcome()
                received = self._ended_requests.get(key)
                outcome.ended, outcome.answered = received is False, received is True
            entry = InFlight(outcome, notify)
            outcome.entries.add(entry)
        return entry

    def leave(self, key: object, entry: InFlight) -> None:
        """Record that the request was answered on this connection, or given up."""
        outcome = entry.outcome
        with self._lock:
            outcome.entries.discard(entry)
            outcome.answered = outcome.answered or entry.received
            if (outcome.ended or outcome.answered) and isinstance(key, tuple):
                self._ended_requests[key] = outcome.answered
                if len(self._ended_requests) > _REMEMBERED:
                    self._ended_requests.popitem(last=False)
            if not outcome.entries and self._outcomes.get(key) is outcome:
                del self._outcomes[key]

    def is_sole_receiver(self, entry: InFlight) -> bool:
        """Whether no other connection waits for the same outcome, or has received it."""
        with self._lock:
            return not entry.outcome.entries - {entry} and not entry.outcome.answered

    def call_off(self, tenant: str | None, subject: str, request_id: str, may: Callable[[str], bool]) -> bool:
        """Cancel a caller's own requests with that id; they end with an empty answer. False if none is in flight.

        `may` says whether the caller may call an operation of that name, and therefore cancel it.
        """
        caller_and_id = (tenant, subject, request_id)
        with self._lock:
            entries = [
                entry
                for key, outcome in self._outcomes.items()
                if isinstance(key, RequestKey) and key[:3] == caller_and_id and may(key.operation)
                for entry in outcome.entries
            ]
        for entry in entries:
            entry.cancelled = True
            entry.notify()
        return bool(entries)

    def notify_all(self) -> None:
        """Notify every request in flight to look again."""
        with self._lock:
            entries = [entry for outcome in self._outcomes.values() for entry in outcome.entries]
        for entry in entries:
            entry.notify()
