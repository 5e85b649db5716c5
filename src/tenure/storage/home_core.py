"""Has threads that share syncs wake on one core, where they commit faster so.

Only one thread at a time runs Python. When a sync ends, the kernel wakes each of its callers on an idle core. There the
caller finds the interpreter busy and sleeps again; when it gets the interpreter, the caches of that core hold little of
it, and the core that had it falls asleep. With eight clients that commit batches of 100, two cores did less than one.

So a caller restricts itself to the home core while it waits, and gets its own cores back before it returns: what it does
between two verbs, and the threads and processes that it starts there, run on any core.

Whether that helps depends on what the threads do between two commits, and on what else runs on the home core. So it is
measured, by commits per second: a way is kept for `_KEPT` trials, then the other one is tried again.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Collection
from contextlib import suppress

#: Syncs in one trial, and for how many trials the better way is kept.
_TRIAL = 32
_KEPT = 32
#: Without the home core, callers must commit so many times as fast to wait without it: two equal trials differ by as much.
_SURE = 1.25
#: If so many seconds pass between two syncs, the callers were idle, and the sync is not counted.
_IDLE = 0.1


def _find_current_core() -> Callable[[], int] | None:
    """The function that returns the calling thread's core. None where a thread cannot choose its cores."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    return getattr(ctypes.CDLL(None), "sched_getcpu", None)


class HomeCore:
    def __init__(self) -> None:
        self._current_core = _find_current_core()
        #: The core on which callers wait; None: on any.
        self.core: int | None = None
        #: In this trial: syncs, commits, seconds.
        self._syncs = self._commits = 0
        self._seconds = 0.0
        #: Commits per second in the last trial without and with a home core; 0: not tried. Trials that are left until
        #: the other way is tried again.
        self._rates = [0.0, 0.0]
        self._left = 0

    def synced(self, commits: int, seconds: float) -> None:
        """A sync has covered the `commits` of several callers, `seconds` after the one before. The leader calls this."""
        if seconds > _IDLE or self._current_core is None:
            return
        self._syncs += 1
        self._commits += commits
        self._seconds += seconds
        if self._syncs < _TRIAL:
            return
        used = self.core is not None
        self._rates[used] = self._commits / self._seconds
        self._syncs = self._commits = 0
        self._seconds = 0.0
        if self._left:
            self._left -= 1
            wanted = used if self._left else not used
        elif self._rates[not used]:
            wanted = self._rates[True] * _SURE > self._rates[False]
            self._left = _KEPT
        else:
            wanted = not used
        if wanted != used:
            self.core = self._current_core() if wanted else None

    def enter(self, cores: Collection[int]) -> Collection[int]:
        """Restrict the calling thread to the home core, if that is one of its `cores`. It must give itself those back.

        Returns the cores that it may run on now.
        """
        home = self.core
        if home is not None and home in cores:
            with suppress(OSError):  # not permitted, or the process lost this core meanwhile
                os.sched_setaffinity(0, (home,))
                return {home}
        return cores


def own_cores() -> Collection[int]:
    """The cores that the calling thread may run on. Empty: it has no choice."""
    with suppress(OSError):
        cores = os.sched_getaffinity(0)
        if len(cores) > 1:
            return cores
    return ()
