"""Steps, sleeps and signals in handlers: what was done is not done again, and waiting holds no lease and no slot."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from tenure import App, InvalidArgument, ManualClock, Retry, TaskFailed, WaitTimeout, current_job
from tenure.worker.handles import Handle
from tests.worker import apps
from tests.worker.conftest import until


@dataclass
class Receipt:
    order: str
    cents: int


@pytest.fixture
def app():
    with App("memory:", sweep=False) as made:
        yield made
        if not made.inline:
            assert made.store.check().clean


def leased(handle: Handle[Any]) -> bool:
    return handle.status() == "leased"


def test_a_step_is_done_once(app):
    done: list[str] = []

    def charge(order: str) -> Receipt:
        done.append("charge")
        return Receipt(order, 500)

    @app.task(max_attempts=3)
    def buy(order: str) -> int:
        job = current_job()
        receipt = job.step("charge", charge, order)
        assert receipt == Receipt("17", 500)  # as the function annotates it, also when it was stored
        job.step("mail", done.append, "mail")
        assert job.step("mail", done.append, "never") is None
        if job.attempt < 3:
            raise Retry(after=0)
        return receipt.cents

    with app.worker(concurrency=1):
        assert buy.delay("17").result(60) == 500
    assert done == ["charge", "mail"]


def test_a_step_that_fails_is_not_stored(app):
    calls: list[int] = []

    @app.task(max_attempts=2)
    def buy() -> int:
        return current_job().step("charge", charge)

    def charge() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise Retry(after=0)
        return 7

    with app.worker(concurrency=1):
        assert buy.delay().result(60) == 7
    assert len(calls) == 2


def test_a_sleep_gives_the_lease_back_and_counts_no_attempt():
    clock = ManualClock()
    with App("memory:", sweep=False, clock=clock) as app:
        seen: list[int] = []

        @app.task(max_attempts=1)
        def remind() -> str:
            job = current_job()
            seen.append(job.attempt)
            job.sleep(3600)
            job.step("first", seen.append, -1)
            job.sleep(60)
            return "reminded"

        handle = remind.delay()
        with app.worker(concurrency=1):
            until(lambda: handle.status() == "scheduled")
            clock.advance(3601)
            app.store.sweep()
            until(lambda: seen[-1] == -1 and handle.status() == "scheduled")
            clock.advance(61)
            app.store.sweep()
            assert handle.result(60) == "reminded"
        assert seen == [1, 1, -1, 1]
        assert app.store.check().clean


@pytest.mark.parametrize("pool", ["thread", "async"])
def test_a_handler_waits_for_a_signal(app, pool):
    @app.task(max_attempts=1)
    def ask() -> dict[str, str]:
        try:
            return current_job().wait_for("approval", as_type=dict[str, str])
        except Exception:  # what waits is no exception
            return {}

    @app.task(max_attempts=1)
    async def ask_async() -> bytes:
        job = current_job()

        async def double(number: int) -> int:
            return 2 * number

        assert await job.aio.step("double", double, 4) == 8
        await job.aio.sleep(0)
        return await job.aio.wait_for("approval", timeout=600)

    handles = ask.delay(), ask_async.delay()
    queue = app.store.queue("default")
    with app.worker(concurrency=1, pool=pool):
        until(lambda: all(handle.status() == "scheduled" for handle in handles))
        for handle in handles:
            assert queue.signal(handle.id, "approval", b'{"by": "ada"}')
        assert handles[0].result(60) == {"by": "ada"}
        assert handles[1].result(60) == b'{"by": "ada"}'
    assert {handle.job().attempt for handle in handles} == {1}


def test_a_wait_for_a_signal_has_an_end():
    clock = ManualClock()
    with App("memory:", sweep=False, clock=clock) as app:

        @app.task(max_attempts=1)
        def ask() -> str:
            try:
                current_job().wait_for("approval", timeout=60)
            except WaitTimeout:
                return "nobody answered"
            return "answered"

        handle = ask.delay()
        with app.worker(concurrency=1):
            until(lambda: handle.status() == "scheduled")
            clock.advance(61)
            app.store.sweep()
            assert handle.result(60) == "nobody answered"


def test_steps_in_a_pool_of_processes(tmp_path, monkeypatch, trace):
    apps.app.use(f"rocksdb:{tmp_path / 'store'}")
    try:
        handle = apps.step_and_die.delay()
        with apps.app.worker(["steps"], concurrency=1, pool="process"):
            until(lambda: handle.status() == "scheduled")
            apps.app.store.queue("steps").signal(handle.id, "go", b"went")
            assert handle.result(60) == "charged went"
        assert [words[0] for words in trace()] == ["charged", "dies"]
    finally:
        apps.app.use("memory:")


def test_a_result_that_cannot_be_kept(app):
    @app.task(max_attempts=1)
    def wrong() -> None:
        current_job().step("object", object)

    @app.task(max_attempts=1)
    def reserved() -> None:
        current_job().step("tenure.sleep 1", int)

    with app.worker(concurrency=1):
        with pytest.raises(TaskFailed, match="step 'object': its result cannot be kept"):
            wrong.delay().result(60)
        with pytest.raises(TaskFailed, match="must not begin with"):
            reserved.delay().result(60)


def test_a_plain_call_does_its_steps_and_waits_for_nothing(app):
    @app.task
    def buy() -> int:
        job = current_job()
        job.sleep(3600)
        return job.step("charge", int, "5")

    @app.task
    def ask() -> None:
        current_job().wait_for("approval")

    assert buy() == 5
    with pytest.raises(InvalidArgument, match="no job to wait for a signal"):
        ask()


def test_a_bench_runs_steps(tenure_app):
    done: list[str] = []

    @tenure_app.task(max_attempts=1)
    def remind() -> str:
        job = current_job()
        job.step("note", done.append, "once")
        job.sleep(3600)
        return job.wait_for("name").decode()

    handle = remind.delay()
    bench = tenure_app.bench
    bench.run_next()
    assert handle.status() == "scheduled"
    bench.clock.advance(3601)
    bench.run_next()
    tenure_app.store.queue("default").signal(handle.id, "name", b"ada")
    assert bench.run_next().result == "ada"
    assert done == ["once"]


def test_signals_are_awaited_too(app):
    import tenure.aio

    async def run() -> None:
        async with await tenure.aio.open("memory:") as store:
            queue = store.queue("work")
            job = await queue.enqueue(b"x")
            assert await queue.signal(job.id, "go", b"1") is True
            assert [step.name for step in await queue.steps(job.id)] == ["go"]

    asyncio.run(run())
