"""A forked child of a process that has used RocksDB: how it exits, and why it must not open a database.

RocksDB has one pool of background threads in a process. A destructor, which the C library runs after Python has ended,
joins them. A forked child has the pool but not its threads, and crashes when it joins them (SIGSEGV). So a child skips
the destructors: once Python has ended and C's output is flushed, it calls `_exit` with its exit code.

For the same reason the first flush of a database that such a child opened would wait for ever: opening one is refused.
"""

from __future__ import annotations

import ctypes
import os

from tenure.errors import OpenError

_armed = False
#: Whether this process inherited the pool of its parent.
_inherited = False


def arm() -> None:
    """Call before the first database is opened: prepares the children that this process may fork later."""
    global _armed
    if not _armed:
        _armed = True
        os.register_at_fork(after_in_child=_after_fork)


def refuse_inherited_pool() -> None:
    """Raises OpenError if this process is a forked child of one that has used RocksDB."""
    if _inherited:
        raise OpenError(
            "this process was forked from one that had used RocksDB, whose background threads it does not have:"
            ' start it by spawn (multiprocessing.get_context("spawn")), or fork before the first store is opened'
        )


def _after_fork() -> None:
    global _inherited
    _inherited = True
    _end_without_destructors()


def _end_without_destructors() -> None:
    """Have the C library call `fflush(NULL)` and then `_exit(code)` before any destructor: the last registered runs
    first.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # of glibc: passes the exit code to the function
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)
