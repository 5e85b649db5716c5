"""Workers on every kind of store, and limits of a queue that hold across them."""

from __future__ import annotations

import socket
import threading
import time

import pytest

import tenure
from tenure import App, Policy, chain, current_job, group
from tenure.testing.conformance.world import all_events
from tests.worker.conftest import until


def test_max_leased_holds_across_workers():
    with App("memory:", policies={"default": Policy(max_leased=3)}, sweep=False) as app:
        lock, now, most = threading.Lock(), [0], [0]

        @app.task
        def job(i: int) -> None:
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            time.sleep(0.01)
            with lock:
                now[0] -= 1

        job.map(range(60))
        queue = app.store.queue("default")
        with app.worker(concurrency=4), app.worker(concurrency=4):
            until(lambda: queue.counts().ready == queue.counts().leased == 0)
        assert most[0] == 3
        assert queue.counts().enqueued == 60
        assert app.store.check().clean


def test_rate_holds_across_workers():
    with App("memory:", policies={"default": Policy(rate="20/s")}, sweep=False) as app:
        began: list[int] = []

        @app.task
        def job(i: int) -> None:
            began.append(i)

        job.map(range(50))
        with app.worker(concurrency=4), app.worker(concurrency=4):
            until(lambda: len(began) == 50)
        # As the store gave them out, whenever their handlers came to run: a full bucket at once, then one every 50 ms.
        given = [event.time_ms for event in all_events(app.store) if event.type == "claimed"]
        assert len(given) == 50
        assert given[-1] - given[0] >= (30 / 20 - 0.05) * 1000
        for first in given:
            assert sum(first <= moment < first + 1000 for moment in given) <= 20 + 21


@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_embedded(engine, tmp_path):
    with App(f"{engine}:{tmp_path / 'data'}") as app:

        @app.task
        def double(x: int) -> int:
            return 2 * x

        with app.worker():
            assert [handle.result() for handle in double.map(range(30))] == [2 * x for x in range(30)]
        assert app.store.check().clean


def works(app: App) -> None:
    """Retries, progress, results, a heartbeat and a lost job, wherever the store is."""
    began = threading.Event()

    @app.task(max_attempts=2)
    def flaky(x: int) -> int:
        current_job().progress(0.5)
        if current_job().attempt == 1:
            raise tenure.Retry(after=0)
        return x

    @app.task
    def long() -> None:
        began.set()
        until(lambda: current_job().lost)

    @app.task
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    with app.worker(lease=6.0) as worker:
        assert group([chain(total.s([x]), flaky.s()) for x in range(3)]).then(total.s()).enqueue().result(60) == 3
        assert [handle.result(60) for handle in flaky.map(range(10))] == list(range(10))
        handle = long.delay()
        assert began.wait(60)

        def leased_until() -> int:
            job = handle.job()
            assert job is not None
            return job.lease_until_ms or 0

        first = leased_until()
        until(lambda: leased_until() > first > 0)  # a heartbeat has kept it
        assert handle.status() == "leased"
        assert handle.cancel()
        until(lambda: worker.running == 0)
    assert (worker.totals.outcomes["done"], worker.totals.outcomes["retried"]) == (17, 13)
    assert app.store.check().clean


def test_through_a_listener(tmp_path):
    """The worker and the producer are clients of a store that somebody else owns."""
    from tenure.backends.owner.listener import Listener
    from tenure.protocol.dispatcher import Dispatcher

    with tenure.open(f"rocksdb:{tmp_path / 'data'}") as store:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        listener = Listener(listening, Dispatcher(store._backend))
        try:
            with App(f"http+unix:{tmp_path / 's'}") as app:
                works(app)
        finally:
            listener.stop()


def test_on_valkey():
    from tests.backends.redis.servers import Server

    server = Server()
    try:
        with App(server.url) as app:
            works(app)
    finally:
        server.stop()
