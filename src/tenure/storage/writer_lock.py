"""Locks that an exception cannot leave locked for good.

`with lock` is safe against an exception raised by a signal handler: the interpreter runs handlers only where the
`with` statement already covers the lock. A tracing function may raise later than that, at the line that would release
the lock; then the thread that holds it is no longer inside. So before each `with` it is asked whether this thread holds
the lock already: then it was left behind and is taken back, or a signal handler has interrupted this thread inside.
The stack tells which: a mark that the holder sets and clears would stand for ever after the first of these.

Whether this thread holds the lock is for the lock itself to say. A note that the holder makes would be made a moment
after it took the lock, and until then name the holder before it, who could take the lock from under it.

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
    """For a verb that a signal handler calls inside another one."""
    return Unavailable(
        "a signal handler called a verb while its thread was inside another one: let the handler set a flag, or raise, "
        "and call the verb once the interrupted one has returned"
    )


class OwnedLock:
    """A lock that knows whether this thread holds it. Who takes it has it in a local variable for as long as that.

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
        """Whether the caller runs inside another function of this thread that took the lock: in a signal handler.

        Requires: this thread holds it.
        """
        caller = sys._getframe(1)
        frame = caller if caller.f_locals.get("self") is not self else caller.f_back
        while frame is not None and (frame := frame.f_back) is not None:
            if any(value is self for value in frame.f_locals.values()):
                return True
        return False

    def take_back(self) -> None:
        """Release the lock that this thread left locked. Requires: this thread holds it.

        Raises Unavailable if the thread is still inside: what it is doing must not be mixed with anything else.
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
