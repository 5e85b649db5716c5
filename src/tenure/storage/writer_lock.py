"""Locks that an exception cannot leave locked for good.

`with lock` is safe against an exception raised by a signal handler: the interpreter runs handlers only where the `with`
statement already covers the lock. A tracing function may raise later, at the line that would release the lock; then the
thread holds a lock whose `with` block it has left. So before each `with`, `held_here` tells whether this thread holds
the lock already. If so, either the lock was left locked and `take_back` releases it, or a signal handler runs inside
the `with` block. The stack tells which. A flag of the holder could not: in the first case it would stay set.

Ownership is asked of the lock itself. A holder that recorded itself would do so only after it took the lock; until then
the record would name the previous holder, which could release the lock of the new one.

In a debug run (the environment has `DEBUG_WRITER_LOCK`, as in the tests) every function that says "Requires: the
writer's lock is held" asserts it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

from tenure.errors import Unavailable


def called_inside() -> Unavailable:
    """The error for a verb that a signal handler calls while its thread is inside another verb."""
    return Unavailable(
        "a signal handler called a verb while its thread was inside another one: let the handler set a flag, or raise, "
        "and call the verb once the interrupted one has returned"
    )


class OwnedLock:
    """A lock that knows whether this thread holds it. A function that takes it must keep it in a local variable:

    writer = self._writer
    if writer.held_here():
        writer.take_back()
    with writer.lock:
        ...
    """

    __slots__ = ("held_here", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.held_here: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]  # as Condition uses it

    def interrupted(self) -> bool:
        """Whether a function further up this thread's stack took the lock: the caller is in a signal handler.

        Requires: this thread holds it.
        """
        caller = sys._getframe(1)
        frame = caller if caller.f_locals.get("self") is not self else caller.f_back
        while frame is not None and (frame := frame.f_back) is not None:
            if any(value is self for value in frame.f_locals.values()):
                return True
        return False

    def take_back(self) -> None:
        """Release a lock that this thread left locked. Requires: this thread holds it.

        Raises Unavailable if the thread is still inside the `with` block: two verbs must not be mixed.
        """
        if self.interrupted():
            raise called_inside()
        self.lock.release()


class WriterLock(OwnedLock):
    __slots__ = ("checked",)

    def __init__(self) -> None:
        super().__init__()
        #: Whether this is a debug run.
        self.checked = "DEBUG_WRITER_LOCK" in os.environ

    def assert_held(self) -> None:
        """Raises AssertionError unless this thread holds the lock."""
        assert self.held_here(), "the writer's lock is not held by this thread"
