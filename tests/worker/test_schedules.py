"""Schedules made at run time: stored, kept by every worker, each tick enqueued once."""

from __future__ import annotations

import pytest

from tenure import App, InvalidArgument, ManualClock, NotFound, current_job
from tenure.model.schedule import Schedule, Ticks
from tenure.worker.periodic import Ticker
from tests.worker.conftest import until


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def app(clock):
    with App("memory:", sweep=False, clock=clock) as made:

        @made.task(name="note", queue="notes", priority=3, max_attempts=2)
        def note(word: str, times: int = 1) -> str:
            return word * times

        yield made
        assert made.store.check().clean


def ticked(app: App, clock: ManualClock, seconds: float, *tickers: Ticker) -> int:
    """Let time pass, a second at a time, with these workers keeping the schedule; how many jobs were enqueued."""
    enqueued = 0
    for _ in range(int(seconds)):
        clock.advance(1)
        for ticker in tickers:
            if ticker.prepare():
                enqueued += ticker.step()
    return enqueued


def test_each_tick_is_enqueued_once_by_several_workers(app, clock):
    note = app.tasks["note"]
    made = app.schedules.add("poll", note.s("x", times=2), every=10)
    assert app.schedules.list() == [made]
    tickers = [Ticker(app, f"w{n}") for n in range(3)]
    assert ticked(app, clock, 35, *tickers) == 3
    queue = app.store.queue("notes")
    jobs = queue.list("ready").jobs
    assert len(jobs) == 3
    assert {(job.priority, job.max_attempts) for job in jobs} == {(3, 2)}
    ticks = sorted(job.headers["tenure-tick"] for job in jobs)
    assert len(set(ticks)) == 3
    with app.worker(concurrency=1):
        until(lambda: queue.counts().ready == 0)


def test_pause_resume_remove_and_run_now(app, clock):
    note = app.tasks["note"]
    ticker = Ticker(app, "w")
    app.schedules.add("poll", note.s("x"), every=10)
    assert ticked(app, clock, 11, ticker) == 1
    assert app.schedules.pause("poll") is True
    assert app.schedules.list()[0].paused
    assert ticked(app, clock, 30, ticker) == 0
    handle = app.schedules.run_now("poll")  # also while it is paused
    assert (handle.task.name, handle.status()) == ("note", "ready")
    assert app.schedules.resume("poll") is True
    assert ticked(app, clock, 20, ticker) == 2
    assert app.schedules.remove("poll") is True
    assert ticked(app, clock, 30, ticker) == 0
    assert app.schedules.list() == []
    assert [app.schedules.pause("poll"), app.schedules.resume("poll"), app.schedules.remove("poll")] == [False] * 3
    with pytest.raises(NotFound):
        app.schedules.run_now("poll")


def test_a_schedule_is_replaced_only_when_asked(app, clock):
    note = app.tasks["note"]
    app.schedules.add("daily", note.s("a"), cron="@daily", tz="Europe/Berlin")
    with pytest.raises(InvalidArgument, match="there is a schedule named 'daily'"):
        app.schedules.add("daily", note.s("b"), cron="@daily")
    clock.advance(1)
    app.schedules.add("daily", note.s("b"), every=5, replace=True)
    (kept,) = app.schedules.list()
    assert (kept.cron, kept.every_ms) == (None, 5000)
    ticker = Ticker(app, "w")
    assert ticked(app, clock, 86_400 / 24 / 60, ticker) == 12
    assert {job.payload for job in app.store.queue("notes").list("ready")} == {kept.payload}


def test_missed_ticks_are_skipped_or_caught_up(app, clock):
    note = app.tasks["note"]
    app.schedules.add("skip", note.s("skip"), every=600)
    app.schedules.add("all", note.s("all"), every=600, missed="catch_up")
    clock.advance(3000)
    ticker = Ticker(app, "w")
    ticker.prepare()
    ticker.step()
    words = [b'"skip"' in job.payload for job in app.store.queue("notes").list("ready")]
    assert (words.count(True), words.count(False)) == (1, 5)


def test_what_is_no_schedule_is_refused(app):
    note = app.tasks["note"]
    for wrong in (
        {"cron": "often"},
        {"every": 0.5},
        {},
        {"cron": "@daily", "every": 5},
        {"cron": "@daily", "tz": "Atlantis"},
        {"cron": "@daily", "missed": "never"},
    ):
        with pytest.raises(InvalidArgument):
            app.schedules.add("x", note.s("a"), **wrong)
    with pytest.raises(TypeError, match="missing a required argument"):
        app.schedules.add("x", note.s(), every=5)
    with pytest.raises(InvalidArgument, match=r"task\.s"):
        app.schedules.add("x", note, every=5)
    with pytest.raises(InvalidArgument):
        app.schedules.add("a/b", note.s("a"), every=5)
    assert app.schedules.list() == []


def test_a_worker_keeps_schedules_that_are_added_while_it_runs(tmp_path):
    with App(f"rocksdb:{tmp_path / 'data'}") as app:
        ran: list[object] = []

        @app.task
        def note() -> None:
            ran.append(current_job().tick)

        with app.worker(concurrency=1), app.worker(concurrency=1):
            app.schedules.add("poll", note.s(), every=1)
            until(lambda: len(ran) >= 2)
            app.schedules.remove("poll")
        assert len(ran) == len(set(ran))
        assert all(tick is not None for tick in ran)


def test_a_worker_without_schedules_makes_no_queue(app):
    with app.worker(concurrency=1):
        app.tasks["note"].delay("x").result(60)
    assert [info.queue for info in app.store.queues()] == ["notes"]


def test_an_interval_counts_from_its_beginning():
    ticks = Ticks(None, 1000, begin_ms=500)
    assert [ticks.next(moment) for moment in (0, 500, 1499, 1500, 1501)] == [1500, 1500, 1500, 2500, 2500]


def test_tenants_have_schedules_of_their_own(app):
    store = app.store
    for tenant in ("a", "b"):
        store.add_schedule(Schedule(name="x", tenant=tenant, queue="q", payload=b"1", every_ms=1000))
    assert [(each.tenant, each.name) for each in store.schedules()] == [("a", "x"), ("b", "x")]
    assert store.remove_schedule("x", "a")
    assert [each.tenant for each in store.schedules()] == ["b"]
    assert store.schedules("a") == []
    assert store.run_schedule("x", "b").duplicate is False
