"""Stored schedules. `tests/worker/test_schedules.py` tests how workers run them."""

from __future__ import annotations

import pytest

from tenure.api.store import Store
from tenure.contract.scheduling import enqueue_tick
from tenure.errors import InvalidArgument, NotFound, TooLarge
from tenure.model.schedule import MAX_SCHEDULES, Schedule
from tenure.testing.harness import backend_of


def poll(name: str = "poll", **changes: object) -> Schedule:
    said: dict[str, object] = {"tenant": "default", "queue": "work", "payload": b"now", "every_ms": 5_000} | changes
    return Schedule(name=name, **said)  # type: ignore[arg-type]  # fields by name


def test_schedules_are_kept_changed_and_removed(store: Store) -> None:
    store.add_schedule(poll("b", created_at_ms=7))
    store.add_schedule(poll("a", cron="@daily", every_ms=None, tz="Europe/Berlin", missed="catch_up", priority=3))
    first, second = store.schedules("default")
    assert (first.name, first.cron, first.tz, first.missed, first.priority) == (
        "a", "0 0 * * *", "Europe/Berlin", "catch_up", 3,
    )  # fmt: skip
    assert second == poll("b", created_at_ms=7)
    assert first.created_at_ms > 0
    assert store.pause_schedule("b") is store.pause_schedule("b") is True
    assert [each.paused for each in store.schedules()] == [False, True]
    assert store.resume_schedule("b") is True
    (_, resumed) = store.schedules()
    assert (resumed.paused, resumed.revision) != (True, second.revision)
    assert store.remove_schedule("a") is True
    assert [store.remove_schedule("a"), store.pause_schedule("a"), store.resume_schedule("a")] == [False] * 3
    assert [each.name for each in store.schedules()] == ["b"]


def test_a_name_is_taken_once(store: Store) -> None:
    store.add_schedule(poll(created_at_ms=1))
    with pytest.raises(InvalidArgument, match="there is a schedule"):
        store.add_schedule(poll(payload=b"other"))
    store.add_schedule(poll(payload=b"other"), replace=True)
    assert [each.payload for each in store.schedules()] == [b"other"]


def test_a_schedules_job_is_enqueued_now(store: Store) -> None:
    store.add_schedule(poll(priority=4, max_attempts=2))
    added = store.run_schedule("poll")
    job = store.get(added.id)
    assert job is not None
    assert (job.queue, job.payload, job.priority, job.max_attempts) == ("work", b"now", 4, 2)
    with pytest.raises(NotFound):
        store.run_schedule("other")


def test_a_tick_is_enqueued_once(store: Store) -> None:
    schedule = poll(created_at_ms=1_000)
    assert enqueue_tick(backend_of(store), schedule, 6_000) is True
    assert enqueue_tick(backend_of(store), schedule, 6_000) is False
    assert enqueue_tick(backend_of(store), schedule, 11_000) is True
    assert store.queue("work").counts().ready == 2


def test_schedules_are_bounded(store: Store) -> None:
    if backend_of(store).url.startswith("http"):
        pytest.skip("a thousand requests: told by the store behind it")
    for number in range(MAX_SCHEDULES):
        store.add_schedule(poll(f"{number}"))
    with pytest.raises(TooLarge):
        store.add_schedule(poll("more"))
    store.add_schedule(poll("0"), replace=True)
