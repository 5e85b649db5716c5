"""The part of `Serving` that all backends behind a network share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tenure.contract.backend import EnqueueOutcomes, Serving, WaitsOn, enqueue_separately
from tenure.model.names import QueueName
from tenure.model.request import RequestedJobs

T = TypeVar("T")


class NetworkServing:
    """Every verb waits for the network: a server runs it in a thread, and there is no sync to defer."""

    waits_on: WaitsOn = "io"

    def deferring(self, verb: Callable[[], T]) -> tuple[T, None]:
        return verb(), None

    def enqueue_each(self: Serving, name: QueueName, requests: Sequence[RequestedJobs]) -> EnqueueOutcomes:
        return enqueue_separately(self, name, requests)
