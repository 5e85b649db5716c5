"""A proxy between clients and a server that injects network faults, request by request.

lose the request     the client's connection ends, and the server does not get the request
lose the reply       the server executes the request, and the client's connection ends
double it            the server gets it twice at once, over two connections; one of the replies goes to the client
echo it              the server gets it again later, after the client has its answer
hold it up           the request or its reply is delayed
"""

from __future__ import annotations

import collections
import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator

FAULTS = ("pass", "lose request", "lose reply", "double", "echo", "late request", "late reply")


class Proxy:
    def __init__(self, upstream: tuple[str, int], seed: int, faults: float = 0.4) -> None:
        self._upstream = upstream
        self._chance = random.Random(seed)
        self._faults = faults
        self._lock = threading.Lock()
        self._stopping = False
        self._open: set[socket.socket] = set()
        self._echoes: list[threading.Thread] = []
        #: The number of each fault.
        self.told: collections.Counter[str] = collections.Counter()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def calm(self) -> None:
        """Stop the faults, and wait for delayed requests."""
        with self._lock:
            self._faults = 0.0
            echoes = list(self._echoes)
        for echo in echoes:
            echo.join(10)

    def stop(self) -> None:
        self._stopping = True
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)

    def _accept(self) -> None:
        while not self._stopping:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Serve the requests of one connection, until one is made to fail."""
        stream = _Stream(client)
        with self._kept(client), contextlib.suppress(OSError):
            while (request := stream.message()) is not None:
                with self._lock:
                    fault = self._chance.choice(FAULTS) if self._chance.random() < self._faults else "pass"
                    delay = self._chance.uniform(0.005, 0.05)
                    self.told[fault] += 1
                reply = self._carry(request, fault, delay)
                if reply is None:
                    return
                client.sendall(reply)

    def _carry(self, request: bytes, fault: str, delay: float) -> bytes | None:
        """The reply for the client; None: its connection ends."""
        if fault == "lose request":
            return None
        if fault == "late request":
            time.sleep(delay)
        if fault == "double":
            return self._twice(request)
        reply = self._ask(request)
        if fault == "echo":
            self._later(request, delay * 6)
        if fault == "late reply":
            time.sleep(delay)
        return None if fault == "lose reply" else reply

    def _twice(self, request: bytes) -> bytes | None:
        replies: list[bytes] = []
        asking = [threading.Thread(target=lambda: replies.append(self._ask(request) or b""), daemon=True) for _ in "12"]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(60)
        with self._lock:
            return self._chance.choice(replies) or None

    def _later(self, request: bytes, delay: float) -> None:
        def send() -> None:
            time.sleep(delay)
            self._ask(request)

        with self._lock:
            self._echoes = [thread for thread in self._echoes if thread.is_alive()]
            thread = threading.Thread(target=send, daemon=True)
            self._echoes.append(thread)
        thread.start()

    def _ask(self, request: bytes) -> bytes | None:
        """The server's reply, over a separate connection."""
        try:
            server = socket.create_connection(self._upstream, timeout=60)
        except OSError:
            return None
        with self._kept(server), contextlib.suppress(OSError):
            server.sendall(request)
            return _Stream(server).message()
        return None

    @contextlib.contextmanager
    def _kept(self, sock: socket.socket) -> Iterator[None]:
        with self._lock:
            self._open.add(sock)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(sock)
            sock.close()


class _Stream:
    """Reads complete HTTP/1.1 messages with a Content-Length."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = b""

    def message(self) -> bytes | None:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if not self._more():
                return None
        head = self._buffer[:end].lower()
        size = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name == b"content-length":
                size = int(value)
        while len(self._buffer) < end + 4 + size:
            if not self._more():
                return None
        whole, self._buffer = self._buffer[: end + 4 + size], self._buffer[end + 4 + size :]
        return whole

    def _more(self) -> bool:
        got = self._sock.recv(65536)
        self._buffer += got
        return bool(got)
