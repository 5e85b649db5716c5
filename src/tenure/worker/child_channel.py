"""The messages between a process pool and its children: MessagePack frames over a socket pair. Nothing is pickled.

parent → child      Setup, then Assignment after Assignment; a StepsAnswer to each StepsCall
child → parent      Hello, then for each Assignment: any number of Progress and StepsCall, one Ended
"""

from __future__ import annotations

import os
import signal
import socket
from struct import Struct
from typing import Any

import msgspec

from tenure.errors import StoreClosed
from tenure.model.failure import Failure
from tenure.model.step import Step
from tenure.worker.outcomes import Outcome

_LENGTH = Struct(">I")
#: Blocked when a child starts, and ignored by it: its worker decides when it ends.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Setup(msgspec.Struct, frozen=True, array_like=True, tag=1):
    app: str
    path: list[str]
    log_level: str | None = None
    log_format: str = "auto"
    served: tuple[str, ...] = ()
    #: The store's URL, if the worker uses another than the app's own.
    store: str | None = None


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=2):
    pid: int
    error: str | None = None


class Assignment(msgspec.Struct, frozen=True, array_like=True, tag=3):
    task: str
    id: str
    queue: str
    tenant: str
    attempt: int
    max_attempts: int
    token: int
    priority: int
    headers: dict[str, str]
    deadline_ms: int | None
    payload: bytes


class Progress(msgspec.Struct, frozen=True, array_like=True, tag=4):
    fraction: float
    note: str | None


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=5):
    outcome: Outcome


class StepsCall(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Request the job's steps, or (with `name`) store one."""

    name: str | None = None
    value: bytes = b""


class StepsAnswer(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The steps, the stored value, or the error."""

    steps: list[Step] = []
    value: bytes = b""
    failure: Failure | None = None


Message = Setup | Hello | Assignment | Progress | Ended | StepsCall | StepsAnswer
_decoder = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()


class Channel:
    """One end of the socket pair."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._process = os.getpid()

    def send(self, message: Message) -> None:
        """Raises OSError if the other end is gone, and StoreClosed in a forked child, whose answer is not awaited."""
        if os.getpid() != self._process:
            raise StoreClosed("this process is a fork of the one that runs the job")
        data = _encoder.encode(message)
        self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> Any:
        """Return the next message; None if the other end is gone. Raises msgspec.DecodeError for malformed bytes."""
        head = self._read(_LENGTH.size)
        if head is None:
            return None
        data = self._read(_LENGTH.unpack(head)[0])
        return None if data is None else _decoder.decode(data)

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int) -> bytes | None:
        parts: list[bytes] = []
        while size:
            try:
                part = self._socket.recv(min(size, 1 << 20))
            except OSError:
                return None
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
