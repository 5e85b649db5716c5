"""The contract between a server and the part that tells it who is asking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tenure.protocol.identity import Identity


class Authenticator(Protocol):
    """Names of headers are in lower case; the values of a header that came twice are joined with commas."""

    def identify(self, headers: Mapping[str, str]) -> Identity:
        """The sender of these headers. Raises Unauthenticated, Forbidden; Unavailable where its key could not be
        fetched.

        It may fetch keys, which takes up to `jwks.TIMEOUT`, if a token names a key it has not seen: not for an event
        loop.
        """

    def identify_at_once(self, headers: Mapping[str, str]) -> Identity | None:
        """The same, for an event loop: None where `identify` would have to fetch something first.

        Raises Unavailable, too, where a fetch that it needs is under way for another caller.
        """

    def check_page(self, headers: Mapping[str, str]) -> None:
        """Whether these may be shown a page beside the operations (documentation, health). Raises Forbidden."""

    def prepare(self) -> None:
        """Start to fetch in the background whatever the first callers will need."""
