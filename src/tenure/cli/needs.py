"""Packages that some commands need and a plain install does not have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tenure.errors import OpenError


class PackageMissing(OpenError):
    """A package that the command needs is not installed."""

    code = "package_missing"


@contextmanager
def needing(package: str, extra: str) -> Iterator[None]:
    """Around imports that need an extra of this package: say how to install it."""
    try:
        yield
    except ImportError as exc:
        raise PackageMissing(f"this needs {package} ({exc}): pip install 'tenure[{extra}]'") from None
