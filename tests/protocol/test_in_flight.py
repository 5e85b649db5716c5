"""A request that comes over several connections, at once or later, is answered alike on all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import tenure
from tenure.protocol import messages as m
from tenure.protocol.dispatcher import DecodedRequest, Dispatcher
from tenure.protocol.identity import LOCAL
from tenure.protocol.routes import ROUTES

QUEUE = "work"


class Connections:
    """Connections to a dispatcher, without sockets."""

    def __init__(self) -> None:
        self.store = tenure.open("memory:", sweep=False)
        self.queue = self.store.queue(QUEUE)
        self.dispatcher = Dispatcher(self.store.backend)

    def request(self, request_id: str, wait_ms: int = 0) -> DecodedRequest:
        operation, path = ROUTES.find("POST", f"/v1/queues/{QUEUE}/claims")
        body = b'{"limit": 5, "lease_ms": 600000, "wait_ms": %d}' % wait_ms
        head = self.dispatcher.head(operation, path, {"content-type": "application/json"}, LOCAL)
        return self.dispatcher.request(head, {}, request_id, body)

    def claim(self, request_id: str) -> m.ClaimReply:
        answer = self.dispatcher.run(self.request(request_id))
        assert isinstance(answer, m.ClaimReply)
        return answer

    def wait(self, request_id: str, wait_ms: int, gone: bool = False) -> m.ClaimReply:
        """As a listener does; `gone`: the caller has left by the time there is an answer."""
        news = threading.Event()
        wait = self.dispatcher.wait(self.request(request_id, wait_ms), news.set)
        try:
            while True:
                news.clear()
                answer = wait.look()
                if answer is not None:
                    assert isinstance(answer, m.ClaimReply)
                    if gone:
                        wait.release(answer)
                    return answer
                assert news.wait(60)
        finally:
            wait.close()


@pytest.fixture
def server() -> Iterator[Connections]:
    made = Connections()
    yield made
    assert made.store.check().clean
    made.store.close()


def test_a_claim_that_found_nothing_finds_nothing_when_it_comes_again(server: Connections) -> None:
    assert server.claim("r").lease is None
    server.queue.enqueue(b"x")
    assert server.claim("r").lease is None
    assert server.wait("r", 50).lease is None
    assert server.queue.counts().leased == 0
    assert len(server.claim("another").jobs) == 1


def test_a_wait_that_ended_with_nothing_stays_so(server: Connections) -> None:
    assert server.wait("r", 20).lease is None
    server.queue.enqueue(b"x")
    assert server.wait("r", 20_000).lease is None
    assert server.queue.counts().leased == 0


def test_both_of_two_that_wait_are_given_the_same(server: Connections) -> None:
    with ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(server.wait, "r", 20_000) for _ in range(2)]
        time.sleep(0.05)
        server.queue.enqueue(b"x")
        one, other = (wait.result(60) for wait in waits)
    assert one.lease == other.lease is not None
    assert server.queue.counts().leased == 1


def test_of_two_that_wait_the_first_to_end_ends_both(server: Connections) -> None:
    """The caller has been told that there was nothing: what comes now is not theirs."""
    with ThreadPoolExecutor(2) as threads:
        short, long = threads.submit(server.wait, "r", 50), threads.submit(server.wait, "r", 20_000)
        assert short.result(60).lease is None
        server.queue.enqueue(b"x")
        assert long.result(60).lease is None
    assert server.queue.counts().leased == 0


def test_what_a_caller_has_is_not_given_back_for_a_copy_of_their_request(server: Connections) -> None:
    server.queue.enqueue(b"x")
    held = server.claim("r")
    assert server.wait("r", 20_000, gone=True).lease == held.lease
    assert server.queue.counts().leased == 1


def test_what_nobody_has_is_given_back(server: Connections) -> None:
    server.queue.enqueue(b"x")
    server.wait("r", 20_000, gone=True)
    assert (server.queue.counts().leased, server.queue.counts().ready) == (0, 1)
