"""FastAPI and Starlette: a store that is open as long as the web application runs, and dependencies for it.

    tasks = App("rocksdb:./data")
    web = FastAPI(lifespan=lifespan(tasks))

    @web.post("/mails")
    async def add(mail: Mail, mails: Annotated[AsyncQueue, Depends(queue("mail"))]) -> str:
        return (await mails.enqueue(mail.model_dump_json().encode())).id

A task's call needs no dependency: `await send.aio.delay(mail)`. Pydantic models are arguments like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from tenure.api.aio import AsyncQueue, AsyncStore
from tenure.errors import StoreClosed
from tenure.model.names import DEFAULT_TENANT, queue_name
from tenure.worker.app import App
from tenure.worker.runner import Worker

_STATE = "tenure"

Lifespan = Callable[[Starlette], AbstractAsyncContextManager[Mapping[str, AsyncStore]]]


def lifespan(app: App, *, worker: Worker | None = None) -> Lifespan:
    """Return the `lifespan=` of a web application: it opens the app's store at the start, and closes it at the end.

    If the store cannot be opened, the application does not start. With `worker` (`app.worker(concurrency=2)`) its tasks
    run in the same process: for development, and for small sites.
    """

    @asynccontextmanager
    async def run(web: Starlette) -> AsyncIterator[Mapping[str, AsyncStore]]:
        store = AsyncStore(await asyncio.to_thread(lambda: app.store))
        try:
            if worker is not None:
                await asyncio.to_thread(worker.__enter__)
            try:
                yield {_STATE: store}
            finally:
                if worker is not None:
                    await asyncio.to_thread(worker.__exit__, None, None, None)
        finally:
            await store.close()
            await asyncio.to_thread(app.close)

    return run


def store(connection: HTTPConnection) -> AsyncStore:
    """A dependency: the store of the application's lifespan. Raises StoreClosed if the lifespan did not run."""
    found = getattr(connection.state, _STATE, None)
    if not isinstance(found, AsyncStore):
        raise StoreClosed("the application was started without lifespan=tenure.integrations.fastapi.lifespan(app)")
    return found


def queue(name: str, tenant: str = DEFAULT_TENANT) -> Callable[[HTTPConnection], AsyncQueue]:
    """Return a dependency: `Depends(queue("mail"))` is that queue. Raises InvalidArgument for an invalid name."""
    queue_name(name, tenant)

    def dependency(connection: HTTPConnection) -> AsyncQueue:
        return store(connection).queue(name, tenant)

    return dependency
