"""A request that comes over several connections, at once or later, is answered alike on all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import tenure
from tenure.protocol import messages as m
from tenure.protocol.dispatcher import ROUTES, Begun, Host
from tenure.protocol.identity import LOCAL

QUEUE = "work"


class Door:
    """Connections to a host, without sockets."""

    def __init__(self) -> None:
        self.store = tenure.open("memory:", sweep=False)
        self.queue = self.store.queue(QUEUE)
        self.host = Host(self.store._backend)

    def begin(self, request: str, wait_ms: int = 0) -> Begun:
        operation, path = ROUTES.find("POST", f"/v1/queues/{QUEUE}/claims")
        body = b'{"limit": 5, "lease_ms": 600000, "wait_ms": %d}' % wait_ms
        headers = {"content-type": "application/json", "tenure-request": request}
        return self.host.begin(operation, path, {}, headers, body, LOCAL)

    def claim(self, request: str) -> m.ClaimReply:
        answer = self.host.run(self.begin(request))
        assert isinstance(answer, m.ClaimReply)
        return answer

    def wait(self, request: str, wait_ms: int, gone: bool = False) -> m.ClaimReply:
        """As a listener does; `gone`: the caller has left by the time there is an answer."""
        begun = self.begin(request, wait_ms)
        news = threading.Event()
        entry = self.host.attendance.enter(begun.key, news.set)
        watch = self.host.watch(begun, news.set)
        try:
            while True:
                news.clear()
                answer = self.host.look(begun, watch, entry)
                if answer is not None:
                    assert isinstance(answer, m.ClaimReply)
                    if gone:
                        self.host.give_back(begun, entry, answer)
                    return answer
                assert news.wait(60)
        finally:
            watch.close()
            self.host.attendance.leave(begun.key, entry)


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    assert made.store.check().clean
    made.store.close()


def test_a_claim_that_found_nothing_finds_nothing_when_it_comes_again(door: Door) -> None:
    assert door.claim("r").lease is None
    door.queue.enqueue(b"x")
    assert door.claim("r").lease is None
    assert door.wait("r", 50).lease is None
    assert door.queue.counts().leased == 0
    assert len(door.claim("another").jobs) == 1


def test_a_wait_that_ended_with_nothing_stays_so(door: Door) -> None:
    assert door.wait("r", 20).lease is None
    door.queue.enqueue(b"x")
    assert door.wait("r", 20_000).lease is None
    assert door.queue.counts().leased == 0


def test_both_of_two_that_wait_are_given_the_same(door: Door) -> None:
    with ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(door.wait, "r", 20_000) for _ in range(2)]
        time.sleep(0.05)
        door.queue.enqueue(b"x")
        one, other = (wait.result(60) for wait in waits)
    assert one.lease == other.lease is not None
    assert door.queue.counts().leased == 1


def test_of_two_that_wait_the_first_to_end_ends_both(door: Door) -> None:
    """The caller has been told that there was nothing: what comes now is not theirs."""
    with ThreadPoolExecutor(2) as threads:
        short, long = threads.submit(door.wait, "r", 50), threads.submit(door.wait, "r", 20_000)
        assert short.result(60).lease is None
        door.queue.enqueue(b"x")
        assert long.result(60).lease is None
    assert door.queue.counts().leased == 0


def test_what_a_caller_has_is_not_given_back_for_a_copy_of_their_request(door: Door) -> None:
    door.queue.enqueue(b"x")
    held = door.claim("r")
    assert door.wait("r", 20_000, gone=True).lease == held.lease
    assert door.queue.counts().leased == 1


def test_what_nobody_has_is_given_back(door: Door) -> None:
    door.queue.enqueue(b"x")
    door.wait("r", 20_000, gone=True)
    assert (door.queue.counts().leased, door.queue.counts().ready) == (0, 1)
