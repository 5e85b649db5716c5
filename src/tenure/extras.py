"""Packages that only a part of Tenure needs (the extras of pyproject.toml), and the error for one that is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from tenure.errors import SettingsError


def install_command(extra: str) -> str:
    """The command that adds an extra to the Tenure that is installed, whether from a clone or from a wheel.

    pip finds the requirement `tenure` met by what is installed, and fetches the extra's packages only. With `-U` it
    would look for a newer Tenure on the index.
    """
    return f"pip install 'tenure[{extra}]'"


def missing(what: str, package: str, extra: str) -> str:
    """The sentence for a part of Tenure (`what`) that cannot work because a package of its extra is not installed."""
    return f"{what}: the package {package} is not installed. Install it with: {install_command(extra)}"


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Import packages of an extra inside this block. Raises SettingsError, which says what to install."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] == "tenure":
            raise
        raise SettingsError(missing(what, exc.name.partition(".")[0], extra)) from exc


def require(extra: str, what: str, *modules: str) -> None:
    """Import modules that need an extra, before any work begins. Raises SettingsError, which says what to install."""
    with needs(extra, what):
        for module in modules:
            import_module(module)
