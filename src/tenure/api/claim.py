"""`Claim`: an iterable of deliveries, and a context manager that releases the jobs that were not settled."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING

from tenure.model.durations import as_datetime
from tenure.model.lease import Delivery, Leased

if TYPE_CHECKING:
    from tenure.api.queue import Queue


class Claim:
    """One lease over up to `limit` jobs of one queue. Empty (and false) if there was nothing to claim."""

    __slots__ = ("_leased", "queue")

    def __init__(self, queue: Queue, leased: Leased | None) -> None:
        self.queue = queue
        self._leased = leased

    @property
    def deliveries(self) -> list[Delivery]:
        return [] if self._leased is None else self._leased.deliveries

    @property
    def lease(self) -> bytes | None:
        """The lease's id as stored; None for an empty claim."""
        return None if self._leased is None else self._leased.lease

    @property
    def id(self) -> str | None:
        """The lease's id in hex; None for an empty claim."""
        return None if self._leased is None else self._leased.lease.hex()

    @property
    def until(self) -> datetime | None:
        """The end of the lease as claimed, by the store's clock; `extend` returns the new end."""
        return None if self._leased is None else as_datetime(self._leased.until_ms)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(() if self._leased is None else self._leased.deliveries)

    def __len__(self) -> int:
        return 0 if self._leased is None else len(self._leased.deliveries)

    def __getitem__(self, index: int) -> Delivery:
        leased = self._leased
        return ([] if leased is None else leased.given or leased.deliveries)[index]

    @staticmethod
    def of_nothing() -> Claim:
        """Return an empty claim that belongs to no queue: its `queue` is unset."""
        made = object.__new__(Claim)
        made._leased = None
        return made

    def __repr__(self) -> str:
        if self._leased is None and not hasattr(self, "queue"):
            return "<Claim of nothing>"
        return f"<Claim of {len(self)} from {self.queue.name}>"

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Jobs already settled report that they are, which is fine: only open ones are released.
        if self._leased is not None:
            self.queue.release_many(self._leased.deliveries)
