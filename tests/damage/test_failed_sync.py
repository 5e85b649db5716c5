"""After a failed sync the disk's contents are unknown: the store stops, reports it, and can be closed."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.api.store import Store
from tenure.errors import StoreClosed, Unavailable
from tenure.testing.conformance.world import assert_sound, eventually
from tenure.testing.harness import driver_of


class Failing:
    """A wrapper of the driver whose syncs fail."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.failing = False
        self.tries = 0

    def flush_wal(self, sync: bool) -> None:
        self.tries += 1
        if self.failing:
            raise Exception("IO error: While fsync: Input/output error")
        self._db.flush_wal(sync)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


def opened(tmp_path: Path, durability: Any) -> tuple[Store, Failing]:
    store = tenure.open(f"rocksdb:{tmp_path / 'data'}", durability=durability, sweep=False, sync_interval=0.02)
    engine = driver_of(store)
    engine._db = failing = Failing(engine._db)
    return store, failing


def must_have_stopped(store: Store) -> None:
    queue = store.queue("work")
    for _ in range(3):
        with pytest.raises(Unavailable, match="opened again"):
            queue.enqueue(b"more")
    with pytest.raises(Unavailable):
        queue.claim()
    with pytest.raises(Unavailable):
        queue.counts()


def test_fail_stop_at_disk(tmp_path: Path) -> None:
    store, driver = opened(tmp_path, "disk")
    queue = store.queue("work")
    made = queue.enqueue(b"durable").id
    driver.failing = True
    with pytest.raises(Unavailable):
        queue.enqueue(b"perhaps")
    tries = driver.tries
    must_have_stopped(store)
    driver.failing = False
    must_have_stopped(store)  # a later successful sync proves nothing about the failed one
    assert driver.tries == tries, "the sync was repeated"
    store.close()
    store.close()
    with pytest.raises(StoreClosed):
        queue.enqueue(b"closed")
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", sweep=False) as again:
        assert again.queue("work").get(made) is not None
        again.queue("work").enqueue(b"goes on")
        assert_sound(again)


def test_all_callers_that_wait_for_a_failed_sync_get_the_error(tmp_path: Path) -> None:
    store, driver = opened(tmp_path, "disk")
    queue = store.queue("work")
    queue.enqueue(b"durable")
    driver.failing = True
    outcomes: list[object] = []

    def work() -> None:
        try:
            outcomes.append(queue.enqueue(b"x"))
        except BaseException as error:
            outcomes.append(error)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(outcomes) == 16
    assert {type(outcome) for outcome in outcomes} == {Unavailable}
    store.close()


def test_fail_stop_at_os(tmp_path: Path) -> None:
    """At `os` no caller waits for the sync; the next verb gets the error."""
    store, driver = opened(tmp_path, "os")
    queue = store.queue("work")
    made = queue.enqueue(b"written").id
    driver.failing = True
    with contextlib.suppress(Unavailable):  # on a slow machine the sync of the first has failed by now
        queue.enqueue(b"written too")
    assert eventually(lambda: driver_of(store)._stopped is not None)
    must_have_stopped(store)
    store.close()
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", sweep=False) as again:
        assert again.queue("work").get(made) is not None
        assert_sound(again)


def test_a_failed_write_stops_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Except for lack of space or file handles (`test_disk_full`)."""
    store, driver = opened(tmp_path, "disk")
    queue = store.queue("work")
    made = queue.enqueue(b"durable").id

    def fail(batch: object) -> None:
        raise Exception("IO error: Input/output error: While appending to file")

    monkeypatch.setattr(driver, "write", fail, raising=False)
    with pytest.raises(Unavailable, match="Input/output"):
        queue.enqueue(b"no disk")
    monkeypatch.undo()
    must_have_stopped(store)
    store.close()
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", sweep=False) as again:
        assert [job.id for job in again.queue("work").list("ready")] == [made]
        assert_sound(again)
