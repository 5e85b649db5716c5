"""Who waits, or has just been answered, by their requests' ids."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from msgspec import Struct


class Turn:
    """One request, over however many connections it came: all are answered alike.

    A network may deliver a request twice, at once or much later, and what answers the caller is only one of the two: jobs that
    the other took would be leased to nobody. Jobs taken are remembered by the store, under the request's id; that
    there were none is remembered here.
    """

    __slots__ = ("answer", "answered", "ended", "entries", "lock")

    def __init__(self) -> None:
        #: Held while one of them looks: what it finds decides for all.
        self.lock = threading.Lock()
        self.entries: set[Attended] = set()
        #: It was answered with nothing.
        self.ended = False
        #: What was taken, and whether a caller has been told of it.
        self.answer: object | None = None
        self.answered = False


class Attended(Struct, eq=False):
    """A request that waits, on one connection."""

    turn: Turn
    told: Callable[[], None]
    #: Its caller no longer wants it: end it with nothing.
    over: bool = False
    #: Its caller has been given jobs.
    got: bool = False


#: So many requests that are over are remembered.
_PAST = 32_768


class Attendance:
    """The requests that wait or may come again, by tenant and request id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[object, Turn] = {}
        #: Whether they were given jobs.
        self._past: OrderedDict[object, bool] = OrderedDict()

    def enter(self, key: object, told: Callable[[], None]) -> Attended:
        with self._lock:
            turn = self._turns.get(key)
            if turn is None:
                turn = self._turns[key] = Turn()
                got = self._past.get(key)
                turn.ended, turn.answered = got is False, got is True
            entry = Attended(turn, told)
            turn.entries.add(entry)
        return entry

    def leave(self, key: object, entry: Attended) -> None:
        turn = entry.turn
        with self._lock:
            turn.entries.discard(entry)
            turn.answered = turn.answered or entry.got
            if (turn.ended or turn.answered) and isinstance(key, tuple):
                self._past[key] = turn.answered
                if len(self._past) > _PAST:
                    self._past.popitem(last=False)
            if not turn.entries and self._turns.get(key) is turn:
                del self._turns[key]

    def alone(self, entry: Attended) -> bool:
        """Whether nobody else waits for the same answer, or has had it."""
        with self._lock:
            return not entry.turn.entries - {entry} and not entry.turn.answered

    def call_off(self, key: object) -> bool:
        with self._lock:
            turn = self._turns.get(key)
            entries = [] if turn is None else list(turn.entries)
        for entry in entries:
            entry.over = True
            entry.told()
        return bool(entries)

    def everyone(self) -> None:
        with self._lock:
            entries = [entry for turn in self._turns.values() for entry in turn.entries]
        for entry in entries:
            entry.told()
