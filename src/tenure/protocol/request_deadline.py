"""A limit on the time of a whole request, for small servers made of the standard library's handlers."""

from __future__ import annotations

import contextlib
import socket
import threading
from socketserver import BaseRequestHandler
from typing import ClassVar


class RequestDeadline(BaseRequestHandler):
    """A base class, before the handler's own: ends a connection whose requests take longer than `timeout` seconds.

    The handler's `timeout` alone limits one read: a client that sends a byte now and then would hold its thread for ever.
    """

    timeout: ClassVar[float]

    def handle(self) -> None:
        deadline = threading.Timer(self.timeout, self._cut)
        deadline.daemon = True
        deadline.start()
        try:
            super().handle()
        finally:
            deadline.cancel()

    def _cut(self) -> None:
        with contextlib.suppress(OSError):  # it has just been closed
            self.request.shutdown(socket.SHUT_RDWR)
