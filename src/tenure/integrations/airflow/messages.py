"""Jobs of a queue as asset events: the trigger, and its stream of leased jobs.

    MessageQueueTrigger(scheme="tenure", …)        in a Dag file
        └──▶ TenureTrigger                         in Airflow's triggerer; triggers of one queue share one stream
                └──▶ JobStream                     claims jobs, passes each to every trigger of the queue, and settles it:

    every trigger's event is in Airflow's database ──▶ ack
    a trigger refused the job                      ──▶ fail: the job is dead, and can be replayed
    a trigger failed, or the triggerer stops       ──▶ release: the job is delivered again

A triggerer that is killed settles nothing: the lease ends, and the job is delivered again. So each job becomes an asset
event at least once, and none is lost between the queue and Airflow's database.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Sequence
from typing import Any

import structlog
from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome, SharedStreamProducer

from tenure import aio
from tenure.api.aio import AsyncQueue, AsyncStore
from tenure.errors import LeaseLost
from tenure.model.lease import Delivery
from tenure.model.names import DEFAULT_TENANT, checked

#: Seconds that one claim waits for a job.
_WAIT = 20.0
_log = structlog.get_logger("tenure.airflow")


class JobStream(SharedStreamProducer):
    """The jobs of one queue, leased until Airflow has written their events into its database."""

    def __init__(self, store: str, queue: str, tenant: str, lease: float, limit: int) -> None:
        self._url = store
        self._name = (queue, tenant)
        self._lease = lease
        self._limit = limit
        self._store: AsyncStore | None = None
        self._queue: AsyncQueue | None = None
        self._open: dict[bytes, Delivery] = {}

    async def open_stream(self) -> AsyncIterator[tuple[dict[str, object], Delivery]]:
        """Claim jobs without end. Raises TenureError if the store cannot be opened, or does not answer for long."""
        self._store = await aio.open(self._url)
        self._queue = self._store.queue(*self._name)
        while True:
            claim = await self._queue.claim(self._limit, self._lease, _WAIT, worker="airflow")
            self._open |= {delivery.job: delivery for delivery in claim}
            for delivery in claim:
                yield event_of(delivery), delivery

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Settle jobs by the outcome of their events. A lost lease is no error: the job is delivered again."""
        assert self._queue is not None  # a batch comes from the open stream
        for delivery, outcome in batch:
            if outcome.rejected:
                settle = self._queue.fail(delivery, error="refused by a trigger of Airflow")
            elif outcome.is_clean:
                settle = self._queue.ack(delivery)
            else:
                settle = self._queue.release(delivery)
            try:
                await settle
            except LeaseLost:
                _log.warning("lease_lost", job=delivery.id, consequence="the job becomes an event once more")
            del self._open[delivery.job]

    def get_advance_lane(self, broker_payload: Delivery) -> Hashable:
        """Return a lane for each job: one that waits for its event's confirmation delays no other."""
        return broker_payload.job

    async def aclose(self) -> None:
        """Release the jobs whose events were not confirmed, and close the store."""
        if self._store is None:
            return
        try:
            if self._queue is not None and self._open:
                await self._queue.release_many(list(self._open.values()))
        finally:
            await self._store.close()


class TenureTrigger(BaseEventTrigger):
    """Makes an asset event for each job of a queue, with `id`, `queue`, `tenant`, `attempt`, `headers`, and `text` or
    `base64`.

    `store` is a server's URL (`http://HOST:PORT`, `redis://HOST`); the token comes from the triggerer's settings
    (`TENURE_STORAGE_HTTP_TOKEN_FILE`), not from the Dag file. A folder (`rocksdb:PATH`) can be opened only once in a
    process, so it works for one queue only. `lease` is the time in seconds for Airflow to write an event into its
    database, `limit` the number of jobs in a claim. Triggers of one queue share one stream, so each of them sees every
    job; they should agree on `lease` and `limit`.
    """

    def __init__(
        self, *, store: str, queue_name: str, tenant: str = DEFAULT_TENANT, lease: float = 300, limit: int = 100
    ) -> None:
        super().__init__()
        self.store = store
        self.queue_name = checked("queue", queue_name)  # checked in the Dag file, where a wrong name is seen at once
        self.tenant = checked("tenant", tenant)
        self.lease = lease
        self.limit = limit

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, as Airflow stores them."""
        names = ("store", "queue_name", "tenant", "lease", "limit")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    def shared_stream_key(self) -> Hashable:
        return ("tenure", self.store, self.tenant, self.queue_name)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> JobStream:
        """Return the stream for all triggers of the queue, from the arguments of one of them."""
        one = cls(**kwargs)
        return JobStream(one.store, one.queue_name, one.tenant, one.lease, one.limit)

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for event in shared_stream:
            yield TriggerEvent(event)

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Yield events for callers that drive the trigger themselves: requesting the next event acks the last job."""
        stream = JobStream(self.store, self.queue_name, self.tenant, self.lease, self.limit)
        try:
            async for event, delivery in stream.open_stream():
                yield TriggerEvent(event)
                await stream.advance([AdvanceItem(delivery, AdvanceOutcome(acked=1, failed=0))])
        finally:
            await stream.aclose()


class TenureMessages(BaseMessageQueueProvider):
    """The provider of `MessageQueueTrigger(scheme="tenure", …)`, whose other arguments are those of TenureTrigger."""

    scheme = "tenure"

    def trigger_class(self) -> type[TenureTrigger]:
        return TenureTrigger


def event_of(delivery: Delivery) -> dict[str, object]:
    """Return a job as JSON data: its payload is `text` if it is UTF-8, else `base64`."""
    try:
        payload = {"text": delivery.payload.decode()}
    except UnicodeDecodeError:
        payload = {"base64": base64.b64encode(delivery.payload).decode()}
    return {
        "id": delivery.id,
        "queue": delivery.queue,
        "tenant": delivery.tenant,
        "attempt": delivery.attempt,
        "headers": delivery.headers,
        **payload,
    }
