"""beanstalkd, the commands of a batch in one write: put, reserve-with-timeout 0 and delete; replies in order."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.lives import Client
from bench.peers.server_process import Server, program


class Beanstalkd:
    name = "beanstalkd"

    def __init__(self, folder: Path, durability: str) -> None:
        binary = program("beanstalkd", "apt-get install beanstalkd")
        folder.mkdir(parents=True, exist_ok=True)
        every = "0" if durability == "disk" else "50"
        self.note = f"log, fsync {'every write' if every == '0' else 'every 50 ms'}; pipelined; Unix socket"
        self._socket = folder / "s"
        self._server = Server(
            [binary, "-l", f"unix:{self._socket}", "-b", str(folder), "-f", every], folder, self._answers
        )

    def _connect(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(str(self._socket))
        except OSError:
            made.close()
            raise
        return made

    def _answers(self) -> bool:
        try:
            self._connect().close()
        except OSError:
            return False
        return True

    def client(self) -> Client:
        return _Client(self._connect())

    def tidy(self) -> None:
        pass

    def close(self) -> None:
        self._server.stop()


class _Client:
    def __init__(self, connection: socket.socket) -> None:
        self._send = connection.sendall
        self._reader = connection.makefile("rb", 1 << 16)
        self._connection = connection

    def enqueue(self, payloads: Sequence[bytes]) -> object:
        self._send(b"".join([b"put 0 0 30 %d\r\n%b\r\n" % (len(payload), payload) for payload in payloads]))
        line = self._reader.readline
        return [int(line().split()[1]) for _ in payloads]  # INSERTED <id>

    def claim(self, limit: int) -> Sequence[Any]:
        self._send(b"reserve-with-timeout 0\r\n" * limit)
        line, read = self._reader.readline, self._reader.read
        claimed = []
        for _ in range(limit):
            reply = line().split()  # RESERVED <id> <bytes>, or TIMED_OUT
            if reply[0] == b"RESERVED":
                claimed.append((reply[1], read(int(reply[2]) + 2)[:-2]))
        return claimed

    def ack(self, claimed: Sequence[Any]) -> object:
        self._send(b"".join([b"delete %b\r\n" % job for job, _ in claimed]))
        line = self._reader.readline
        replies = [line() for _ in claimed]
        if any(reply != b"DELETED\r\n" for reply in replies):
            raise RuntimeError(f"beanstalkd did not delete: {set(replies)}")
        return replies

    def close(self) -> None:
        self._reader.close()
        self._connection.close()
