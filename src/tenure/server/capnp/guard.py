"""A guard between a connection and the RPC layer: limits message sizes, and closes connections without progress.

    socket ──▶ GuardedStream ──▶ pycapnp's own protocol

The RPC layer allocates what a message's head declares, keeps an incomplete message forever, and stops reading after a
message that it does not understand: then it never notices that the caller has disconnected. So each message's head is
read here first:

    u32 segments − 1 · u32 words of each segment · padding to 8 bytes · the segments

Before login a message may have SMALL_BYTES, afterwards the server's limit. Every `idle_seconds / 2` a connection is
checked: it must log in within `idle_seconds`, and send messages and read answers at MIN_RATE or faster.
"""

from __future__ import annotations

import asyncio
from typing import Any

#: Seconds that a session without a call may be silent.
SESSION_SECONDS = 3600.0
#: The largest message before login: a token has 8 KiB at most.
SMALL_BYTES = 64 * 1024
#: Bytes a second: slower senders and readers are disconnected.
MIN_RATE = 4096
_MAX_SEGMENTS = 512


class MalformedMessage(Exception):
    """The head is malformed, or declares more than is allowed."""


class MessageHeads:
    """Finds the message boundaries in a stream of bytes, without buffering messages."""

    def __init__(self) -> None:
        #: The part of the current head that has arrived, and the bytes left of its message.
        self._head = bytearray()
        self._left = 0

    @property
    def in_message(self) -> bool:
        """Whether a message has begun and is not complete."""
        return bool(self._left or self._head)

    def feed(self, data: memoryview, limit: int) -> None:
        """Process the next bytes. Raises MalformedMessage if a message is malformed or larger than `limit`."""
        while data:
            if self._left:
                taken = min(self._left, len(data))
                self._left -= taken
                data = data[taken:]
                continue
            missing = self._head_size() - len(self._head)
            self._head += data[:missing]
            data = data[missing:]
            if len(self._head) == self._head_size():
                self._begin_message(limit)

    def _head_size(self) -> int:
        if len(self._head) < 4:
            return 4
        segments = int.from_bytes(self._head[:4], "little") + 1
        if segments > _MAX_SEGMENTS:
            raise MalformedMessage(f"{segments} segments")
        return (4 + 4 * segments + 7) // 8 * 8

    def _begin_message(self, limit: int) -> None:
        if len(self._head) == 4:
            return  # only the number of segments is known so far
        segments = int.from_bytes(self._head[:4], "little") + 1
        sizes = [int.from_bytes(self._head[at : at + 4], "little") for at in range(4, 4 + 4 * segments, 4)]
        size = 8 * sum(sizes)
        if size > limit:
            raise MalformedMessage(f"{size} bytes, over the limit of {limit}")
        self._head.clear()
        self._left = size


class GuardedStream(asyncio.BufferedProtocol):
    """One connection. `inner` is pycapnp's protocol, which gets the accepted bytes."""

    def __init__(self, limit: int, idle_seconds: float) -> None:
        self.inner: Any = None  # pycapnp has no types
        self._limit = limit
        self._idle_seconds = idle_seconds
        self._heads = MessageHeads()
        self._buffer: memoryview | None = None
        self._loop = asyncio.get_running_loop()
        self._check_timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport | None = None
        #: When it was opened, or its last bytes arrived.
        self.idle_since = self._loop.time()
        self.made_at = self.idle_since
        self.logged_in = False
        #: Calls in progress.
        self.calls = 0
        self._received_bytes = self._unsent = 0

    @property
    def idle(self) -> bool:
        """Whether closing it interrupts no call."""
        return not self.calls

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    # ── callbacks of asyncio ─────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._check_timer = self._loop.call_later(self._idle_seconds / 2, self._check_progress)
        self.inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._check_timer is not None:
            self._check_timer.cancel()
        self.inner.connection_lost(exc)
        self.transport = None

    def get_buffer(self, sizehint: int) -> Any:  # a writable buffer, as asyncio defines it
        found = self.inner.get_buffer(sizehint)
        self._buffer = memoryview(found)
        return found

    def buffer_updated(self, nbytes: int) -> None:
        assert self._buffer is not None
        self.idle_since = self._loop.time()
        self._received_bytes += nbytes
        try:
            self._heads.feed(self._buffer[:nbytes], self._limit if self.logged_in else SMALL_BYTES)
        except MalformedMessage:
            self._buffer = None
            self.close()
            return
        self._buffer = None
        self.inner.buffer_updated(nbytes)

    def eof_received(self) -> bool | None:
        found: bool | None = self.inner.eof_received()
        return found

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self._unsent = 0
        self.inner.resume_writing()

    # ── connections without progress ─────────────────────────────────────────────────────────────────────────────────

    def _check_progress(self) -> None:
        if self.transport is None:
            return
        if self._stuck(self.transport.get_write_buffer_size()):
            self.close()
            return
        self._received_bytes, self._unsent = 0, self.transport.get_write_buffer_size()
        self._check_timer = self._loop.call_later(self._idle_seconds / 2, self._check_progress)

    def _stuck(self, unsent: int) -> bool:
        least, now = MIN_RATE * self._idle_seconds / 2, self._loop.time()
        if self._unsent and unsent > max(0, self._unsent - least):
            return True
        if not self.logged_in and not self.calls:
            return now - self.made_at >= self._idle_seconds
        if self._heads.in_message:
            # A message that has just begun is not late; during a call, the server itself may have stopped reading.
            return self._received_bytes < least and not self.calls and now - self.idle_since >= self._idle_seconds / 2
        return not self.calls and now - self.idle_since >= SESSION_SECONDS
