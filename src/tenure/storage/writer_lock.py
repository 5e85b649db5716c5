"""The writer's lock, which an exception cannot leave locked for good.

`with lock` is safe against an exception raised by a signal handler: the interpreter runs handlers only where the
`with` statement already covers the lock. A tracing function may raise later than that, at the line that would release
the lock; then the thread that holds it is no longer inside. `take_back` is called before each `with`: a thread never
enters twice, so a lock that this thread holds on entering was left behind.

In a debug run (the environment has `DEBUG_WRITER_LOCK`, as in the tests) every function that says "Requires: the
writer's lock is held" asserts it.
"""

from __future__ import annotations

import os
import threading
from threading import get_ident


class WriterLock:
    __slots__ = ("checked", "holder", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        #: Whether this is a debug run.
        self.checked = "DEBUG_WRITER_LOCK" in os.environ
        #: The thread that took the lock last; set inside the `with`.
        self.holder = 0

    def take_back(self) -> None:
        """Release the lock if this thread left it locked. Called when the lock is found locked on entering."""
        if self.holder == get_ident() and self.lock.locked():
            self.lock.release()

    def assert_held(self) -> None:
        """Raises AssertionError unless this thread holds the lock."""
        assert self.lock.locked(), "the writer's lock is not held"
        assert self.holder == get_ident(), "the writer's lock is held by another thread"
