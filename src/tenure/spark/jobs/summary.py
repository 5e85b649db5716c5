"""What every job answers with, and how it tells where it is."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Told = Callable[[str], None]
"""Told of each step as it begins, in a few words."""


class Summary(msgspec.Struct, kw_only=True):
    """Rows read, written and rejected, and what else there is to say."""

    job: str
    read: int = 0
    written: int = 0
    rejected: int = 0
    seconds: float = 0.0
    facts: dict[str, object] = {}


def quietly(step: str) -> None:
    """For callers who do not ask where a job is."""
