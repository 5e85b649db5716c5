"""A worker in this process: what each pool does with a job, and how the worker ends."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from tenure import App, Backoff, Dead, InvalidArgument, LeaseLost, Policy, Retry, TaskFailed, current_job
from tenure.errors import Unavailable
from tenure.worker.runner import CLEAN, CUT_OFF, NO_STORE, Worker
from tests.worker.conftest import until

each_pool = pytest.mark.parametrize("pool", ["thread", "async"])


@pytest.fixture
def app():
    with App("memory:", sweep=False) as made:
        yield made
        assert made.store.check().clean


@pytest.fixture
def logs(caplog):
    caplog.set_level(logging.INFO, "tenure")
    return lambda: [str(record.msg) for record in caplog.records]


def lines(logs, event):
    return [line for line in logs() if line.startswith(event + " ")]


@each_pool
def test_jobs_are_run_and_settled(app, pool, logs):
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    @app.task
    async def later(a: int) -> int:
        await asyncio.sleep(0.001)
        return a

    @app.task(queue="other")
    def nothing() -> None: ...

    with app.worker(pool=pool, concurrency=3) as worker:
        handles = [add.delay(i, 1) for i in range(50)]
        more = later.map(range(20))
        gone = nothing.delay()
        assert [h.result() for h in handles] == list(range(1, 51))
        assert [h.result() for h in more] == list(range(20))
        assert (gone.result(), gone.status()) == (None, "done")
        assert handles[0].status() == "done"
    assert worker.totals.outcomes == {"done": 71, "retried": 0, "dead": 0, "released": 0, "lost": 0}
    assert len(lines(logs, "task_done")) == 71
    assert app.store.queue("other").counts().done == 0  # nothing was returned, so nothing is kept


@each_pool
def test_failures(app, pool, logs):
    seen = []

    @app.task(max_attempts=3, backoff=Backoff.fixed(0.01))
    def flaky(until_attempt: int) -> int:
        seen.append(current_job().token)
        if current_job().attempt < until_attempt:
            raise ConnectionError("try again")
        return current_job().attempt

    @app.task(dead_on=ValueError)
    async def hopeless() -> None:
        raise ValueError("never")

    @app.task
    def told(how: str) -> None:
        if how == "dead":
            raise Dead("the account is closed")
        if current_job().attempt == 1:
            raise Retry("later", after=0.01)

    with app.worker(pool=pool):
        assert flaky.delay(3).result() == 3
        assert seen == [1, 2, 3]
        with pytest.raises(TaskFailed, match="failed at its last attempt: ConnectionError: try again") as failed:
            flaky.delay(9).result()
        assert failed.value.reason == "max_attempts"
        assert 'raise ConnectionError("try again")' in (failed.value.error or "")
        handle = hopeless.delay()
        with pytest.raises(TaskFailed, match="ValueError: never"):
            handle.result()
        assert handle.job().attempt == 1
        assert "in hopeless" in handle.job().error
        assert "tenure" not in handle.job().error.partition("Traceback")[2]
        handle = told.delay("dead")
        with pytest.raises(TaskFailed, match="the account is closed"):
            handle.result()
        assert told.delay("retry").result() is None
    assert len(lines(logs, "task_dead")) == 3
    assert len(lines(logs, "task_retried")) == 2 + 2 + 1


def test_what_no_worker_can_run(app):
    """A payload that is none is dead at once; a task unknown here is left to workers that know it."""

    @app.task
    def known(a: int) -> None: ...

    queue = app.store.queue("default")
    broken = queue.enqueue(b"hello").id
    misfit = queue.enqueue(b'{"task":"%s","args":{"a":"x"}}' % known.name.encode()).id
    unknown = queue.enqueue(b'{"task":"tasks.next_release"}').id
    with app.worker():
        until(lambda: queue.get(broken).state == queue.get(misfit).state == "dead")
        assert queue.get(broken).error.startswith("not a task's payload")
        assert "Expected 'int'" in queue.get(misfit).error
        until(lambda: queue.get(unknown).state == "scheduled")
        assert queue.get(unknown).error == "this worker has no task 'tasks.next_release'"


@each_pool
def test_the_handler_knows_its_job(app, pool):
    @app.task(timeout=60, max_attempts=4)
    def look() -> list[object]:
        job = current_job()
        job.progress(0.4, "resizing")
        assert job.deadline is not None
        assert 50 < (job.remaining or 0) <= 60
        return [job.id, job.attempt, job.max_attempts, job.token, job.queue, job.priority, dict(job.headers), job.lost]

    handle = look.options(priority=3, headers={"a": "b"}).delay()
    with app.worker(pool=pool):
        assert handle.result() == [handle.id, 1, 4, 1, "default", 3, {"a": "b"}, False]
        assert (handle.job().progress, handle.job().progress_note) == (0.4, "resizing")


@each_pool
def test_a_cancelled_job_tells_its_handler(app, pool):
    began, told = threading.Event(), threading.Event()

    @app.task
    def wait_for_it() -> None:
        began.set()
        until(lambda: current_job().lost)
        with pytest.raises(LeaseLost):
            current_job().progress(0.5)
        told.set()

    @app.task
    async def be_cancelled() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.set()
            raise

    for task in (wait_for_it, be_cancelled) if pool == "async" else (wait_for_it,):
        began.clear()
        told.clear()
        with app.worker(pool=pool, lease=0.3, concurrency=1) as worker:
            handle = task.delay()
            assert began.wait(60)
            assert handle.cancel()
            assert told.wait(60)
            assert handle.status() == "removed"
        assert worker.totals.outcomes["done"] == 0


@each_pool
def test_a_timeout(app, pool):
    told = threading.Event()

    @app.task(timeout=0.1, max_attempts=1)
    async def sleep_async() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            told.set()

    @app.task(timeout=0.1, max_attempts=1)
    def sleep() -> None:
        until(lambda: current_job().lost)
        told.set()

    with app.worker(pool=pool, lease=30):
        for task in (sleep, sleep_async) if pool == "async" else (sleep,):
            told.clear()
            with pytest.raises(TaskFailed, match=r"timed out after \d+\.\d s"):
                task.delay().result()
            assert told.wait(60)


@each_pool
def test_a_lease_is_kept_for_as_long_as_it_takes(app, pool):
    gate, runs = threading.Event(), []

    @app.task
    def long() -> int:
        runs.append(current_job().attempt)
        gate.wait(60)
        return len(runs)

    with app.worker(pool=pool, lease=3), app.worker(pool=pool, lease=3):
        handle = long.delay()
        until(lambda: runs)
        first = handle.job().lease_until_ms
        until(lambda: handle.job().lease_until_ms > first + 3000)  # it took longer than a lease, and has another
        gate.set()
        assert handle.result() == 1
    assert runs == [1]


def test_claims_are_sized_to_the_free_slots(app):
    """Slow handlers get no job ahead of time: another worker may have it."""
    gate, began = threading.Event(), []

    @app.task
    def slow(i: int) -> None:
        began.append(i)
        gate.wait(60)

    slow.map(range(10))
    queue = app.store.queue("default")
    with app.worker(concurrency=3):
        until(lambda: len(began) == 3)
        time.sleep(0.2)
        assert queue.counts().leased == 3
        with app.worker(concurrency=4):
            until(lambda: len(began) == 7)
            assert queue.counts().leased == 7
            gate.set()
            until(lambda: queue.counts().leased == queue.counts().ready == 0)


def test_what_was_claimed_ahead_is_given_back_when_slots_do_not_get_free(app):
    """Quick jobs make the worker claim ahead; then one blocks. What waits behind it goes to others, uncounted."""
    gate, ran = threading.Event(), []

    @app.task
    def job(i: int) -> None:
        ran.append((i, current_job().attempt))
        if i == 500:
            gate.wait(60)

    job.map(range(1000))
    queue = app.store.queue("default")
    with app.worker(concurrency=1, lease=2) as blocked:
        until(lambda: len(ran) == 501)
        until(lambda: queue.counts().leased == 1)  # at the next beat
        for _ in range(20):
            time.sleep(0.02)
            assert queue.counts().leased == 1, "it takes none of them again"
        with app.worker(concurrency=1, lease=2) as helper:
            until(lambda: len(ran) == 1000)
            gate.set()
            until(lambda: queue.counts().leased == queue.counts().ready == 0)
    assert sorted(ran) == [(i, 1) for i in range(1000)]
    assert blocked.totals.outcomes["done"] + helper.totals.outcomes["done"] == 1000
    assert helper.totals.outcomes["done"] == 499


@each_pool
def test_stopping_lets_handlers_finish_and_gives_the_rest_back(app, pool):
    gate, began = threading.Event(), []

    @app.task
    def job(i: int) -> None:
        began.append(i)
        gate.wait(60)

    handles = job.map(range(20))
    worker = app.worker(concurrency=2, pool=pool, grace=20)
    worker.start()
    until(lambda: len(began) == 2)
    worker.stop()
    threading.Timer(0.3, gate.set).start()
    assert worker.finish() == CLEAN
    states = [handle.status() for handle in handles]
    assert states.count("done") == len(began) == 2
    assert states.count("ready") == 18
    assert all(handle.job().attempt == 0 for handle in handles if handle.status() == "ready")


@each_pool
def test_handlers_that_do_not_finish_in_the_grace_are_cut_off(app, pool):
    gate, began = threading.Event(), threading.Event()

    @app.task
    def job() -> None:
        began.set()
        until(lambda: gate.is_set() or current_job().lost)

    handle = job.delay()
    worker = app.worker(pool=pool, grace=0.2)
    worker.start()
    assert began.wait(60)
    worker.stop()
    assert worker.finish() == CUT_OFF
    found = handle.job()
    assert (found.state, found.attempt, found.error) == ("ready", 1, "the worker was stopped before it ended")
    gate.set()


def test_a_second_call_to_stop_now_ends_the_grace(app):
    gate, began = threading.Event(), threading.Event()

    @app.task
    def job() -> None:
        began.set()
        gate.wait(60)

    job.delay()
    worker = app.worker(grace=60)
    worker.start()
    assert began.wait(60)
    worker.stop()
    threading.Timer(0.2, lambda: worker.stop(now=True)).start()
    start = time.monotonic()
    assert worker.finish() == CUT_OFF
    assert time.monotonic() - start < 15
    gate.set()


def test_a_worker_that_cannot_claim_says_so_and_ends(app, monkeypatch, logs):
    @app.task
    def job() -> None: ...

    def refuse(*args, **kwargs):
        raise Unavailable("the disk is full")

    worker = app.worker(patience=0.3)
    monkeypatch.setattr(app.store._backend, "claim", refuse)
    assert worker.run() == NO_STORE
    assert "the disk is full" in worker.reason
    assert len(lines(logs, "claim_failed")) == 1
    assert len(lines(logs, "worker_failed")) == 1


def test_a_worker_whose_claim_never_comes_back_ends(app, monkeypatch):
    gate = threading.Event()

    @app.task
    def job() -> None: ...

    def hang(*args, **kwargs):
        gate.wait(60)

    worker = app.worker(patience=0.3, lease=0.6)
    monkeypatch.setattr(app.store._backend, "claim", hang)
    assert worker.run() == NO_STORE
    assert "the store does not answer" in worker.reason
    gate.set()


def test_outcomes_are_written_once_the_store_is_back(app, monkeypatch, logs):
    @app.task
    def job(i: int) -> int:
        return i

    settle = app.store._backend.settle
    failures = iter(range(3))

    def refuse(*args, **kwargs):
        if next(failures, None) is not None:
            raise Unavailable("gone for a moment")
        return settle(*args, **kwargs)

    monkeypatch.setattr(app.store._backend, "settle", refuse)
    with app.worker():
        assert job.delay(5).result() == 5
    assert len(lines(logs, "settling_failed")) == 3


def test_policies_are_given_to_their_queues():
    policy = Policy(max_attempts=2, lease=7)
    with App("memory:", policies={"emails": policy}, sweep=False) as app:

        @app.task(queue="emails")
        def send() -> int:
            return current_job().max_attempts

        with app.worker() as worker:
            assert app.store.queue("emails").policy() == policy
            assert worker._lease_ms == 7000
            assert send.delay().result() == 2


def test_a_worker_is_refused_what_makes_no_sense(app):
    with pytest.raises(InvalidArgument, match="this app has no tasks"):
        app.worker()

    @app.task
    def job() -> None: ...

    with pytest.raises(InvalidArgument, match="pool='fibre': thread, process or async"):
        Worker(app, pool="fibre").start()  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="concurrency=0"):
        app.worker(concurrency=0)
    with pytest.raises(InvalidArgument, match="started before"), app.worker() as worker:
        worker.start()


def test_metrics_per_task(app):
    from prometheus_client import REGISTRY

    @app.task(name="metered", max_attempts=1)
    def job(bad: bool) -> None:
        if bad:
            raise ValueError

    with app.worker():
        job.delay(False).result()
        with pytest.raises(TaskFailed):
            job.delay(True).result()
    assert REGISTRY.get_sample_value("tenure_tasks_total", {"task": "metered", "outcome": "done"}) == 1
    assert REGISTRY.get_sample_value("tenure_tasks_total", {"task": "metered", "outcome": "dead"}) == 1
    assert REGISTRY.get_sample_value("tenure_task_seconds_count", {"task": "metered"}) == 2
