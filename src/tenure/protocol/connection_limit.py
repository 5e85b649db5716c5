"""The limit on a process's open connections, so that its store can still open files."""

from __future__ import annotations

import resource


def connection_limit(wanted: int = 0, share: float = 1.0) -> int:
    """Return how many connections a listener may hold: its share of the file descriptors, less a quarter for the store.

    `wanted` is the setting, 0 for the maximum; it is lowered if the process has too few file descriptors.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = 2**20
    most = max(8, int((soft - max(128, soft // 4)) * share))
    return min(wanted, most) if wanted else most
