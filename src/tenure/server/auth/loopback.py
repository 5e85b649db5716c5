"""No authentication: for callers on this machine only.

A web page in a browser on this machine can also send requests to loopback: under a name of its own that resolves to
127.0.0.1, or with a form. So `Host` must name loopback, and an `Origin` must be this server's own: pages of other sites
are refused, and pages of other servers on this machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from tenure.errors import Forbidden
from tenure.protocol.identity import LOCAL, Identity


def is_loopback(host: str) -> bool:
    """Whether a host (without port) is loopback: `localhost`, 127.0.0.0/8 and ::1, in brackets or not."""
    host = host.removeprefix("[").removesuffix("]").rstrip(".").lower()
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class LoopbackAuthenticator:
    """Accepts every caller that addresses loopback as an operator.

    On a Unix socket (`check_host=False`), every caller.
    """

    def __init__(self, check_host: bool = True) -> None:
        #: A web page cannot address a Unix socket.
        self._check_host = check_host

    def identify(self, headers: Mapping[str, str]) -> Identity:
        if self._check_host and not is_loopback(_without_port(headers.get("host", ""))):
            raise Forbidden("without authentication this server answers only requests addressed to localhost")
        if _from_a_page(headers):
            raise Forbidden("without authentication this server answers no other site's pages")
        return LOCAL

    identify_at_once = identify

    def check_page(self, headers: Mapping[str, str]) -> None:
        self.identify(headers)

    def prepare(self) -> None:
        pass


def _from_a_page(headers: Mapping[str, str]) -> bool:
    """Whether the browser reports that a page of another origin (another port included) sent this."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = headers.get("origin")
    if origin is None:
        return False
    scheme, _, address = origin.partition("://")
    own = address.lower() == headers.get("host", "").lower() and is_loopback(_without_port(address))
    return scheme.lower() not in ("http", "https") or not own


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
