"""Lists over several queues: pages, forged cursors, and rows whose job is gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tenure
from tenure import ManualClock, NewJob, Store
from tenure.errors import Corrupt, InvalidArgument
from tenure.model.job import Counts, Page
from tenure.queueing.queries import count_queue, sealed_cursor
from tenure.storage import keyspace
from tenure.testing.conformance.world import assert_sound
from tenure.testing.harness import backend_of
from tests.queueing.stored_rows import mended, write

NOBODY = bytes(range(16))


@pytest.fixture
def store() -> Iterator[Store]:
    with tenure.open("memory:", clock=ManualClock(), sweep=False) as opened:
        yield opened


def number_of(store: Store, queue: str) -> int:
    return next(info.number for info in store.queues() if info.queue == queue)


def all_pages(read: Any) -> list[str]:
    """The payloads of every page."""
    found: list[str] = []
    page: Page = read(None)
    while True:
        found += [job.payload.decode() for job in page.jobs]
        if page.cursor is None:
            return found
        page = read(page.cursor)


def test_upcoming_jobs_of_many_queues_and_priorities_come_in_the_order_of_their_times(store: Store) -> None:
    """More rows in one priority than one scan reads, and more queues than the page has places."""
    planned = []
    for queue, priority, delays in (("a", 9, range(100, 330)), ("b", 3, range(90, 300, 7)), ("c", 0, [50, 400])):
        store.queue(queue).enqueue_many([NewJob(f"{queue}{d}".encode(), delay=d, priority=priority) for d in delays])
        planned += [(delay, queue) for delay in delays]
    end = backend_of(store).now_ms() / 1000 + 10_000
    got = all_pages(lambda cursor: store.upcoming(end, limit=45, cursor=cursor))
    assert sorted(got) == sorted(f"{queue}{delay}" for delay, queue in planned)
    assert [int(each[1:]) for each in got] == sorted(delay for delay, _ in planned)
    assert_sound(store)


def test_a_queue_with_exactly_a_scan_of_upcoming_jobs_ends_there(store: Store) -> None:
    store.queue("a").enqueue_many([NewJob(b"%d" % n, delay=n) for n in range(1, 101)])
    end = backend_of(store).now_ms() / 1000 + 10_000
    assert len(all_pages(lambda cursor: store.upcoming(end, limit=1000, cursor=cursor))) == 100


@pytest.mark.parametrize("place", [b"", b"short", b"\0" + b"x" * 20, b"\x14" + b"x" * 20])
def test_forged_cursors_are_refused(store: Store, place: bytes) -> None:
    with pytest.raises(InvalidArgument, match="not a cursor"):
        store.upcoming(2_000_000_000, cursor=sealed_cursor("upcoming/*", place))
    with pytest.raises(InvalidArgument, match="not a cursor"):
        store.list("ready", cursor=sealed_cursor("*/*/ready", place or b"\0"))


def test_index_rows_without_a_job_are_passed_over_by_every_list(store: Store) -> None:
    queue = store.queue("work")
    queue.enqueue_many([b"ready"])
    queue.enqueue(b"later", delay=100)
    number, now = number_of(store, "work"), backend_of(store).now_ms()

    def plant(tx: Any) -> None:
        tx.put(keyspace.READY, keyspace.ready(number, 0, now - 5, NOBODY), b"")
        tx.put(keyspace.READY, keyspace.ready(number, 0, now + 50_000, NOBODY), b"")

    write(store, plant)
    assert [job.payload for job in queue.list("ready").jobs] == [b"ready"]
    assert [job.payload for job in store.list("ready").jobs] == [b"ready"]
    assert [job.payload for job in store.upcoming(now / 1000 + 1000).jobs] == [b"later"]
    assert "index" in mended(store)


@pytest.mark.parametrize(("space", "lost"), [(keyspace.STATE, "state"), (keyspace.JOBS, "payload")])
def test_a_job_that_lost_a_row_is_reported_with_its_id(store: Store, space: int, lost: str) -> None:
    job = store.queue("work").enqueue_many([b"x"])[0].id
    at = keyspace.of_queue(number_of(store, "work"), bytes.fromhex(job))
    write(store, lambda tx: tx.delete(space, at))
    with pytest.raises(Corrupt, match=f"its {lost} is missing") as told:
        store.queue("work").get(job)
    assert told.value.job_id == job
    mended(store)


def test_a_leased_job_whose_lease_is_lost_is_reported_with_its_id(store: Store) -> None:
    store.queue("work").enqueue(b"x")
    claim = store.queue("work").claim()
    at = keyspace.of_queue(number_of(store, "work"), claim.lease)
    write(store, lambda tx: tx.delete(keyspace.LEASES, at))
    for look in (store.queue("work").get, store.get):
        with pytest.raises(Corrupt, match=r"its lease .* is missing") as told:
            look(claim[0].id)
        assert told.value.job_id == claim[0].id
    with pytest.raises(Corrupt, match="is missing"):
        store.queue("work").ack(claim[0])
    mended(store)
    assert store.queue("work").get(claim[0].id).state == "ready"  # type: ignore[union-attr]  # it is there


def test_jobs_of_queues_that_do_not_exist_have_no_relatives(store: Store) -> None:
    assert store.queue("none").children("0" * 31 + "1") == []
    assert store.queue("none").parents("0" * 31 + "1") == []
    assert store.queue("none").purge("dead") == 0


def test_the_parents_of_a_job_are_read_page_by_page(store: Store) -> None:
    queue = store.queue("work")
    *parents, child = queue.enqueue_many(
        [*(NewJob(b"%d" % n, name=f"n{n}") for n in range(450)), NewJob(b"c", after=[f"#n{n}" for n in range(450)])]
    )
    backend, job = backend_of(store), bytes.fromhex(child.id)
    found: list[str] = []
    while page := backend.parents(queue.name, job, len(found), 97):
        assert len(page) <= 97
        found += [parent.id for parent in page]
    assert found == [parent.id for parent in parents]


def test_many_ready_and_many_scheduled_jobs_are_counted_up_to_a_bound(store: Store) -> None:
    queue = store.queue("work")
    queue.enqueue_many([NewJob(b"r")] * 300 + [NewJob(b"s", delay=100)] * 400)
    assert (queue.counts().ready, queue.counts().scheduled) == (300, 400)
    core: Any = backend_of(store)._core  # type: ignore[attr-defined]  # it is embedded

    def bounded(reader: Any, scan: int) -> Counts:
        found: Counts = count_queue(reader, core.registry.find(reader, queue.name), core.time.now_ms(), scan)
        return found

    few, enough = (core.read(lambda reader, n=n: bounded(reader, n)) for n in (150, 350))
    assert (few.ready, few.scheduled, few.at_least) == (150, 550, True)
    assert (enough.ready, enough.scheduled, enough.at_least) == (300, 400, False)
