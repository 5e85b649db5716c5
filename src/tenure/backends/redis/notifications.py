"""Notifications: each step publishes its changes on its shard's channel, which wakes the waiting callers.

One connection subscribes for the whole store, from the first wait on. Messages can be lost with a connection, so the
first waiter of each queue also looks again every `POLL_SECONDS`, and a new connection wakes all waiters.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable
from typing import Any

import redis

from tenure.backends.redis.commands import Commands
from tenure.backends.redis.records import WOKEN
from tenure.clock import Clock
from tenure.queueing.core import JOURNAL_LINE
from tenure.queueing.waiters import Waiter, Waiters

#: Seconds (of the real clock) after which the first waiter of a queue looks again without a message.
POLL_SECONDS = 1.0
#: The planned look of a first waiter that waits for a message only.
NEVER = 1 << 62
_EVERYONE = 1 << 30


class Notifications:
    def __init__(self, commands: Commands, clock: Clock) -> None:
        self._commands = commands
        self._clock = clock
        self.waiters = Waiters()
        self._lock = threading.RLock()  # reentrant: a signal handler may run a verb at any point
        self._channels: dict[bytes, tuple[Hashable, threading.Event]] = {}
        #: When the first waiter of each queue will look again, in the server's time.
        self.plans: dict[Hashable, int] = {}
        self._connection: Any = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def subscribe(self, channel: bytes, topic: Hashable) -> None:
        """Subscribe to a shard's channel. Returns when the server has confirmed it, or after `POLL_SECONDS`."""
        known = self._channels.get(channel)
        if known is None:
            with self._lock:
                known = self._channels.setdefault(channel, (topic, threading.Event()))
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="tenure-listener", daemon=True)
                    self._thread.start()
                elif self._connection is not None:
                    self._send_subscribe(channel)
        known[1].wait(POLL_SECONDS)

    def wait(self, waiter: Waiter[threading.Event], ms: float, cancel: threading.Event | None = None) -> None:
        """Sleep until the waiter is woken, `ms` milliseconds have passed, or it is time to look again."""
        leads = bool(self.waiters.leads(waiter))
        poll = POLL_SECONDS if leads else None
        if cancel is not None:
            poll = 0.05
        self._clock.wait(waiter.signal, max(ms, 0) / 1000, poll)

    # ── the thread ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._listen()
            except Exception:  # noqa: BLE001 - this thread must survive: no other one listens
                # Reading from a connection that is being closed fails in many ways, and other programs may send
                # messages that are not ours. In each case, open another connection.
                with self._lock:
                    self._connection = None
                self.waiters.wake_all()
                self._closed.wait(0.05)

    def _listen(self) -> None:
        connection = self._commands.listener(next(iter(self._channels)))
        connection.connect()
        with self._lock:
            self._connection = connection
            for channel in self._channels:
                self._send_subscribe(channel)
        self.waiters.wake_all()
        while not self._closed.is_set():
            kind, channel, data = connection.read_response()
            if kind == b"message":
                self._handle(channel, data)
            elif kind == b"subscribe":
                self._channels[channel][1].set()

    def _send_subscribe(self, channel: bytes) -> None:
        with contextlib.suppress(redis.RedisError, OSError):  # the reader thread gets the same error, and reconnects
            self._connection.send_command("SUBSCRIBE", channel)

    def _handle(self, channel: bytes, data: bytes) -> None:
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
