"""No authentication: for the machine's own callers only.

A web page in a browser of this machine can send requests to loopback too, under a name of its own that it lets resolve to
127.0.0.1. So a request has to be addressed to loopback by name as well; and the server takes JSON only under its media
type, which a page cannot send across origins without asking first.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from leasehold.errors import Forbidden
from leasehold.stores.remote.identity import LOCAL, Identity


def is_loopback(host: str) -> bool:
    """Of a host without a port: `localhost`, 127.0.0.0/8 and ::1, in brackets or not."""
    host = host.removeprefix("[").removesuffix("]").rstrip(".").lower()
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class LoopbackAuthenticator:
    """Takes everyone who addresses loopback for an operator."""

    def __init__(self, check_host: bool = True) -> None:
        #: A Unix socket has no address that a web page could name.
        self._check_host = check_host

    def identify(self, headers: Mapping[str, str]) -> Identity:
        if self._check_host and not is_loopback(_without_port(headers.get("host", ""))):
            raise Forbidden("without authentication this server answers only requests addressed to localhost")
        return LOCAL

    identify_at_once = identify


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
