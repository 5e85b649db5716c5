"""What a server asks of whoever tells it who is asking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tenure.protocol.identity import Identity


class Authenticator(Protocol):
    """Names of headers are in lower case; of a header that came twice, the values are joined with commas."""

    def identify(self, headers: Mapping[str, str]) -> Identity:
        """Who sent these. Raises Unauthenticated, Forbidden; Unavailable where no key could ever be fetched.

        It may fetch keys and so take seconds, if a token names one it has not seen: not for an event loop.
        """

    def identify_at_once(self, headers: Mapping[str, str]) -> Identity | None:
        """The same, for an event loop: None where `identify` would have to fetch something first."""
