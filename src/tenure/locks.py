"""`under_lock`: run a method while its object's lock is held, so that no exception leaves the lock locked.

A multi-line `with lock:` is safe against exceptions from signal handlers, but not against those from tracing functions:
a tracing function may raise at every new line, and the interpreter counts the release at the end of the statement as a
line of its own. Written on one line, the statement has no such point.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Locked(Protocol):
    @property
    def _lock(self) -> AbstractContextManager[object]: ...


L = TypeVar("L", bound=Locked)


def under_lock(method: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, P], R]:
    """Return the method, wrapped to hold `self._lock` while it runs."""

    @wraps(method)
    def locked(self: L, /, *args: P.args, **options: P.kwargs) -> R:
        with self._lock: return method(self, *args, **options)  # noqa: E701  # fmt: skip

    return locked
