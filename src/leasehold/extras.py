"""Packages that are only needed for a part of Leasehold: where one is missing, the error says what to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from leasehold.errors import SettingsError


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Around the imports of an extra."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] == "leasehold":
            raise
        raise SettingsError(f"{what} need {exc.name}: pip install 'leasehold[{extra}]'") from exc
