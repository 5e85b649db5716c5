"""Packages that are only needed for a part of Tenure: where one is missing, the error says what to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tenure.errors import SettingsError


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Around the imports of an extra."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] == "tenure":
            raise
        raise SettingsError(f"{what} need {exc.name}: pip install 'tenure[{extra}]'") from exc
