"""A server at `maxmemory`, and one that is still loading: clear errors, and all works again without a restart."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

import tenure
from tenure.api.queue import Queue
from tenure.errors import Unavailable
from tenure.model.job import NewJob
from tenure.model.schedule import Schedule
from tests.backends.redis.servers import Server, running, wait_until

pytestmark = pytest.mark.xdist_group("redis")


def _fill(queue: Queue) -> list[str]:
    """Enqueue until the server refuses; the ids that it acknowledged."""
    made: list[str] = []
    for _ in range(1000):
        try:
            made += [job.id for job in queue.enqueue_many([bytes(20_000)] * 10)]
        except Unavailable:
            return made
    raise AssertionError("the server never was full")


@contextlib.contextmanager
def _full_server() -> Iterator[Server]:
    with running(Server("--maxmemory", "8mb")) as small:
        yield small


def _plain_user(server: Server) -> str:
    """The URL of a user who may not use functions: everything goes by scripts."""
    server.client().acl_setuser("plain", enabled=True, reset=True, passwords=["+pw"], keys=["*"], channels=["*"],
                                categories=["+@all"], commands=["-function", "-fcall", "-fcall_ro"])  # fmt: skip
    return f"redis+unix://plain:pw@{server.socket}"


def _schedule(name: str) -> Schedule:
    return Schedule(name=name, tenant="default", queue="work", payload=b"now", every_ms=3_600_000)


@pytest.mark.parametrize("scripts", [False, True], ids=["functions", "scripts"])
def test_a_full_server_can_be_emptied_and_loses_nothing(scripts: bool) -> None:
    with _full_server() as server:
        url = _plain_user(server) if scripts else server.url
        client = server.client()
        with tenure.open(url, sweep=False) as store:
            queue = store.queue("work")
            queue.configure(tenure.Policy(retention=3600, max_attempts=2, backoff=tenure.Backoff.fixed(0)))
            first = queue.enqueue(b"early").id
            early = queue.claim(limit=1)
            for name in ("hourly", "nightly"):
                store.add_schedule(_schedule(name))
            made = {first, *_fill(queue)}
            client.config_set("maxmemory", "1mb")  # full, however much is freed below
            gone: set[str] = set()
            with pytest.raises(Unavailable, match=r"full \(maxmemory\).*still work and make room"):
                queue.enqueue(b"no room")
            with pytest.raises(Unavailable, match="full"):
                queue.enqueue_many([NewJob(b"no room", key="k")])
            with pytest.raises(Unavailable, match="full"):
                queue.ack(early[0], result=bytes(100_000))
            with pytest.raises(Unavailable, match="full"):
                queue.record_step(early[0], "charge", b"receipt")
            with pytest.raises(Unavailable, match="full"):
                queue.signal(first, "go")
            with pytest.raises(Unavailable, match="full"):
                store.add_schedule(_schedule("daily"))
            # What ends work, or frees memory, is taken; and a schedule that fills the server can be stopped.
            assert store.pause_schedule("nightly")
            assert store.remove_schedule("hourly")
            assert [(schedule.name, schedule.paused) for schedule in store.schedules()] == [("nightly", True)]
            queue.extend(early[0], 60)
            queue.progress(early[0], 0.5, "half")
            queue.ack(early[0], result=b"small")
            claim = list(queue.claim(limit=7))
            assert len(claim) == 7
            waiting = claim.pop()
            queue.snooze(waiting, 3600, until_signal="go")
            assert queue.cancel(waiting.id)
            gone.add(waiting.id)
            claim += queue.claim(limit=1)
            queue.nack(claim[0], error="again")
            queue.fail(claim[1], error="never")
            queue.release(claim[2])
            assert not queue.ack_many(claim[3:5]).lost
            assert queue.cancel(claim[5].id)
            gone.add(claim[5].id)
            queue.ack(claim[6])
            queue.pause()
            queue.resume()
            assert queue.purge("dead") == 1
            gone.add(claim[1].id)
            store.sweep()
            assert store.cleanup(before=time.time() + 3600) == 4
            gone |= {early[0].id, claim[3].id, claim[4].id, claim[6].id}
            assert len(store.events(limit=5)) == 5
            assert store.check().clean
            # A second client opens the store while its server is full.
            with tenure.open(url, sweep=False) as second:
                assert second.queue("work").counts().ready == len(made) - len(gone)
            # Room again: the same store goes on.
            client.config_set("maxmemory", "0")
            made.add(queue.enqueue(b"after").id)
            left: set[str] = set()
            while claim := list(queue.claim(limit=50)):
                left |= {delivery.id for delivery in claim}
                queue.ack_many(claim)
            assert left == made - gone
            assert store.check().clean


def test_workers_make_room_in_a_full_server() -> None:
    """Nobody has to touch the server: what is claimed and acknowledged is free for what comes next."""
    with _full_server() as server, tenure.open(server.url, sweep=False) as store:
        queue = store.queue("work")
        made = _fill(queue)
        for _ in range(3):
            claim = queue.claim(limit=100)
            assert claim
            queue.ack_many(claim)
        assert queue.enqueue(bytes(20_000)).id
        assert queue.counts().enqueued == len(made) + 1
        assert store.check().clean


def test_a_server_that_loads_its_data_is_unavailable() -> None:
    with running(Server()) as server:
        client = server.client()
        with tenure.open(server.url, sweep=False) as store:
            store.queue("work").enqueue_many([b"x"] * 300)
        for n in range(400):
            client.set(f"other:{n}", bytes(2000))
        client.execute_command("BGREWRITEAOF")
        wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], "never rewritten")
        server.kill()
        slow = [*server._command, "--key-load-delay", "20000", "--loading-process-events-interval-bytes", "1024"]
        process = subprocess.Popen(slow, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: _is_loading(server), "it never was loading")
            with pytest.raises(Unavailable, match="loading its data") as refused:
                tenure.open(server.url, patience=0.5, sweep=False)
            assert str(server.socket) in str(refused.value)
        finally:
            process.kill()
            process.wait()


def _is_loading(server: Server) -> bool:
    """Asked without the driver, which would wait until it is loaded."""
    with socket.socket(socket.AF_UNIX) as one, contextlib.suppress(OSError):
        one.settimeout(5)
        one.connect(str(server.socket))
        one.sendall(b"GET x\r\n")
        return one.recv(100).startswith(b"-LOADING")
    return False
