"""A query of a table, checked, and the view of a store that it is answered from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tenure.bulk import arrays
from tenure.bulk.schemas import columns_of, schema
from tenure.errors import InvalidArgument
from tenure.model.lifecycle import SHOWN
from tenure.model.names import QueueName, checked
from tenure.storage import keyspace, records
from tenure.storage.engine import Snapshot, iterate

#: Tables whose rows have a time that `since` and `until` choose by.
TIMED = {"jobs": "created_at", "events": "time", "leases": "granted_at", "steps": "stored_at"}
Range = tuple[bytes, bytes]


@dataclass(frozen=True)
class Query:
    """A table, and which of its rows and columns. `since` and `until` are milliseconds: since <= time < until."""

    table: str
    columns: tuple[str, ...] = ()
    tenant: str | None = None
    queue: str | None = None
    states: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None

    def __post_init__(self) -> None:
        known = [column.name for column in columns_of(self.table)]
        object.__setattr__(self, "columns", tuple(self.columns) or tuple(known))
        schema(self.table, self.columns)
        if self.tenant is not None:
            checked("tenant", self.tenant)
        if self.queue is not None:
            checked("queue", self.queue)
        if self.states and self.table != "jobs":
            raise InvalidArgument(f"state chooses among jobs, and this is the table {self.table}")
        for state in self.states:
            if state not in SHOWN:
                raise InvalidArgument(f"state {state!r}: one or more of {', '.join(SHOWN)}")
        if (self.since_ms is not None or self.until_ms is not None) and self.table not in TIMED:
            raise InvalidArgument(f"since and until choose among {', '.join(TIMED)}; this is the table {self.table}")

    @cached_property
    def schema(self) -> pa.Schema:
        return schema(self.table, self.columns)

    def in_time(self, times_ms: arrays.Ints) -> arrays.Bools | None:
        """Which of these times `since` and `until` choose; None: all."""
        if self.since_ms is None and self.until_ms is None:
            return None
        return (times_ms >= (self.since_ms or 0)) & (times_ms < (2**62 if self.until_ms is None else self.until_ms))

    def wants(self, names: Iterable[str]) -> bool:
        return any(name in self.columns for name in names)


class Names:
    """Queues by number, as arrays can look them up. A number without a name is shown as `#7`, of no tenant."""

    def __init__(self, queues: Iterable[tuple[int, QueueName]]) -> None:
        known = sorted(queues)
        self._numbers = np.array([number for number, _ in known], np.int64)
        self._names = [name for _, name in known]

    def columns(self, numbers: npt.NDArray[np.generic]) -> tuple[pa.Array, pa.Array]:
        """(tenant, queue) of each."""
        wide = numbers.astype(np.int64)
        if len(wide) and (wide == wide[0]).all():  # as it mostly is: rows come queue by queue
            present, which = wide[:1], np.zeros(len(wide), np.int64)
        else:
            present, which = np.unique(wide, return_inverse=True)
        at = np.searchsorted(self._numbers, present)
        names = [
            self._names[i] if i < len(self._numbers) and self._numbers[i] == number else QueueName("", f"#{number}")
            for i, number in zip(at.tolist(), present.tolist(), strict=True)
        ]
        return arrays.texts([n.tenant for n in names], which), arrays.texts([n.queue for n in names], which)

    def knows(self, numbers: npt.NDArray[np.generic]) -> bool:
        return bool(np.isin(numbers.astype(np.int64), self._numbers).all())

    def chosen(self, tenant: str | None, queue: str | None) -> list[int] | None:
        """The numbers of those asked for, ascending; None: all."""
        if tenant is None and queue is None:
            return None
        return [
            int(number)
            for number, name in zip(self._numbers, self._names, strict=True)
            if (tenant is None or name.tenant == tenant) and (queue is None or name.queue == queue)
        ]


@dataclass
class StoreView:
    """A snapshot of a store, and the store's time when it was taken, which tells scheduled jobs from ready ones."""

    reader: Snapshot
    now_ms: int
    _queues: list[records.QueueRecord] | None = field(default=None, repr=False)

    def covered(self, key: bytes) -> None:
        """A reader calls this before it yields a batch that ends before its last scan did: at the row of this key."""

    def queues(self) -> list[records.QueueRecord]:
        if self._queues is None:
            self._queues = [
                records.decode_struct(records.QueueRecord, value, f"the row of queue {key!r}")
                for rows in iterate(self.reader, keyspace.QUEUES, b"", keyspace.LAST)
                for key, value in rows
            ]
        return self._queues

    @cached_property
    def names(self) -> Names:
        return Names((record.number, QueueName(record.tenant, record.queue)) for record in self.queues())


def queue_ranges(numbers: Sequence[int] | None) -> list[Range]:
    """The keys of these queues, in any space whose keys begin with the number; neighbours joined."""
    if numbers is None:
        return [(b"", keyspace.LAST)]
    ranges: list[Range] = []
    for number in numbers:
        begin, end = keyspace.queue_range(number)
        if ranges and ranges[-1][1] == begin:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((begin, end))
    return ranges
