"""The lifespan and the dependencies, in real applications of Starlette and FastAPI."""

from __future__ import annotations

from typing import Annotated

import pytest
from fastapi import Depends, FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from tenure import App
from tenure.aio import AsyncQueue, AsyncStore
from tenure.errors import InvalidArgument, OpenError, StoreClosed
from tenure.integrations import fastapi
from tenure.integrations.fastapi import lifespan, queue


def application(app: App, **options: object) -> FastAPI:
    web = FastAPI(lifespan=lifespan(app, **options))  # type: ignore[arg-type]  # a worker, or nothing

    @web.post("/jobs")
    async def add(jobs: Annotated[AsyncQueue, Depends(queue("jobs", "acme"))]) -> str:
        return (await jobs.enqueue(b"x")).id

    @web.get("/queues")
    async def queues(store: Annotated[AsyncStore, Depends(fastapi.store)]) -> list[str]:
        return [f"{info.tenant}/{info.queue}" for info in await store.queues()]

    @web.websocket("/count")
    async def count(socket: WebSocket, jobs: Annotated[AsyncQueue, Depends(queue("jobs", "acme"))]) -> None:
        await socket.accept()
        await socket.send_json((await jobs.counts()).waiting)
        await socket.close()

    return web


def test_the_store_lives_as_long_as_the_application(tmp_path):
    app = App(f"rocksdb:{tmp_path / 'data'}")
    for _ in range(2):  # it can be started again
        with TestClient(application(app)) as client:
            assert len(client.post("/jobs").json()) == 32
            assert client.get("/queues").json() == ["acme/jobs"]
            store = app.store
        assert store.closed
    with TestClient(application(app)) as client, client.websocket_connect("/count") as socket:
        assert socket.receive_json() == 2


def test_a_worker_beside_the_application(tmp_path):
    app = App(f"rocksdb:{tmp_path / 'data'}")

    @app.task
    def double(number: int) -> int:
        return 2 * number

    with TestClient(application(app, worker=app.worker(concurrency=1))):
        assert double.delay(21).result(30) == 42


def test_a_store_that_cannot_be_opened_keeps_the_application_from_starting(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OpenError), TestClient(application(App(f"rocksdb:{tmp_path / 'file'}"))):
        pass


def test_an_application_without_the_lifespan_is_told_so():
    with pytest.raises(StoreClosed, match="lifespan"):
        TestClient(application(App("memory:"))).get("/queues")  # not entered: its lifespan does not run
    with pytest.raises(InvalidArgument):
        queue("no such name!")


def test_starlette():
    app = App("memory:")

    async def add(request: Request) -> PlainTextResponse:
        return PlainTextResponse((await fastapi.store(request).queue("jobs").enqueue(b"x")).id)

    with TestClient(Starlette(routes=[Route("/", add)], lifespan=lifespan(app))) as client:
        job = client.get("/").text
        found = app.store.get(job)
        assert found is not None
        assert found.payload == b"x"
