"""The owner's socket, through which the process that has a store open serves others.

    data/SOCKET    a Unix socket of mode 0600, bound by the process that holds OWNER, once the store is recovered

A small listener in the owner's process speaks the server's protocol there. A second process that opens the path finds
the owner by this socket (`backends.joined`); nothing needs configuring.
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import replace
from pathlib import Path

from tenure import telemetry
from tenure.backends.embedded import JOURNAL_RETENTION, EmbeddedBackend
from tenure.backends.owner.listener import Listener
from tenure.backends.remote.address import reachable
from tenure.clock import Clock
from tenure.process import Layer, closed_at_exit
from tenure.protocol.dispatcher import Dispatcher
from tenure.protocol.limits import Limits
from tenure.queueing.core import INSPECT_LIMIT
from tenure.storage.engine import Engine, Traits
from tenure.storage.folder import SOCKET

#: Callers own the folder, so only the store's own limits apply.
_LIMITS = Limits(body_bytes=4 * 1024**3, inflated_bytes=4 * 1024**3)
_BACKLOG = 512


class OwnerBackend(EmbeddedBackend):
    """The embedded backend of a process that other processes may join."""

    def __init__(
        self,
        engine: Engine,
        url: str,
        clock: Clock,
        folder: Path,
        journal_retention: float = JOURNAL_RETENTION,
        inspect_limit: int = INSPECT_LIMIT,
    ) -> None:
        super().__init__(engine, url, clock, journal_retention, inspect_limit)
        self._socket = folder / SOCKET
        self._listener: Listener | None = None
        self._traits = engine.traits
        try:
            listening = _bind(self._socket)
        except OSError as exc:
            # The file system has no sockets, or the path is too long: the store works for this process only.
            telemetry.warn("owner_cannot_listen", path=str(self._socket), message=str(exc))
            return
        self._listener = Listener(listening, Dispatcher(self, local=True, limits=_LIMITS))
        self._traits = replace(engine.traits, scope="host")
        closed_at_exit(self, Layer.LISTENER)

    @property
    def traits(self) -> Traits:
        return self._traits

    def close(self) -> None:
        self.close_at_exit()
        super().close()

    def close_at_exit(self) -> None:
        """Stop listening: requests under way are answered before the engine is closed."""
        listener = self._listener
        if listener is not None and listener.stop():
            # Unlink while this process still owns the folder: the next owner's socket has the same name.
            with contextlib.suppress(OSError):
                self._socket.unlink()


def _bind(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # left by a killed owner; no other owner exists, because this process holds the folder's lock
        with reachable(str(path)) as name:
            made.bind(name)
        path.chmod(0o600)
        made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made
