"""Schedules kept on Redis: a change acts once however often it is sent, damage is told, each tick is enqueued once."""

from __future__ import annotations

import pytest

from tenure import App
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import Corrupt
from tenure.model.schedule import Schedule, ScheduleChange
from tenure.testing.harness import backend_of
from tenure.worker.periodic import Ticker

pytestmark = pytest.mark.xdist_group("redis")
POLL = Schedule(name="poll", tenant="default", queue="work", payload=b"now", every_ms=10_000)


def test_a_change_that_is_sent_again_acts_once(store: Store, clock: ManualClock) -> None:
    backend = backend_of(store)
    for _ in range(2):
        assert backend.once(b"add").change_schedule("default", "poll", ScheduleChange(put=POLL)) is True
    assert backend.change_schedule("default", "poll", ScheduleChange(pause=True)) is True
    clock.advance(5)
    for _ in range(2):
        assert backend.once(b"resume").change_schedule("default", "poll", ScheduleChange(pause=False)) is True
        clock.advance(5)
    (found,) = store.schedules()
    assert (found.paused, found.resumed_at_ms - found.created_at_ms) == (False, 5_000)
    for _ in range(2):
        assert backend.once(b"remove").change_schedule("default", "poll", ScheduleChange(remove=True)) is True
    assert store.schedules() == []


def test_damage_is_told_and_a_schedule_can_be_replaced(store: Store) -> None:
    store.add_schedule(POLL)
    core = store._backend._core  # type: ignore[attr-defined]
    key = core.shards.registry + b":schedules:default"
    core.commands.plain(key, "HSET", key, "poll", b"nonsense")
    with pytest.raises(Corrupt):
        store.schedules()
    with pytest.raises(Corrupt):
        store.pause_schedule("poll")
    store.add_schedule(POLL, replace=True)
    assert [found.name for found in store.schedules()] == ["poll"]
    assert store.remove_schedule("poll")
    assert core.commands.plain(key, "EXISTS", core.shards.registry + b":schedules") == 0


def test_each_tick_is_enqueued_once_by_several_workers(store: Store, clock: ManualClock) -> None:
    store.add_schedule(POLL)
    app = App(store, clock=clock)
    tickers = [Ticker(app, f"w{n}") for n in range(3)]
    enqueued = 0
    for _ in range(35):
        clock.advance(1)
        for ticker in tickers:
            if ticker.prepare():
                enqueued += ticker.step()
    assert enqueued == 3
    jobs = store.queue("work").list("ready").jobs
    assert len({job.headers["tenure-tick"] for job in jobs}) == len(jobs) == 3
