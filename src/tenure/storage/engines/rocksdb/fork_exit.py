"""How a forked child of a process that has used RocksDB ends.

RocksDB has one pool of background threads in a process, and joins them when the process exits, in a destructor that the C
library runs after Python has ended. A forked child has the pool, but not its threads: joining them is a crash (SIGSEGV). So a
child ends without the destructors: once Python has ended and C's own output is flushed, it calls `_exit` with its exit code.
"""

from __future__ import annotations

import ctypes
import os

_armed = False


def arm() -> None:
    """From now on the process has threads of RocksDB, for as long as it lives: see to its future children."""
    global _armed
    if not _armed:
        _armed = True
        os.register_at_fork(after_in_child=_end_without_destructors)


def _end_without_destructors() -> None:
    """Have the C library call `fflush(NULL)` and then `_exit(code)` before any destructor: the last registered runs first."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc's: it hands the exit code over
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)
