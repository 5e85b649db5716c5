"""The contract between a server and its authentication."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tenure.protocol.identity import Identity


class Authenticator(Protocol):
    """Identifies callers. Header names are lower-case; the values of a repeated header are joined with commas."""

    def identify(self, headers: Mapping[str, str]) -> Identity:
        """Return the sender of these headers.

        Raises Unauthenticated, Forbidden; Unavailable if its key could not be fetched. Not for an event loop: if a
        token names an unknown key, it may fetch keys, which takes up to `jwks.TIMEOUT`.
        """

    def identify_at_once(self, headers: Mapping[str, str]) -> Identity | None:
        """As `identify`, for an event loop: None if `identify` would have to fetch something first.

        Also raises Unavailable if a fetch that it needs is under way for another caller.
        """

    def check_page(self, headers: Mapping[str, str]) -> None:
        """Raise Forbidden if these headers may not be shown a page (documentation, health)."""

    def prepare(self) -> None:
        """Start to fetch in the background what the first callers will need."""
