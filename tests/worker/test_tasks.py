"""Tasks and handles: what a call becomes."""

from __future__ import annotations

import asyncio
import json
from typing import assert_type

import pytest

import tenure
from tenure import App, InvalidArgument, KeyConflict, ManualClock, TaskFailed, WaitTimeout, current_job
from tenure.telemetry import METERS
from tenure.worker.handles import Handle


@pytest.fixture
def app():
    with App("memory:", sweep=False) as made:
        yield made
        assert made.store.check().clean


def test_a_plain_call_runs_here(app):
    @app.task
    def add(a: int, b: int = 1) -> int:
        job = current_job()
        job.progress(0.5)
        assert (job.attempt, job.token, job.id, job.lost, job.remaining) == (1, 0, "", False, None)
        return a + b

    assert add(1) == 2
    assert add(1, b=5) == 6
    assert app.store.queues() == []
    with pytest.raises(InvalidArgument, match="no task is running here"):
        current_job()


def test_a_plain_call_of_an_async_task_is_awaited(app):
    @app.task
    async def add(a: int) -> int:
        return a + current_job().attempt

    assert asyncio.run(add(1)) == 2


def test_what_is_enqueued(app):
    @app.task(queue="emails", max_attempts=7, priority=2, name="mail")
    def send(to: str, subject: str = "-") -> str:
        return to

    handle = send.delay("a@b")
    job = handle.job()
    assert (job.queue, job.max_attempts, job.priority, job.state) == ("emails", 7, 2, "ready")
    assert json.loads(job.payload) == {"task": "mail", "args": {"to": "a@b"}}
    later = send.options(delay=30, priority=9, key="order-17", headers={"x": "y"}, max_attempts=1).delay("a@b", "hi")
    job = later.job()
    assert (job.state, job.priority, job.key, job.headers, job.max_attempts) == (
        "scheduled",
        9,
        "order-17",
        {"x": "y"},
        1,
    )
    assert later.status() == "scheduled"
    assert send.options(queue="other").enqueue("z").job().queue == "other"
    assert send.delay("q").job().queue == "emails"  # options made another, and left it alone


def test_types_are_kept(app: App):
    @app.task
    def add(a: int, b: int) -> str:
        return ""

    @app.task(timeout=3)
    async def later(a: int) -> bytes:
        return b""

    assert_type(add.delay(1, b=2), Handle[str])
    assert_type(later.delay(1), Handle[bytes])


def test_many_at_once_are_one_transaction(app):
    @app.task
    def add(a: int, b: int = 0) -> int:
        return a + b

    handles = add.map([(1, 2), {"a": 3}, 4])
    assert [json.loads(h.job().payload)["args"] for h in handles] == [{"a": 1, "b": 2}, {"a": 3}, {"a": 4}]
    with pytest.raises(InvalidArgument):
        add.map([5, "six"])
    assert app.store.queue("default").counts().waiting == 3


def test_nothing_is_enqueued_that_cannot_be_sent(app):
    @app.task
    def take(x): ...

    with pytest.raises(InvalidArgument, match="x=object cannot be sent"):
        take.delay(object())
    assert app.store.queues() == []


def test_unique_calls(app):
    @app.task(unique=True)
    def once(a: int) -> None: ...

    @app.task(unique=lambda user, page: f"user-{user}")
    def refresh(user: int, page: int) -> None: ...

    first = once.delay(1)
    again = once.delay(1)
    assert (again.id, again.duplicate) == (first.id, True)
    assert once.delay(2).duplicate is False
    kept = refresh.delay(1, 1)
    assert refresh.delay(1, 1).id == kept.id
    other = refresh.delay(1, page=2)  # the first job wins, whatever the other arguments are
    assert (other.id, other.duplicate) == (kept.id, True)
    assert refresh.delay(2, 1).duplicate is False
    with pytest.raises(KeyConflict):  # a key that the caller chose is not ours to decide about
        refresh.options(key="mine").map([(1, 1), (1, 2)])


def test_calls_have_groups(app):
    @app.task(group="exports")
    def export(n: int) -> None: ...

    @app.task(group=lambda customer, month: f"customer-{customer}")
    def report(customer: int, month: int) -> None: ...

    def group_of(handle):
        return app.store.queue("default").get(handle.id).group

    assert group_of(export.delay(1)) == "exports"
    assert group_of(export.options(group="other").delay(1)) == "other"
    assert [group_of(handle) for handle in report.map([(1, 1), (2, 1)])] == ["customer-1", "customer-2"]
    assert group_of(report.enqueue_payload(report.codec.encode_call((7, 1), {}))) == "customer-7"
    with pytest.raises(InvalidArgument, match="group"):
        report.options(group=lambda customer, month: "no name").delay(1, 1)
    assert app.store.queue("default").counts().waiting == 5


def test_unique_calls_of_a_batch(app):
    @app.task(unique=lambda user, page: f"user-{user}")
    def refresh(user: int, page: int) -> None: ...

    kept = [refresh.delay(1, 1), refresh.delay(3, 1)]
    before = _runs("enqueue_many")
    handles = refresh.map([(1, 2), (2, 1), (2, 2), (3, 9), (4, 1), (1, 3)])
    assert _runs("enqueue_many") - before == 1
    assert [handle.duplicate for handle in handles] == [True, False, True, True, False, True]
    assert [handles[0].id, handles[3].id, handles[5].id] == [kept[0].id, kept[1].id, kept[0].id]
    assert handles[1].id == handles[2].id
    assert app.store.queue("default").counts().waiting == 4


def _runs(verb: str) -> int:
    meter = METERS.by_verb[verb]
    meter.count()
    return sum(meter.counts)


def test_expiry():
    clock = ManualClock()
    with App("memory:", clock=clock, sweep=False) as app:

        @app.task(ttl=5)
        def soon() -> None: ...

        handle = soon.delay()
        clock.advance(6)
        app.store.sweep()
        assert handle.status() == "removed"
        with pytest.raises(TaskFailed, match="was removed"):
            handle.result(0)


def test_a_handle_on_a_job_of_another_process(app):
    @app.task
    def add(a: int) -> int:
        return a

    handle = add.handle(add.delay(1).id)
    with pytest.raises(WaitTimeout):
        handle.result(timeout=0.01)
    assert handle.cancel()
    assert not handle.cancel()
    assert handle.status() == "removed"


def test_a_handle_finds_its_queue_and_says_what_is_unknown(app):
    @app.task
    def add(a: int) -> int:
        return a

    @app.task(queue="emails")
    def send() -> None: ...

    in_emails = add.options(queue="emails").delay(1)
    assert add.handle(in_emails.id).status() == "ready"
    assert add.handle(in_emails.id).queue.name.queue == "emails"
    elsewhere = add.options(queue="elsewhere").delay(2)
    assert add.handle(elsewhere.id).status() == "ready"  # found by the store, whichever queue it is in
    assert add.handle(elsewhere.id, queue="elsewhere").status() == "ready"
    assert add.handle(elsewhere.id, queue="elsewhere").cancel()
    assert add.handle(elsewhere.id, queue="elsewhere").status() == "removed"
    nobody = add.handle("0" * 32)
    assert (nobody.status(), nobody.job(), nobody.cancel()) == ("unknown", None, False)
    with pytest.raises(TaskFailed, match="is unknown") as failed:
        nobody.result(5)
    assert failed.value.reason == "unknown"
    assert asyncio.run(add.aio.handle(elsewhere.id, queue="elsewhere").status()) == "removed"
    with app.worker():
        gone = send.delay()
        assert gone.result() is None
        assert (add.handle(gone.id).status(), add.handle(gone.id).result()) == ("done", None)


def test_names(app):
    @app.task
    def one() -> None: ...

    assert one.name == "tests.worker.test_tasks.test_names.one"
    assert one.__name__ == "one"
    assert app.find("one") is one
    with pytest.raises(InvalidArgument, match=r"no task is named 'two'. Tasks of this app: .*\.one"):
        app.find("two")
    with pytest.raises(InvalidArgument, match="two tasks named"):
        app.task(one.function)
    with pytest.raises(TypeError, match="unexpected argument 'retries'"):
        app.task(retries=3)(lambda: None)
    with pytest.raises(InvalidArgument, match="json or msgpack"):
        App("memory:", encoding="pickle")  # type: ignore[arg-type]


def test_inline_mode_runs_through_the_same_encoding():
    app = App(inline=True)

    @app.task
    def double(x: int) -> int:
        return 2 * x

    @app.task
    def fail() -> None:
        raise ValueError("no")

    handle = double.delay(4)
    assert (handle.result(), handle.status()) == (8, "done")
    assert [h.result() for h in double.map([1, 2])] == [2, 4]
    with pytest.raises(TaskFailed, match="ValueError: no"):
        fail.delay().result()
    with pytest.raises(InvalidArgument):
        double.delay("four")  # type: ignore[arg-type]


def test_the_store_is_opened_when_it_is_needed(tmp_path):
    app = App(f"rocksdb:{tmp_path / 'data'}")

    @app.task
    def one() -> None: ...

    assert not (tmp_path / "data").exists()
    one.delay()
    assert (tmp_path / "data").exists()
    app.close()
    with tenure.open(f"rocksdb:{tmp_path / 'data'}") as store:
        assert store.queue("default").counts().ready == 1
    assert one.delay().status() == "ready"  # and again
    app.close()


def test_awaited_twins(app):
    @app.task
    def add(a: int) -> int:
        return a + 1

    async def story() -> None:
        handle = await add.aio.delay(1)
        assert await handle.status() == "ready"
        with pytest.raises(WaitTimeout, match="after"):
            await handle.result(timeout=0.02)
        with app.worker():
            assert await handle.result() == 2
            assert [await h.result() for h in await add.aio.map([1, 2])] == [2, 3]
        scheduled = await add.options(delay=60).aio.enqueue(5)
        assert (await scheduled.job()).state == "scheduled"
        assert await scheduled.cancel()

    asyncio.run(story(), debug=False)
