"""The trigger and its stream, with the real Airflow. It is no part of the test environment: `pip install 'tenure[airflow]'`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip(
    "airflow.triggers.shared_stream", reason="Airflow 3.3 is not installed: it brings 123 packages of its own"
)

import structlog
from airflow.triggers.base import TriggerEvent
from airflow.triggers.shared_stream import SharedStreamManager, reject_shared_stream_event

import tenure
from tenure.errors import InvalidArgument
from tenure.integrations.airflow.messages import TenureTrigger
from tenure.server.service import Bind, Service, listening
from tenure.server_settings import Server

pytestmark = pytest.mark.filterwarnings("ignore")


class Triggerer:
    """What Airflow's triggerer does with the triggers of one queue, by its own shared stream."""

    def __init__(self, store: str, accept: Callable[[dict[str, Any]], bool] = lambda event: True) -> None:
        self._trigger = TenureTrigger(store=store, queue_name="reports", lease=60, limit=10)
        self._key = self._trigger.shared_stream_key()
        self.manager = SharedStreamManager(log=structlog.get_logger())
        self.events: asyncio.Queue[tuple[TriggerEvent, int | None]] = asyncio.Queue()
        self._accept = accept

    async def watch(self, trigger_id: int) -> None:
        stream = self.manager.subscribe(trigger_id=trigger_id, trigger=self._trigger, key=self._key)

        async def accepted() -> AsyncIterator[dict[str, Any]]:
            async for event in stream:
                if self._accept(event):
                    yield event
                else:
                    reject_shared_stream_event()

        async for event in self._trigger.filter_shared_stream(accepted()):
            seq = self.manager.bind_pending_event(trigger_id=trigger_id, key=self._key)
            await self.events.put((event, seq))


@asynccontextmanager
async def running(triggerer: Triggerer) -> AsyncIterator[Triggerer]:
    task = asyncio.create_task(triggerer.watch(1))
    try:
        yield triggerer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await triggerer.manager.stop_all()


async def until(wanted: Callable[[], bool]) -> None:
    """Wait for it; the test's own timeout ends the wait."""
    while not wanted():
        await asyncio.sleep(0.02)


@pytest.fixture
def served() -> Iterator[tuple[tenure.Queue, str]]:
    """A queue, and the URL by which Airflow reaches its server."""
    bind = Bind("127.0.0.1", 0)
    with (
        tenure.open("memory:") as store,
        listening(bind) as sock,
        Service(store, bind, Server()).running(sock),
    ):
        yield store.queue("reports"), f"http://127.0.0.1:{sock.getsockname()[1]}"


def test_a_job_is_acknowledged_when_its_event_is_stored(served: tuple[tenure.Queue, str]):
    queue, url = served

    async def story() -> None:
        async with running(Triggerer(url)) as airflow:
            first = queue.enqueue(b"monday", headers={"by": "ada"}).id
            event, seq = await airflow.events.get()
            assert event.payload == {
                "id": first, "queue": "reports", "tenant": "default", "attempt": 1, "headers": {"by": "ada"}, "text": "monday",
            }  # fmt: skip
            assert queue.counts().leased == 1
            airflow.manager.confirm_persisted([seq])
            queue.enqueue(b"\xff")
            event, _ = await airflow.events.get()
            assert event.payload["base64"] == "/w=="
            await until(lambda: queue.counts().leased == 1)  # the first is done, the second not confirmed
            job = queue.get(first)
            assert job is None or job.state == "done"
        await until(lambda: queue.counts().ready == 1)  # given back: its event was not stored

    asyncio.run(story())


def test_a_job_that_a_trigger_refuses_is_dead(served: tuple[tenure.Queue, str]):
    queue, url = served

    async def story() -> None:
        async with running(Triggerer(url, accept=lambda event: event["text"] != "bad")):
            queue.enqueue(b"bad")
            await until(lambda: queue.counts().dead == 1)

    asyncio.run(story())


def test_a_stream_that_is_driven_by_hand(served: tuple[tenure.Queue, str]):
    queue, url = served

    async def story() -> None:
        queue.enqueue_many([b"1", b"2"])
        trigger = TenureTrigger(store=url, queue_name="reports").run()
        assert [(await anext(trigger)).payload["text"] for _ in range(2)] == ["1", "2"]
        assert queue.counts().leased == 1  # asking for the second settled the first
        await trigger.aclose()
        assert queue.counts().ready == 1

    asyncio.run(story())


def test_airflow_finds_the_provider_by_its_scheme():
    from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger

    trigger = MessageQueueTrigger(scheme="tenure", store="http://queue:8400", queue_name="reports", tenant="acme")
    name, arguments = trigger.serialize()
    assert name == "tenure.integrations.airflow.messages.TenureTrigger"
    assert TenureTrigger(**arguments).shared_stream_key() == ("tenure", "http://queue:8400", "acme", "reports")
    with pytest.raises(InvalidArgument):
        TenureTrigger(store="memory:", queue_name="no/such/name")
