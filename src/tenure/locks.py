"""Methods that run under their object's lock, which no exception can leave locked.

A signal handler's exception is harmless to `with lock:` on several lines: the interpreter runs handlers only where the
statement covers the lock. A tracing function may raise at each new line, and the interpreter counts the release at the
end of such a statement as a line of its own: the lock would stay locked. On one line there is no such moment.
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
    """The method, run while `self._lock` is held."""

    @wraps(method)
    def locked(self: L, /, *args: P.args, **options: P.kwargs) -> R:
        with self._lock: return method(self, *args, **options)  # noqa: E701  # fmt: skip

    return locked
