"""A FastAPI application with mail tasks: one request enqueues a mail and returns at once, another returns the job's
state.

    uvicorn examples.web:web                  the web application
    tenure worker examples.web:app            and a worker beside it

Enqueueing is awaited (`send.aio`), so the event loop serves other requests meanwhile. The store is opened when the
application starts and closed when it ends (`lifespan`).
"""

from __future__ import annotations

import os
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel, Field

from tenure import App, TaskFailed, WaitTimeout
from tenure.aio import AsyncQueue
from tenure.integrations.fastapi import lifespan, queue

app = App(os.environ.get("WEB_STORE", "lmdb:./data"))
web = FastAPI(title="Mails", lifespan=lifespan(app))


class Mail(BaseModel):
    to: str
    subject: str = Field(max_length=200)


@app.task(queue="mail", max_attempts=3)
def send(mail: Mail) -> str:
    """Send a mail. Pydantic models are arguments like any other."""
    if mail.to.endswith("@nowhere.invalid"):
        raise ValueError("550 no such user")
    return f"{mail.subject!r} to {mail.to}"


@web.post("/mails", status_code=202)
async def add(mail: Mail) -> dict[str, object]:
    """Enqueue a mail. The key makes one job of a request that is sent twice."""
    task = send.options(key=f"{mail.to}:{mail.subject}", max_attempts=1)
    handle = await task.aio.delay(mail)
    return {"job": handle.id, "seen_before": handle.duplicate}


@web.get("/mails")
async def waiting(mails: Annotated[AsyncQueue, Depends(queue("mail"))]) -> dict[str, int]:
    counts = await mails.counts()
    return {"waiting": counts.waiting, "dead": counts.dead}


@web.get("/mails/{job}")
async def look(job: str, wait: float = 0.0) -> dict[str, object]:
    handle = send.aio.handle(job)
    try:
        return {"status": "done", "result": await handle.result(timeout=min(wait, 30.0))}
    except WaitTimeout:
        return {"status": await handle.status()}
    except TaskFailed as failed:
        if failed.reason in ("removed", "unknown"):
            raise HTTPException(404, "no such job") from None
        return {"status": "dead", "error": (failed.error or "").splitlines()[0]}
