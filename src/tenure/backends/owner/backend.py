"""The owner's socket: how a process that has a store open lets others in.

    data/SOCKET    a Unix socket of mode 0600, bound by whoever holds OWNER, once the store is recovered

It speaks the protocol of the server (`backends.remote`), by a small listener inside this process. A second process that opens
the path finds the owner there (`joining`), with nothing to configure.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import weakref
from dataclasses import replace
from pathlib import Path

from tenure import telemetry
from tenure.backends.embedded import JOURNAL_RETENTION, KvBackend
from tenure.backends.owner.listener import Listener
from tenure.backends.remote.address import reachable
from tenure.clock import Clock
from tenure.protocol.dispatcher import Host
from tenure.protocol.limits import Limits
from tenure.storage.engine import Engine, Traits
from tenure.storage.folder import SOCKET

#: Whoever gets in owns the folder: the bounds of a verb are the store's own.
_LIMITS = Limits(body_bytes=4 * 1024**3, inflated_bytes=4 * 1024**3)
_BACKLOG = 512


class OwnerBackend(KvBackend):
    """The embedded backend of a process that others may join."""

    def __init__(
        self, engine: Engine, url: str, clock: Clock, folder: Path, journal_retention: float = JOURNAL_RETENTION
    ) -> None:
        super().__init__(engine, url, clock, journal_retention)
        self._socket = folder / SOCKET
        self._listener: Listener | None = None
        self._traits = engine.traits
        try:
            listening = _bound(self._socket)
        except OSError as exc:
            # A file system without sockets, or too long a path: the store is as good as ever, for one process.
            telemetry.warn("owner_cannot_listen", path=str(self._socket), message=str(exc))
            return
        self._listener = Listener(listening, Host(self, local=True, limits=_LIMITS))
        self._traits = replace(engine.traits, scope="host")
        _owners.add(self)

    @property
    def traits(self) -> Traits:
        return self._traits

    def close(self) -> None:
        self._stop()
        super().close()

    def _stop(self) -> None:
        listener = self._listener
        if listener is not None and listener.stop():
            # Unlinked while the folder is still ours: the next owner's socket has the same name.
            with contextlib.suppress(OSError):
                self._socket.unlink()


def _bound(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # what an owner that was killed left behind; there is no other, since the folder is ours
        with reachable(str(path)) as name:
            made.bind(name)
        path.chmod(0o600)
        made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


_owners: weakref.WeakSet[OwnerBackend] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """Before the engines are closed: who is inside gets an answer, or none, but no error of ours."""
    for owner in list(_owners):
        if owner._listener is not None and owner._listener.owner == os.getpid():
            owner._stop()
