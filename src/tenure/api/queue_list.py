"""Several queues of a store to claim from in turn: each claim starts one queue further."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

from tenure.model.names import NamesInTurn, QueueName

if TYPE_CHECKING:
    from tenure.api.queue import Queue


class QueueList(Sequence["Queue"]):
    """Queue handles and their names, starting at one of them. Built once for a list that is claimed from repeatedly."""

    __slots__ = ("_by_name", "_first", "_handles", "names")

    def __init__(self, handles: Sequence[Queue]) -> None:
        self._handles, self._first = tuple(handles), 0
        self._by_name = {handle.name: handle for handle in self._handles}
        self.names = NamesInTurn(list(self._by_name))

    def beginning(self, first: int) -> QueueList:
        made = QueueList.__new__(QueueList)
        made._handles, made._by_name, made._first = self._handles, self._by_name, first
        made.names = self.names.beginning(first % len(self._by_name))
        return made

    def find(self, name: QueueName) -> Queue:
        return self._by_name[name]

    def __len__(self) -> int:
        return len(self._handles)

    def __iter__(self) -> Iterator[Queue]:
        return map(self.__getitem__, range(len(self)))

    @overload
    def __getitem__(self, at: int) -> Queue: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Queue]: ...
    def __getitem__(self, at: int | slice) -> Queue | Sequence[Queue]:
        if isinstance(at, slice):
            return tuple(self)[at]
        return (*self._handles[self._first :], *self._handles[: self._first])[at] if at else self._handles[self._first]
