"""Futures of the simulated binding. Reads complete at once; a watch completes later, by another commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from tenure.testing.fdb import errors
from tenure.testing.fdb.errors import FDBError

T = TypeVar("T")
_finishing = threading.Lock()


class Future(Generic[T]):
    """A result, now or later. The event to wait for is made only for a later result, which is rare."""

    __slots__ = ("_callbacks", "_done", "_error", "_ready", "_result")

    def __init__(self) -> None:
        self._done = False
        self._ready: threading.Event | None = None
        self._result: T
        self._error: FDBError | None = None
        self._callbacks: list[Callable[[Future[T]], None]] = []

    @classmethod
    def of(cls, work: Callable[[], T]) -> Future[T]:
        """Do the work now; keep its result or its error."""
        made = cls()
        try:
            made._result = work()
        except FDBError as error:
            made._error = error
        made._done = True
        return made

    def set(self, result: T) -> None:
        self._result = result
        self._finish()

    def fail(self, error: FDBError) -> None:
        self._error = error
        self._finish()

    def _finish(self) -> None:
        with _finishing:
            self._done = True
            if self._ready is not None:
                self._ready.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def wait(self) -> T:
        if not self._done:
            self.block_until_ready()
        if self._error is not None:
            raise self._error
        return self._result

    def is_ready(self) -> bool:
        return self._done

    def block_until_ready(self) -> None:
        with _finishing:
            if self._done:
                return
            ready = self._ready = self._ready or threading.Event()
        ready.wait()

    def on_ready(self, callback: Callable[[Future[T]], None]) -> None:
        with _finishing:
            if not self._done:
                self._callbacks.append(callback)
                return
        callback(self)

    def cancel(self) -> None:
        if not self._done:
            self.fail(FDBError(errors.OPERATION_CANCELLED))


class Value:
    """The value that a read found. As in the binding, a read's error is raised when the value is used."""

    __slots__ = ("_future",)

    def __init__(self, future: Future[bytes | None]) -> None:
        self._future = future

    @property
    def value(self) -> bytes | None:
        return self._future.wait()

    def wait(self) -> Value:
        self._future.wait()
        return self

    def present(self) -> bool:
        return self.value is not None

    def is_ready(self) -> bool:
        return self._future.is_ready()

    def __bytes__(self) -> bytes:
        return self.value or b""

    def __eq__(self, other: object) -> bool:
        return self.value == (other.value if isinstance(other, Value) else other)

    def __hash__(self) -> int:
        return hash(self.value)
