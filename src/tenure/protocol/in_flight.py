"""Requests that wait or have just been answered, by their ids."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct


class RequestKey(NamedTuple):
    """By what a request with an id is known: who asked for what, and the id that the caller chose."""

    tenant: str | None
    subject: str
    request_id: str
    operation: str
    #: What the path names: the queue, the job.
    words: tuple[str, ...]


class SharedOutcome:
    """The outcome of one request, for all connections over which it arrived.

    A network may deliver a request twice, at once or much later, while the caller reads only one of the replies: jobs
    leased by the other would be leased to nobody. The store remembers jobs that were leased, under the request's id;
    that there were none is remembered here.
    """

    __slots__ = ("answer", "answered", "ended", "entries", "lock")

    def __init__(self) -> None:
        #: Held while one of the connections looks: what it finds decides for all.
        self.lock = threading.Lock()
        self.entries: set[InFlight] = set()
        #: It was answered with nothing.
        self.ended = False
        #: What was leased, and whether a caller has been given it.
        self.answer: object | None = None
        self.answered = False


class InFlight(Struct, eq=False):
    """A request on one connection, from its arrival until it is answered."""

    outcome: SharedOutcome
    notify: Callable[[], None]
    #: Its caller has called it off: end it with nothing.
    over: bool = False
    #: Its caller has been given jobs.
    got: bool = False


#: So many requests that are over are remembered.
_PAST = 32_768


class RequestsInFlight:
    """The requests that wait or may arrive again, by `RequestKey`; one without an id has a key of its own.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes: dict[object, SharedOutcome] = {}
        #: Of requests that are over: whether they were given jobs.
        self._past: OrderedDict[object, bool] = OrderedDict()

    def enter(self, key: object, notify: Callable[[], None]) -> InFlight:
        """Record an arrival; `notify` is called when the request is called off or the server stops."""
        with self._lock:
            outcome = self._outcomes.get(key)
            if outcome is None:
                outcome = self._outcomes[key] = SharedOutcome()
                got = self._past.get(key)
                outcome.ended, outcome.answered = got is False, got is True
            entry = InFlight(outcome, notify)
            outcome.entries.add(entry)
        return entry

    def leave(self, key: object, entry: InFlight) -> None:
        """Record that the request was answered on this connection, or given up."""
        outcome = entry.outcome
        with self._lock:
            outcome.entries.discard(entry)
            outcome.answered = outcome.answered or entry.got
            if (outcome.ended or outcome.answered) and isinstance(key, tuple):
                self._past[key] = outcome.answered
                if len(self._past) > _PAST:
                    self._past.popitem(last=False)
            if not outcome.entries and self._outcomes.get(key) is outcome:
                del self._outcomes[key]

    def alone(self, entry: InFlight) -> bool:
        """Whether no other connection waits for the same outcome, or has been given it."""
        with self._lock:
            return not entry.outcome.entries - {entry} and not entry.outcome.answered

    def call_off(self, tenant: str | None, subject: str, request_id: str, may: Callable[[str], bool]) -> bool:
        """End a caller's own requests of that id with nothing; False if none is in flight.

        `may` says whether the caller may ask for an operation of that name, and so call it off.
        """
        asked = (tenant, subject, request_id)
        with self._lock:
            entries = [
                entry
                for key, outcome in self._outcomes.items()
                if isinstance(key, RequestKey) and key[:3] == asked and may(key.operation)
                for entry in outcome.entries
            ]
        for entry in entries:
            entry.over = True
            entry.notify()
        return bool(entries)

    def notify_all(self) -> None:
        """Have every request in flight look once more."""
        with self._lock:
            entries = [entry for outcome in self._outcomes.values() for entry in outcome.entries]
        for entry in entries:
            entry.notify()
