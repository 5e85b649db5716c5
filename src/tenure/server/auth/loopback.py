"""No authentication: for the machine's own callers only.

A web page in a browser of this machine can send requests to loopback too: under a name of its own that it lets resolve to
127.0.0.1, or by a form. So a request has to be addressed to loopback by name, and a browser must not say that it came from
another site's page.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from tenure.errors import Forbidden
from tenure.protocol.identity import LOCAL, Identity


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
        if _from_a_page(headers):
            raise Forbidden("without authentication this server answers no other site's pages")
        return LOCAL

    identify_at_once = identify

    def prepare(self) -> None:
        pass


def _from_a_page(headers: Mapping[str, str]) -> bool:
    """By what browsers say of themselves: the one header is older, the other also goes with GET."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = headers.get("origin")
    return origin is not None and not is_loopback(_without_port(origin.partition("://")[2]))


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
