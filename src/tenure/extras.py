"""Optional packages (the extras of pyproject.toml), and the error when one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from tenure.errors import SettingsError


def install_command(extra: str) -> str:
    """Return the command that adds an extra to the installed Tenure, from a clone or from a wheel.

    The installed Tenure satisfies the requirement `tenure`, so pip fetches only the extra's packages. The command has
    no `-U`, which would look for a newer Tenure on the index.
    """
    return f"pip install 'tenure[{extra}]'"


def missing(what: str, package: str, extra: str) -> str:
    """Return the error message for a feature (`what`) that needs a package which is not installed."""
    return f"{what}: the package {package} is not installed. Install it with: {install_command(extra)}"


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Translate an ImportError of this block into a SettingsError that says what to install."""
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
