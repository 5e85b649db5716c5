"""Who waits, and what wakes them: the servers publish what each step did, on the channel of its shard.

One connection a server listens for the whole store, from the first wait on. A message may be missed (a connection is
lost); so whoever leads a line looks again after a while in any case, and everyone is woken when a connection is made anew.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable
from typing import Any

import redis

from tenure.backends.redis.commands import Wire
from tenure.backends.redis.records import WOKEN
from tenure.clock import Clock
from tenure.errors import TenureError
from tenure.queueing.core import JOURNAL_LINE
from tenure.queueing.waiters import Waiter, Waiters

#: Real seconds after which who leads a line looks again, told or not.
LOOK_AGAIN = 1.0
#: A plan of who has nothing to wait for but a message.
NEVER = 1 << 62
_EVERYONE = 1 << 30


class Listening:
    def __init__(self, wire: Wire, clock: Clock) -> None:
        self._wire = wire
        self._clock = clock
        self.waiters = Waiters()
        self._lock = threading.Lock()
        self._channels: dict[bytes, tuple[Hashable, threading.Event]] = {}
        #: When who leads each line means to look again, in the server's time.
        self.plans: dict[Hashable, int] = {}
        self._connection: Any = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def hear(self, channel: bytes, topic: Hashable) -> None:
        """Listen to a shard from now on; returns once the server has said that it does, or after a while."""
        known = self._channels.get(channel)
        if known is None:
            with self._lock:
                known = self._channels.setdefault(channel, (topic, threading.Event()))
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="tenure-listener", daemon=True)
                    self._thread.start()
                elif self._connection is not None:
                    self._subscribe(channel)
        known[1].wait(LOOK_AGAIN)

    def wait(self, waiter: Waiter[threading.Event], ms: float, cancel: threading.Event | None = None) -> None:
        """Sleep until the waiter is woken, that many milliseconds have passed, or it is time for another look."""
        leads = bool(self.waiters.leads(waiter))
        poll = LOOK_AGAIN if leads else None
        if cancel is not None:
            poll = 0.05
        self._clock.wait(waiter.signal, max(ms, 0) / 1000, poll)

    # ── the thread ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._listen()
            except (redis.RedisError, OSError, TenureError, ValueError, AttributeError):
                # A connection that is closed under its reader fails in many ways; all mean: make another.
                with self._lock:
                    self._connection = None
                self.waiters.wake_all()
                self._closed.wait(0.05)

    def _listen(self) -> None:
        connection = self._wire.listener(next(iter(self._channels)))
        connection.connect()
        with self._lock:
            self._connection = connection
            for channel in self._channels:
                self._subscribe(channel)
        self.waiters.wake_all()
        while not self._closed.is_set():
            kind, channel, data = connection.read_response()
            if kind == b"message":
                self._told(channel, data)
            elif kind == b"subscribe":
                self._channels[channel][1].set()

    def _subscribe(self, channel: bytes) -> None:
        with contextlib.suppress(redis.RedisError, OSError):  # the reader finds out too, and begins anew
            self._connection.send_command("SUBSCRIBE", channel)

    def _told(self, channel: bytes, data: bytes) -> None:
        topic, _ = self._channels[channel]
        count, plan = WOKEN.unpack_from(data)
        if plan and plan < self.plans.get(topic, NEVER):
            count = max(count, 1)
        if count:
            self.waiters.wake(topic, count)
        for at in range(WOKEN.size, len(data), 16):
            self.waiters.wake(data[at : at + 16], _EVERYONE)
        self.waiters.wake(JOURNAL_LINE, _EVERYONE)

    def close(self) -> None:
        self._closed.set()
        self.waiters.wake_all()
        with self._lock:
            connection, thread = self._connection, self._thread
        if connection is not None:
            with contextlib.suppress(OSError, AttributeError):
                connection._sock.shutdown(2)  # wakes the reader; `disconnect` alone may leave it waiting
        if thread is not None and thread is not threading.current_thread():
            thread.join(2)
        if connection is not None:
            connection.disconnect()
