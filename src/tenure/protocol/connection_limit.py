"""How many connections the listeners of a process may hold, so that its store can still open files."""

from __future__ import annotations

import resource


def connection_limit(wanted: int = 0, share: float = 1.0) -> int:
    """How many connections a listener may hold: its share of the process's handles, less a quarter for the store.

    `wanted` is the setting, 0 for the most there can be; it is lowered where the process has too few handles for it.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = 2**20
    most = max(8, int((soft - max(128, soft // 4)) * share))
    return min(wanted, most) if wanted else most
