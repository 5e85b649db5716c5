"""Schedules: each tick once, through both changes of the clock, with two workers; what becomes of missed ones."""

from __future__ import annotations

import itertools
import threading
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

import tenure
from tenure import App, InvalidArgument, ManualClock, current_job
from tenure.worker.periodic import QUEUE, Ticker
from tests.worker.conftest import until

BERLIN = ZoneInfo("Europe/Berlin")


def ms(*when: int) -> int:
    return round(datetime(*when, tzinfo=BERLIN).timestamp() * 1000)  # type: ignore[arg-type,misc]


def ticks_of(app: App) -> list[str]:
    """The ticks for which the task's jobs wait, in order."""
    return sorted(job.headers["tenure-tick"] for job in app.store.queue("default").list("ready", 10_000).jobs)


def two(store, cron: str, **options) -> tuple[list[App], list[str]]:
    """Two workers' apps with the same task on one store, and the ticks that were run."""
    ran: list[str] = []
    apps = []
    for _ in range(2):
        app = App(store, clock=store.clock)

        @app.periodic(cron, tz="Europe/Berlin", name="tick", **options)
        def tick() -> None:
            ran.append(str(current_job().tick))

        apps.append(app)
    return apps, ran


@pytest.fixture
def store():
    clock = ManualClock(ms(2026, 1, 1, 0, 0))
    with tenure.open("memory:", clock=clock, sweep=False) as made:
        made.clock = clock  # type: ignore[attr-defined]
        yield made
        assert made.check().clean


@pytest.mark.parametrize(
    ("day", "cron", "expected"),
    [
        ((2026, 3, 29), "*/30 * * * *", 46),  # a day of 23 hours
        ((2026, 10, 25), "*/30 * * * *", 50),  # of 25
        ((2026, 3, 29), "30 2 * * *", 1),  # 02:30 is left out
        ((2026, 10, 25), "30 2 * * *", 1),  # 02:30 comes twice
        ((2026, 10, 25), "15 * * * *", 25),
    ],
)
def test_two_workers_through_a_change_of_the_clock(day, cron, expected):
    """Two whole workers; the clock steps on once they have done what is due, since a step ends every lease."""
    clock = ManualClock(ms(*day, 0, 0) - 300_000)
    with tenure.open("memory:", clock=clock, sweep=False) as store:
        store.clock = clock  # type: ignore[attr-defined]
        apps, ran = two(store, cron)
        seen = [store.queue(QUEUE), store.queue("default")]

        def quiet() -> bool:
            return all(counts.ready == counts.leased == 0 for counts in (queue.counts() for queue in seen))

        with apps[0].worker(concurrency=1), apps[1].worker(concurrency=1):
            until(lambda: seen[0].counts().scheduled == 1)
            end = datetime.fromtimestamp(ms(*day, 0, 0) / 1000, BERLIN) + timedelta(days=1)
            while clock.wall_ms() < end.timestamp() * 1000 - 300_000:
                clock.advance(300)
                until(quiet)
        moments = sorted(datetime.fromisoformat(text).timestamp() for text in ran)
        assert len(set(ran)) == len(ran) == expected
        if cron.startswith("*/30"):
            assert {b - a for a, b in itertools.pairwise(moments)} == {1800.0}
        assert store.queue("default").counts().enqueued == expected
        assert store.check().clean


@pytest.mark.parametrize(("missed", "expected"), [("skip", 0), ("catch_up", 6)])
def test_ticks_while_no_worker_ran(store, missed, expected):
    (app, _), _ = two(store, "0 * * * *", missed=missed)
    Ticker(app, "w1").prepare()
    store.clock.advance(6 * 3600 + 1800)  # six ticks pass unattended
    (later, _), _ = two(store, "0 * * * *", missed=missed)
    ticker = Ticker(later, "w2")
    ticker.prepare()
    assert ticker.step() == expected
    assert ticker.step() == 0
    assert len(ticks_of(app)) == expected
    store.clock.advance(1800)
    assert ticker.step() == 1  # and it goes on
    assert len(ticks_of(app)) == expected + 1


def test_a_long_absence_is_caught_up_in_pieces(store):
    (app, _), _ = two(store, "* * * * *", missed="catch_up")
    ticker = Ticker(app, "w1")
    ticker.prepare()
    store.clock.advance(2000 * 60)
    counts = []
    while count := ticker.step():
        counts.append(count)
    assert sum(counts) == 2000
    assert max(counts) <= 501
    assert len(ticks_of(app)) == 2000


def test_a_tick_attended_to_late_is_not_missed(store):
    (app, _), _ = two(store, "0 * * * *", missed="skip")
    ticker = Ticker(app, "w1")
    ticker.prepare()
    store.clock.advance(3600 + 40)
    assert ticker.step() == 1


def test_a_worker_that_dies_between_two_steps_is_repeated_without_effect(store, monkeypatch):
    (app, other), _ = two(store, "0 * * * *")
    ticker = Ticker(app, "w1")
    ticker.prepare()
    store.clock.advance(3600)
    died = tenure.Unavailable("the process is gone")

    def die(*args, **kwargs):
        raise died

    queue = store.queue(QUEUE)
    with monkeypatch.context() as patched:
        patched.setattr(queue, "ack", die)  # everything but the last step
        patched.setattr(queue, "nack", die)
        with pytest.raises(tenure.Unavailable):
            ticker.step()
    store.clock.advance(31)  # its lease runs out
    assert Ticker(other, "w2").step() == 0
    assert len(ticks_of(app)) == 1
    assert queue.counts().scheduled == 1


def test_a_task_that_this_worker_does_not_know_is_left_to_others(store):
    (app, _), _ = two(store, "0 * * * *")
    Ticker(app, "new").prepare()
    older = App(store, clock=store.clock)
    store.clock.advance(3600)
    assert Ticker(older, "old").step() == 0
    assert store.queue(QUEUE).counts().waiting == 1
    store.clock.advance(15)
    assert Ticker(app, "new").step() == 1
    store.clock.advance(2 * 3600)
    Ticker(older, "old").step()  # nobody knew it for an hour
    assert store.queue(QUEUE).counts().waiting == 0


def test_schedules_of_one_task(store):
    app = App(store, clock=store.clock)

    @app.periodic("0 0 * * *", args={"kind": "short"})
    @app.periodic("0 0 1 * *", args={"kind": "long"})
    @app.task
    def report(kind: str) -> str:
        return kind

    assert len(app.schedule) == 2
    assert report("x") == "x"
    for cron, tz, missed, told in (
        ("61 * * * *", "UTC", "skip", "is not a cron expression"),
        ("* * * * *", "Mars/Olympus", "skip", "there is no time zone"),
        ("* * * * *", "UTC", "never", "skip or catch_up"),
    ):
        with pytest.raises(InvalidArgument, match=told):
            app.periodic(cron, tz=tz, missed=missed)(report)  # type: ignore[arg-type]


def test_the_ticker_goes_on_after_an_error(store, monkeypatch, caplog):
    (app, _), _ = two(store, "* * * * *")
    stop = threading.Event()
    calls: list[int] = []

    def fail(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            stop.set()
        raise tenure.Unavailable("no disk")

    ticker = Ticker(app, "w1")
    monkeypatch.setattr(ticker, "prepare", fail)
    monkeypatch.setattr(store.clock, "wait", lambda *args: None)
    ticker.thread(stop).run()
    assert len(calls) == 2
    assert "schedule_failed" in caplog.text


@pytest.mark.parametrize(
    ("nickname", "expression"),
    [("@hourly", "0 * * * *"), ("@daily", "0 0 * * *"), ("@Weekly", "0 0 * * 0"), ("@monthly", "0 0 1 * *")],
)
def test_a_schedule_may_be_named(nickname, expression):
    from tenure.worker.periodic import Periodic

    app = App("memory:")
    task = app.task(print_tick)
    named, written = (Periodic(task, cron, "Europe/Berlin", "skip", {}) for cron in (nickname, expression))
    assert list(itertools.islice(named.after(0), 3)) == list(itertools.islice(written.after(0), 3))
    assert named.name == written.name, "the same schedule: a worker of each release waits for the same tick"
    with pytest.raises(InvalidArgument, match="@sometimes"):
        Periodic(task, "@sometimes", "Europe/Berlin", "skip", {})


def print_tick() -> None:
    """A task for schedules that are not run."""


def test_a_row_that_is_no_tick_stops_no_schedule(store, caplog):
    (app, _), _ = two(store, "* * * * *")
    ticker = Ticker(app, "w1")
    ticker.prepare()
    queue = store.queue("tenure.periodic")
    bad = [queue.enqueue(payload, priority=9).id for payload in (b"", b"[" * 5000, b"{}", b"\xff")]
    store.clock.advance(61)
    assert ticker.step() == 1
    assert {queue.get(job).state for job in bad} == {"dead"}
    assert sum("tick_unreadable" in str(record.msg) for record in caplog.records) == 4
