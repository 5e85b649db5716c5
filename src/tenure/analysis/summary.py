"""What every job answers with, and how it tells which step it is at."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Told = Callable[[str], None]
"""Called as each step begins, with a few words for a person."""


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
