"""The address of a server: `http://host:port`, `https://host:port`, `http+unix:/path/to/socket`."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from tenure.errors import OpenError

if TYPE_CHECKING:
    import ssl

#: The kernel's limit for a Unix socket's name, with some reserve.
_MAX_NAME = 100


class Address(NamedTuple):
    url: str
    #: For a TCP server.
    host: str = ""
    port: int = 0
    tls: bool = False
    #: For a Unix socket.
    unix: str = ""
    #: The prefix that a proxy puts before the server's paths.
    base: str = ""

    def connect(self, timeout: float, context: ssl.SSLContext | None = None) -> socket.socket:
        """Raises OSError."""
        if self.unix:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                made.settimeout(timeout)
                with reachable(self.unix) as name:
                    made.connect(name)
            except BaseException:
                made.close()
                raise
            return made
        made = socket.create_connection((self.host, self.port), timeout)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            return made
        try:
            return context.wrap_socket(made, server_hostname=self.host)
        except BaseException:
            made.close()
            raise

    @property
    def authority(self) -> str:
        if self.unix:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse(url: str) -> Address:
    """Raises OpenError."""
    scheme, _, rest = url.partition(":")
    scheme = scheme.lower()
    if scheme == "http+unix":
        path = rest[2:] if rest.startswith("//") else rest
        if not path or "\0" in path:
            raise OpenError(f"{url!r} names no socket: write 'http+unix:/path/to/socket'")
        return Address(url, unix=os.path.abspath(os.path.expanduser(path)))
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise OpenError(f"{url!r} is not an address: {exc}") from exc
    if scheme not in ("http", "https") or not host:
        raise OpenError(
            f"{url!r} names no host: write 'http://host:port', 'https://host' or 'http+unix:/path/to/socket'"
        )
    if parts.query or parts.fragment:
        raise OpenError(f"{url!r}: an address takes no options: give them to the call, or as settings")
    if parts.username or parts.password:
        raise OpenError("an address carries no password: give a token (token=, or the setting storage.http.token)")
    tls = scheme == "https"
    return Address(url, host, port or (443 if tls else 80), tls, base=parts.path.rstrip("/"))


@contextlib.contextmanager
def reachable(path: str) -> Iterator[str]:
    """Yield a name for a Unix socket that fits the kernel's limit of about 107 bytes.

    A longer path is named through a file descriptor of its folder.
    """
    if len(os.fsencode(path)) <= _MAX_NAME:
        yield path
        return
    folder, name = os.path.split(path)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        short = f"/proc/self/fd/{handle}/{name}"
        if not os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(f"{path} is too long for a Unix socket on this system")
        yield short
    finally:
        os.close(handle)
