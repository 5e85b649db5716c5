"""`watch`: a server that waits for many callers is told by the servers' messages, and looks by itself only now and then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import tenure
from tenure.api.store import Store
from tenure.backends.redis import notifications, watch_source
from tenure.model.ids import job_id_bytes
from tenure.model.names import JobName, QueueName
from tenure.server.service import Bind, Service
from tenure.server.service import listening as listening_on
from tenure.server_settings import Auth, Secret
from tenure.server_settings import Server as ServerSettings
from tests.backends.redis.servers import Cluster, RedisHarness, Server, running, wait_until
from tests.server.running import SECRET, token

pytestmark = pytest.mark.xdist_group("redis")
NAME = QueueName("default", "work")


@pytest.fixture(autouse=True)
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that whoever is told within a test was told by a message, or by the clock."""
    monkeypatch.setattr(watch_source, "POLL_SECONDS", 3600.0)
    monkeypatch.setattr(notifications, "POLL_SECONDS", 3600.0)


@pytest.fixture(params=["1", "4"])
def two(server: Server, request: pytest.FixtureRequest) -> Iterator[tuple[Store, Store]]:
    harness = RedisHarness(server.url, [server], partitions=request.param)
    with harness.open() as here, harness.open() as there:
        yield here, there


class News:
    def __init__(self, store: Store, *topics: QueueName | JobName | None, wait_ms: int = 60_000) -> None:
        self._told = threading.Event()
        self.watch = store._backend.watch(topics, wait_ms, self._told.set)

    def settled(self) -> News:
        """Told in vain, as whoever begins to wait may be, and no more."""
        while self.watch.left_ms() and self._told.wait(0.2):
            self._told.clear()
        return self

    def until(self, condition: Callable[[], bool]) -> None:
        """Look whenever there is news, and only then: if none comes when there should, it ends here."""
        while not condition():
            assert self.came()
            self.watch.again()

    def came(self, seconds: float = 40) -> bool:
        found = self._told.wait(seconds)
        self._told.clear()
        return found


def test_a_job_that_another_process_enqueues(two: tuple[Store, Store]) -> None:
    here, there = two
    news = News(here, NAME).settled()
    assert not news.came(0.05)
    there.queue("work").enqueue(b"x")
    assert news.came()
    assert here.queue("work").claim()
    news.watch.again()
    news.watch.close()
    news.watch.close()
    news.came(0.1)  # of the claim, before it left
    there.queue("work").enqueue(b"x")
    assert not news.came(0.2), "who has left is told no more"


def test_a_job_that_becomes_due_and_a_lease_that_runs_out(two: tuple[Store, Store]) -> None:
    here, there = two
    there.queue("work").enqueue(b"x", delay=0.3)
    news = News(here, NAME)
    news.until(lambda: here.queue("work").counts().ready == 1)

    news.watch.close()
    there.queue("work").purge("ready")
    there.queue("work").purge("scheduled")
    there.queue("other").enqueue(b"x")
    assert there.queue("other").claim(lease=0.3)
    news = News(here, QueueName("default", "other"))
    news.until(lambda: len(here.queue("other").claim()) == 1)


def test_something_due_sooner_than_what_is_waited_for(two: tuple[Store, Store]) -> None:
    here, there = two
    there.queue("work").enqueue(b"later", delay=3000)
    news = News(here, NAME).settled()
    assert not news.came(0.05)
    there.queue("work").enqueue(b"sooner", delay=0.2)
    assert news.came()
    news.watch.again()
    news.until(lambda: here.queue("work").counts().ready == 1)  # told once more when it is due


def test_a_job_that_ends_and_the_journal(two: tuple[Store, Store]) -> None:
    here, there = two
    job = there.queue("work").enqueue(b"x")
    ended = News(here, JobName(NAME, job_id_bytes(job.id))).settled()
    journal = News(here, None).settled()
    claim = there.queue("work").claim()
    assert journal.came()
    assert not ended.came(0.1)
    there.queue("work").ack(claim[0])
    assert ended.came()
    journal.watch.again()
    there.queue("new").enqueue(b"x")  # a queue that nobody knew when the watch began
    assert journal.came()
    journal.watch.again()
    there.queue("new").enqueue(b"y")
    assert journal.came()


def test_time_that_is_up_and_a_store_that_closes(server: Server) -> None:
    store = RedisHarness(server.url, [server]).open()
    news = News(store, NAME, wait_ms=300)
    while news.watch.left_ms():
        assert news.came()
    waiting = News(store, NAME).settled()
    assert waiting.watch.left_ms() > 50_000
    store.close()
    assert waiting.came()


def test_a_connection_that_is_lost_is_made_anew(two: tuple[Store, Store], server: Server) -> None:
    here, there = two
    news = News(here, NAME).settled()
    server.client().client_kill_filter(_type="pubsub")
    assert news.came(), "something may have been missed: look"
    news.watch.again()
    there.queue("work").enqueue(b"x")
    assert news.came()


def test_on_a_cluster() -> None:
    with running(Cluster()) as cluster:
        harness = RedisHarness(cluster.url, cluster.servers)
        with harness.open() as here, harness.open() as there:
            for name in ("a", "b", "c", "d"):
                news = News(here, QueueName("default", name)).settled()
                there.queue(name).enqueue(b"x")
                assert news.came()
                news.watch.close()


def test_callers_of_a_server_of_ours_are_served_as_soon_as_there_is_a_job(two: tuple[Store, Store]) -> None:
    """Claims that wait in a server, over HTTP, on a store that others write to."""
    here, there = two
    bind = Bind("127.0.0.1", 0)
    bearer = token("default", "admin")["Authorization"].removeprefix("Bearer ")
    with listening_on(bind) as sock:
        service = Service(here, bind, ServerSettings(auth=Auth(secret=Secret(SECRET.decode()))))
        with (
            service.running(sock),
            tenure.open(f"http://127.0.0.1:{sock.getsockname()[1]}", token=bearer) as remote,
            ThreadPoolExecutor(5) as callers,
        ):
            queue = remote.queue("work")
            waiting = [callers.submit(queue.claim, 1, 60, 60) for _ in range(4)]
            job = there.queue("other").enqueue(b"y")
            ending = callers.submit(remote.queue("other").wait_for, job.id, 60)
            wait_until(lambda: len(here._backend._watches._watches) == 5, "they do not wait")  # type: ignore[attr-defined]
            made = {there.queue("work").enqueue(b"x").id for _ in range(4)}
            assert {claim.result(60)[0].id for claim in waiting} == made
            there.queue("other").cancel(job.id)
            ended = ending.result(60)
            assert ended is not None
            assert ended.state == "removed"
