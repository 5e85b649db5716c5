"""The whole store: a job by its id, lists over all queues, upcoming jobs, deleting and replacing queues."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.contract.queue_infos import queue_info
from tenure.errors import InvalidArgument, LeaseLost, QueueNotEmpty
from tenure.model.job import NewJob, Page
from tenure.model.names import QueueName
from tenure.model.retry import Policy
from tenure.queueing.queries import ANSWER_BYTES
from tenure.testing.conformance.world import claim_all


def _walk(pages: object, limit: int) -> list[str]:
    """The ids on all pages."""
    found: list[str] = []
    cursor = None
    while True:
        page: Page = pages(limit=limit, cursor=cursor)  # type: ignore[operator]  # a verb with these arguments
        assert len(page) <= limit
        found += [job.id for job in page]
        cursor = page.cursor
        if cursor is None:
            return found


# ── get ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_is_found_by_its_id_alone(store: Store) -> None:
    store.apply({f"q{n}": Policy(retention=60) for n in range(5)})
    jobs = {}
    for n in range(5):
        queue = store.queue(f"q{n}", tenant="acme" if n % 2 else "default")
        jobs[queue.enqueue(b"%d" % n, priority=n).id] = queue
        for each in queue.enqueue_many([b"a", b"b", b"c"]):
            jobs[each.id] = queue
    for job_id, queue in jobs.items():
        found = store.get(job_id)
        assert found == queue.get(job_id)
        assert found is not None
        assert (found.tenant, found.queue) == queue.name
    queue = store.queue("q0")
    held = claim_all(queue, 4)
    assert {store.get(d.id).state for d in held} == {"leased"}  # type: ignore[union-attr]
    queue.ack_many(held)
    assert {store.get(d.id).state for d in held} == {"done"}  # type: ignore[union-attr]
    queue.purge("done")
    assert [store.get(d.id) for d in held] == [None] * 4
    assert store.get("0" * 31 + "1") is None
    with pytest.raises(InvalidArgument):
        store.get("nonsense")


def test_a_restored_job_is_found_by_the_id_it_came_with(store: Store) -> None:
    home, away = store.queue("home"), store.queue("away", tenant="other")
    ids = [each.id for each in home.enqueue_many([b"1", b"2"])]
    images = [home.get(job_id) for job_id in ids]
    for job_id in ids:
        home.cancel(job_id)
    away.restore([job for job in images if job is not None])
    found = [store.get(job_id) for job_id in ids]
    assert [(job.tenant, job.queue, job.payload) for job in found if job] == [
        ("other", "away", b"1"),
        ("other", "away", b"2"),
    ]
    away.ack_many(away.claim(limit=2))
    assert [store.get(job_id) for job_id in ids] == [None, None]
    assert store.check().ok


# ── list and upcoming ────────────────────────────────────────────────────────────────────────────────────────────────


def test_jobs_of_all_queues_are_listed_page_by_page(store: Store) -> None:
    made: dict[str, list[str]] = {"default": [], "acme": []}
    for tenant, ids in made.items():
        for n in range(4):
            ids += [e.id for e in store.queue(f"q{n}", tenant).enqueue_many([b"x"] * 3)]
    every = _walk(store.list, 5)
    assert sorted(every) == sorted(made["default"] + made["acme"])
    assert len(set(every)) == len(every)
    of_one = _walk(lambda **page: store.list(tenant="acme", **page), 7)
    assert of_one == made["acme"]
    of_two = _walk(lambda **page: store.list(tenant="acme", queues=["q1", "q3"], **page), 2)
    assert of_two == made["acme"][3:6] + made["acme"][9:12]
    store.queue("q2", "acme").claim(limit=2)
    assert len(_walk(lambda **page: store.list("leased", **page), 1)) == 2
    assert store.list("dead").jobs == []
    with pytest.raises(InvalidArgument):
        store.list(cursor="nonsense")
    with pytest.raises(InvalidArgument):
        store.list("gone")


def test_upcoming_jobs_come_page_by_page_and_between_two_moments(store: Store, clock: ManualClock) -> None:
    ids = {}
    for n in range(12):
        queue = store.queue(f"q{n % 3}", tenant="acme" if n % 2 else "default")
        ids[n] = queue.enqueue(b"x", delay=100 * (n // 2 + 1), priority=n % 4).id
    store.queue("q0").enqueue(b"ready")
    in_time = [store.get(job_id) for job_id in _walk(store.upcoming, 5)]
    times = [(job.visible_at_ms, job.id) for job in in_time if job]
    assert times == sorted(times)
    assert {job_id for _, job_id in times} == set(ids.values())
    start = times[0][0] / 1000
    between = store.upcoming(before=start + 300, after=start + 50)
    assert {job.id for job in between} == {ids[2], ids[3], ids[4], ids[5]}
    assert {job.tenant for job in store.upcoming(tenant="acme")} == {"acme"}
    assert {job.queue for job in store.upcoming(queues=["q1"])} == {"q1"}
    with pytest.raises(InvalidArgument):
        store.upcoming(cursor="nonsense")


@pytest.mark.parametrize("verb", ["list", "list_all", "upcoming"])
def test_a_list_of_large_payloads_comes_in_pages(store: Store, verb: str) -> None:
    """A page ends at 16 MiB, about: its reader, a server and the store's own process hold no more at once."""
    size, largest = 7 * 2**20, ANSWER_BYTES + 8 * 2**20
    one, other = store.queue("one"), store.queue("other")
    made = [
        queue.enqueue(bytes([n]) * size, delay=1000 + n).id for n, queue in enumerate((one, one, one, other, other))
    ]
    calls: dict[str, Callable[..., Page]] = {
        "list": lambda **page: one.list("scheduled", **page),
        "list_all": lambda **page: store.list("scheduled", **page),
        "upcoming": store.upcoming,
    }
    seen: list[str] = []
    cursor = None
    for _ in made:
        page = calls[verb](limit=100, cursor=cursor)
        assert sum(len(job.payload) for job in page) <= largest
        seen += [job.id for job in page]
        cursor = page.cursor
        if cursor is None:
            break
    assert cursor is None
    assert seen == (made[:3] if verb == "list" else made)


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_queues_come_in_pages_and_each_is_on_one(store: Store) -> None:
    """Names of several lengths, because a store may order them by their length first."""
    made = {("default", name) for name in ("a", "b1", "long-name", "z")} | {("acme", name) for name in ("a", "mm", "n")}
    for tenant, name in made:
        store.queue(name, tenant).enqueue(b"x")

    def walk(tenant: str | None, limit: int) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        cursor: str | None = None
        while True:
            page = store.backend.queues(tenant, limit, cursor)
            assert len(page.queues) <= limit
            found += [(info.tenant, info.queue) for info in page.queues]
            cursor = page.cursor
            if cursor is None:
                return found

    for of in (None, "acme", "default", "nobody"):
        wanted = sorted(each for each in made if of in (None, each[0]))
        for limit in (1, 2, 3, len(made)):
            assert sorted(walk(of, limit)) == wanted
        assert [(info.tenant, info.queue) for info in store.queues(of)] == wanted
    assert store.backend.queues("acme", 10, "default/a").queues in ([], store.queues("acme"))  # another tenant's place
    for nonsense in ("nonsense", "", "/", "acme/", "a/b/c", "acme/UPPER"):
        with pytest.raises(InvalidArgument):
            store.backend.queues(None, 10, nonsense)


def test_the_numbers_of_one_queue_are_read_without_those_of_others(store: Store) -> None:
    for name in ("a", "b", "bb", "c"):
        store.queue(name).enqueue_many([b"x"] * len(name))
    found = queue_info(store.backend, QueueName("default", "bb"))
    assert found is not None
    assert (found.queue, found.counts.ready) == ("bb", 2)
    for missing in (QueueName("default", "ba"), QueueName("default", "d"), QueueName("acme", "a")):
        assert queue_info(store.backend, missing) is None


# ── deleting queues ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_queue_is_deleted_only_while_nobody_holds_its_jobs(store: Store) -> None:
    queue = store.queue("doomed")
    assert store.delete_queue("doomed") is False
    queue.configure(Policy(max_attempts=1, retention=60))
    queue.enqueue_many([b"1", b"2", b"3", NewJob(b"later", delay=60, key="k")])
    held = next(iter(queue.claim()))
    with pytest.raises(QueueNotEmpty) as refused:
        store.delete_queue("doomed", force=True)
    assert (refused.value.leased, refused.value.waiting) == (1, 3)
    queue.nack(held, error="x")
    with pytest.raises(QueueNotEmpty) as refused:
        store.delete_queue("doomed")
    assert (refused.value.leased, refused.value.waiting, refused.value.dead) == (0, 3, 1)
    assert queue.counts().waiting == 3
    assert store.delete_queue("doomed", force=True) is True
    assert store.delete_queue("doomed") is False
    assert [info.queue for info in store.queues()] == []
    assert queue.get(held.id) is None
    assert list(queue.claim()) == []
    with pytest.raises(LeaseLost):
        queue.ack(held)
    assert store.check().ok


def test_a_queue_that_is_made_again_begins_anew(store: Store) -> None:
    queue = store.queue("again")
    queue.configure(Policy(max_attempts=1))
    queue.pause()
    first = queue.enqueue(b"1", key="k")
    assert store.delete_queue("again", force=True) is True
    second = queue.enqueue(b"2", key="k")
    assert not second.duplicate
    assert second.id != first.id
    assert queue.policy() == Policy()
    assert [d.payload for d in queue.claim(limit=5)] == [b"2"]
    assert [info.queue for info in store.queues()] == ["again"]
    told = [event.type for event in store.events().events if event.queue == "again" and event.type.startswith("queue_")]
    assert told == ["queue_created", "queue_configured", "queue_paused", "queue_deleted", "queue_created"]
    assert store.check().ok


def test_the_queues_of_a_tenant_are_replaced(store: Store) -> None:
    store.apply({"old": Policy(), "kept": Policy(max_attempts=2), "elsewhere": Policy()}, tenant="acme")
    store.apply({"old": Policy()})
    kept = store.queue("kept", "acme")
    kept.enqueue(b"stays")
    store.queue("old", "acme").enqueue(b"1")
    wanted = {"kept": Policy(max_attempts=9), "new": Policy(lease=5)}
    with pytest.raises(QueueNotEmpty):
        store.replace_queues(wanted, tenant="acme")
    assert {info.queue for info in store.queues("acme")} == {"old", "kept", "elsewhere"}
    assert kept.policy().max_attempts == 2
    store.queue("old", "acme").purge("ready")
    store.replace_queues(wanted, tenant="acme")
    assert {info.queue: info.policy for info in store.queues("acme")} == wanted
    assert [info.queue for info in store.queues("default")] == ["old"]
    assert kept.counts().ready == 1
    with pytest.raises(InvalidArgument):
        store.replace_queues({"No Name": Policy()})
    assert store.check().ok
