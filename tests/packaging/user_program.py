"""A user's program, for type checkers: `make release-check` has mypy and pyright read it with the installed wheel.

It is checked, not run. `assert_type` says what a type checker has to find out from the package's own types.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, assert_type

import tenure
from tenure import App, Backoff, Claim, Delivery, Enqueued, GroupPolicy, Job, NewJob, Policy, aio, chain, group, outbox
from tenure.worker.flow_handles import FlowHandle
from tenure.worker.handles import Handle

mails = Policy(max_attempts=3, backoff=Backoff.fixed(5), group=GroupPolicy(max_leased=2, rate="10/s"))
app = App("memory:", policies={"mail": mails})


@app.task(queue="mail", timeout=timedelta(seconds=30))
def send(to: str, times: int = 1) -> list[str]:
    return [to] * times


@app.task
async def fetch(url: str) -> bytes:
    return url.encode()


def follow() -> None:
    assert_type(group([send.s("ada"), send.s("eve")]).enqueue(), FlowHandle[list[list[str]]])
    chain(fetch.s("https://example.org"), send.s("ada"), on_parent_dead="wait").enqueue()


def produce(db: sqlite3.Connection) -> None:
    assert_type(send("ada"), list[str])
    assert_type(send.delay("ada", times=2), Handle[list[str]])
    assert_type(send.options(delay=30, priority=9).delay("ada").result(timeout=5), list[str])
    call = assert_type(fetch("https://example.org"), Coroutine[Any, Any, bytes])
    call.close()
    assert_type(fetch.delay("https://example.org").result(), bytes)
    assert_type(outbox.delay(db, send, "ada", times=2), str)
    with tenure.open("memory:") as store:
        queue = store.queue("mail", tenant="acme")
        assert_type(queue.enqueue(b"x", delay=timedelta(minutes=1)), Enqueued)
        assert_type(queue.enqueue_many([NewJob(b"x", key="k"), b"y"]), list[Enqueued])
        with queue.claim(limit=10, lease=30, wait=5) as claim:
            assert_type(claim, Claim)
            for delivery in claim:
                assert_type(delivery, Delivery)
                queue.ack(delivery, result=b"ok")
        assert_type(queue.get("0" * 32), Job | None)
        assert_type(queue.find("k"), str | None)


async def consume() -> None:
    async with aio.open("memory:") as store:
        queue = store.queue("mail")
        assert_type(await queue.enqueue(b"x"), Enqueued)
        async with queue.claim(wait=5) as claim:
            for delivery in claim:
                await queue.ack(delivery)


if __name__ == "__main__":
    produce(sqlite3.connect(":memory:"))
    asyncio.run(consume())
