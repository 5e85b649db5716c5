"""A store that another process owns, used through its socket; taken over when that process ends.

    open ──▶ OWNER is free ──▶ own it, and listen (`owner`)
      │
      └────▶ OWNER is held ──▶ join by the socket ── the owner is gone ──▶ one of us owns it, the others join that one

A verb that was under way when the owner went is asked for again under the id of its request, of whoever has the store
then: what was committed is told again, what was not is done now. So each verb acts once, whoever carries it out.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from tenure.backends.remote.address import Address
from tenure.backends.remote.backend import RemoteBackend
from tenure.backends.remote.transport import Unreachable
from tenure.contract.backend import Backend
from tenure.errors import OpenError, StoreClosed, StoreLocked, Unavailable
from tenure.model.lease import ClaimRequest, Leased
from tenure.model.names import QueueName
from tenure.protocol.dispatcher import outcome_id
from tenure.storage.engine import Traits
from tenure.storage.folder import SOCKET, lets_in

#: For an owner that recovers a large log, or comes to an end with much under way.
PATIENCE = 60.0
_PAUSE = 0.02

#: Verbs that act once under a request's id (`Backend.once`); the others may be repeated.
_ONCE = frozenset({
    "enqueue", "settle", "extend", "progress", "replay", "restore", "discard", "cancel", "purge", "set_paused", "configure",
    "cleanup", "forget_consumer",
})  # fmt: skip


class JoinedBackend:
    """`contract.Backend`, carried out by whoever owns the store: another process, or from some moment on this one."""

    def __init__(self, url: str, own: Callable[[], Backend], join: Callable[[], RemoteBackend], first: Backend) -> None:
        """`own` opens the store here, or raises StoreLocked; `join` reaches its owner, or raises OpenError."""
        self.url = url
        self._own = own
        self._join = join
        self._current = first
        self._lock = threading.Lock()
        self._closed = False
        self._told: Callable[[str], None] = lambda reason: None
        #: Called once this process owns the store.
        self.on_owner: Callable[[], None] = lambda: None
        _joined.add(self)

    @property
    def owns(self) -> bool:
        return not isinstance(self._current, RemoteBackend)

    @property
    def traits(self) -> Traits:
        return self._current.traits

    def on_retry(self, told: Callable[[str], None]) -> None:
        self._told = told
        self._current.on_retry(told)

    def once(self, request: bytes) -> Backend:
        view: Any = _Once.__new__(_Once)
        view._of, view._request = self, request
        made: Backend = view
        return made

    def close(self) -> None:
        self._closed = True
        self._current.close()

    def __getattr__(self, verb: str) -> Any:
        if verb.startswith("_"):
            raise AttributeError(verb)
        return functools.partial(self._ask, verb, None)

    def claim(
        self, names: Sequence[QueueName], request: ClaimRequest, cancel: threading.Event | None = None
    ) -> Leased | None:
        return self._claim(None, names, request, cancel)

    def _claim(
        self, asked: bytes | None, names: Sequence[QueueName], request: ClaimRequest, cancel: threading.Event | None
    ) -> Leased | None:
        name = asked or os.urandom(16)
        until = time.monotonic() + request.wait_ms / 1000
        while True:
            current = self._current
            try:
                return self._for(current, name).claim(names, request, cancel)
            except Unreachable as exc:
                self._recover(current, exc)
            left = max(0, round((until - time.monotonic()) * 1000))
            request = msgspec.structs.replace(request, wait_ms=min(request.wait_ms, left))

    def _ask(self, verb: str, asked: bytes | None, *args: Any, **kwargs: Any) -> Any:
        name = asked or (os.urandom(16) if verb in _ONCE else b"")
        while True:
            current = self._current
            try:
                return getattr(self._for(current, name), verb)(*args, **kwargs)
            except Unreachable as exc:
                self._recover(current, exc)

    def _for(self, current: Backend, name: bytes) -> Backend:
        """The backend for this request: the same id, whether it is told to the owner or carried out here."""
        if not name:
            return current
        return current.once(name) if isinstance(current, RemoteBackend) else current.once(outcome_id("", name.hex()))

    # ── when the owner is gone ───────────────────────────────────────────────────────────────────────────────────────

    def _recover(self, lost: Backend, reason: Unreachable) -> None:
        """Own the store, or find who does. Returns once there is someone to ask; raises Unavailable, StoreClosed."""
        until = time.monotonic() + PATIENCE
        with self._lock:
            while self._current is lost:
                self._refuse_closed()
                found = self._next()
                if found is not None:
                    self._current = found
                    found.on_retry(self._told)
                    self._told("owner")
                    lost.close()
                    if self._closed:
                        found.close()
                    elif self.owns:
                        self.on_owner()
                    break
                if time.monotonic() > until:
                    raise Unavailable(f"{self.url}: its owner does not answer, and still holds it: {reason}")
                time.sleep(_PAUSE)
        self._refuse_closed()

    def _next(self) -> Backend | None:
        try:
            return self._own()
        except StoreLocked:
            pass
        try:
            return self._join()
        except OpenError:
            return None  # it recovers, or is on its way out

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoreClosed("this store was closed")


def joined(url: str, own: Callable[[], Backend], folder: Path, timeout: float, locked: StoreLocked) -> Backend:
    """The store through its owner; or as its owner, should that have ended meanwhile. Raises `locked` where neither can be."""
    socket = str(folder / SOCKET)

    def join() -> RemoteBackend:
        return RemoteBackend(Address(f"http+unix:{socket}", unix=socket), timeout=timeout, retry=False)

    until = time.monotonic() + PATIENCE
    while True:
        try:
            made: Any = JoinedBackend(url, own, join, join())
            return cast(Backend, made)
        except OpenError:  # it recovers, or is on its way out
            time.sleep(_PAUSE)
        try:
            return own()
        except StoreLocked:
            if time.monotonic() > until or not lets_in(folder):
                raise locked from None


class _Once:
    """A view of a joined backend for one request."""

    def __getattr__(self, verb: str) -> Any:
        of: JoinedBackend = self.__dict__["_of"]
        request: bytes = self.__dict__["_request"]
        if verb.startswith("_"):
            raise AttributeError(verb)
        if verb == "claim":
            return lambda names, asked, cancel=None: of._claim(request, names, asked, cancel)
        if verb in _ONCE:
            return functools.partial(of._ask, verb, request)
        return getattr(of, verb)

    def close(self) -> None:
        """The store is not the view's to close."""


_joined: weakref.WeakSet[JoinedBackend] = weakref.WeakSet()


def _renew_in_child() -> None:
    for backend in list(_joined):
        backend._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_in_child)
