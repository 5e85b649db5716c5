"""A proxy that cuts a connection before the n-th request reaches the server, or after its answer has left it."""

from __future__ import annotations

import contextlib
import select
import socket
import tempfile
import threading
from pathlib import Path
from typing import Literal

Cut = Literal["before", "after"]


class Proxy:
    """A Unix socket in front of another. A client has one request under way a connection, so each burst of bytes is one."""

    def __init__(self, target: Path) -> None:
        self._target = str(target)
        self._folder = tempfile.TemporaryDirectory(prefix="lh-proxy-", dir="/tmp")
        self.socket = Path(self._folder.name) / "p"
        self._lock = threading.Lock()
        self._at = 0
        self._how: Cut | None = None
        self._for_good = False
        self.requests = 0
        #: Whether the cut was made.
        self.cut = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.socket))
        self._listener.listen(64)
        self._closing = False
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, at: int, how: Cut | None, *, for_good: bool = False) -> None:
        """Count from here on; cut at that request (and let nothing through after it). None: only count."""
        with self._lock:
            self._for_good = for_good
            self.requests, self._at, self._how, self.cut = 0, at, how, False

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with client, server, contextlib.suppress(OSError):
            server.connect(self._target)
            answered, doomed = True, False
            while True:
                ready, _, _ = select.select([client, server], [], [])
                if client in ready:
                    data = client.recv(1 << 20)
                    if not data:
                        return
                    if answered:
                        if self.cut and self._for_good:
                            return
                        doomed = self._request()
                        if doomed and self._how == "before":
                            return
                        answered = False
                    server.sendall(data)
                if server in ready:
                    data = server.recv(1 << 20)
                    if not data or doomed:
                        return
                    answered = True
                    client.sendall(data)

    def _request(self) -> bool:
        """Count a request; whether it is the one to be cut."""
        with self._lock:
            self.requests += 1
            if self._how is None or self.cut or self.requests != self._at:
                return False
            self.cut = True
            return True

    def close(self) -> None:
        self._closing = True
        self._listener.close()
        self._folder.cleanup()
