"""The HTTP client: what answers there need not be a Tenure server."""

from __future__ import annotations

import socket
import threading

import pytest

import tenure
from tenure.errors import OpenError


@pytest.mark.parametrize(
    "answer", [b"220 mail.example ESMTP\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n"]
)
def test_a_server_that_does_not_speak_http_is_told(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    caller, _ = listening.accept()
                except OSError:
                    return
                with caller:
                    caller.recv(65536)
                    caller.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(OpenError, match="not HTTP"):
            tenure.open(f"http://127.0.0.1:{listening.getsockname()[1]}", sweep=False)
        listening.shutdown(socket.SHUT_RDWR)
