"""Enqueueing from FastAPI: a request answers at once, and a second one gives the state of its job.

    uvicorn examples.web:web                  the web app
    tenure worker examples.web:app         and a worker beside it

Enqueueing is awaited (`resize.aio`), so the event loop serves other requests meanwhile.
"""

from __future__ import annotations

import os

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from tenure import App, TaskFailed, WaitTimeout

app = App(os.environ.get("WEB_STORE", "lmdb:./data"))
web = FastAPI(title="Pictures")


class Picture(BaseModel):
    name: str
    width: int


@app.task(queue="pictures", max_attempts=3)
def resize(picture: Picture) -> str:
    """Pydantic models are arguments like any other."""
    if picture.width > 10_000:
        raise ValueError("that is no thumbnail")
    return f"{picture.name}@{picture.width}"


@web.post("/pictures", status_code=202)
async def add(picture: Picture) -> dict[str, object]:
    """The key makes one job of a request that is sent twice."""
    task = resize.options(key=f"{picture.name}:{picture.width}", max_attempts=1)
    handle = await task.aio.delay(picture)
    return {"job": handle.id, "seen_before": handle.duplicate}


@web.get("/pictures/{job}")
async def look(job: str, wait: float = 0.0) -> dict[str, object]:
    handle = resize.aio.handle(job)
    try:
        return {"status": "done", "result": await handle.result(timeout=min(wait, 30.0))}
    except WaitTimeout:
        return {"status": await handle.status()}
    except TaskFailed as failed:
        if failed.reason in ("removed", "unknown"):
            raise HTTPException(404, "no such job") from None
        return {"status": "dead", "error": (failed.error or "").splitlines()[0]}
