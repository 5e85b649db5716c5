"""A claim whose response was lost, repeated after its lease has ended."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

import tenure
from tenure import LeaseLost, ManualClock
from tenure.backends.owner.listener import Listener
from tenure.protocol.dispatcher import Dispatcher
from tests.proofs.proxy import Proxy


class LateForClaims(Proxy):
    """Loses the answer to the first claim, and finds that out a minute later."""

    def __init__(self, upstream: tuple[str, int], clock: ManualClock) -> None:
        super().__init__(upstream, seed=0, faults=0.0)
        self._clock = clock
        self.lost = 0

    def _carry(self, request: bytes, fault: str, delay: float) -> bytes | None:
        reply = super()._carry(request, fault, delay)
        if request.startswith(b"POST /v1/queues/mail/claims") and not self.lost:
            self.lost += 1
            self._clock.advance(60)
            return None
        return reply


@pytest.fixture
def between() -> Iterator[tuple[tenure.Queue, LateForClaims]]:
    clock = ManualClock()
    with tenure.open("memory:", clock=clock, sweep=False) as store:
        sock = socket.create_server(("127.0.0.1", 0))
        listener = Listener(sock, Dispatcher(store._backend))
        proxy = LateForClaims(sock.getsockname()[:2], clock)
        with tenure.open(f"http://127.0.0.1:{proxy.port}", sweep=False) as client:
            yield client.queue("mail"), proxy
        proxy.stop()
        listener.stop()


def test_a_repeated_claim_whose_lease_was_lost_claims_anew(between):
    queue, proxy = between
    added = queue.enqueue(b"x")
    (delivery,) = queue.claim(lease=10)
    assert proxy.lost == 1
    assert (delivery.id, delivery.attempt, delivery.token) == (added.id, 2, 2), "the first delivery reached nobody"
    queue.ack(delivery)
    assert queue.counts().leased == 0


def test_a_claim_by_an_id_of_the_callers_own_is_told(between):
    queue, _ = between
    queue.enqueue(b"x")
    with pytest.raises(LeaseLost):
        queue.claim(lease=10, id="mine")
    assert len(queue.claim(lease=10)) == 1
