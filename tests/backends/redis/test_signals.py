"""A signal handler that raises, in the middle of any verb: the process lives, and the store is whole."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

import tenure
from tenure.backends.redis.connections import take_connection
from tenure.backends.redis.packer import Packer
from tests.backends.redis.servers import RedisHarness, Server

pytestmark = pytest.mark.xdist_group("redis")
INTERRUPTS = 500


class Interrupted(Exception):
    pass


def _raise(*_: object) -> None:
    raise Interrupted


def _work(queue: tenure.Queue) -> None:
    rng = random.Random()
    until = time.monotonic() + 0.1  # an exception raised while an object is finalised is dropped by the interpreter
    while time.monotonic() < until:
        queue.enqueue(b"x", key=str(rng.random()), priority=rng.randrange(10), delay=0.0)
        queue.enqueue_many([b"x" * rng.choice((1, 100, 5000))] * rng.choice((1, 5, 20)))
        claim = queue.claim(limit=rng.choice((1, 100)), lease=60)
        deliveries = list(claim)
        for delivery in deliveries[:3]:
            rng.choice((queue.nack, queue.fail, queue.release, queue.ack))(delivery)
        queue.ack_many(deliveries[3:])
        queue.counts()


def interrupt_often(url: str) -> int:
    """Run in a process of its own: what it proves is that the process does not crash."""
    signal.signal(signal.SIGALRM, _raise)
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("q")
        for _ in range(INTERRUPTS):
            with contextlib.suppress(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 5e-3))
                _work(queue)
        signal.setitimer(signal.ITIMER_REAL, 0)
        report = store.check()
        assert not report.findings, report.findings
        return report.jobs


def test_a_signal_handler_may_raise_inside_any_verb(server: Server) -> None:
    harness = RedisHarness(server.url, [server])
    script = f"from tests.backends.redis.test_signals import interrupt_often; interrupt_often({harness.url!r})"
    root = Path(__file__).parents[3]
    environ = dict(os.environ, PYTHONPATH=str(root), PYTHONFAULTHANDLER="1")
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environ,
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    with harness.open() as store:
        assert not store.check().findings
        assert store.queue("q").enqueue(b"still here").id
    harness.destroy()


def test_a_handshake_that_is_interrupted_leaves_no_answer_to_the_next_request(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver puts such a connection back among the idle ones: its answers are still to come."""
    handshake = redis.UnixDomainSocketConnection.on_connect_check_health

    def interrupted(connection: redis.UnixDomainSocketConnection, check_health: bool = True) -> None:
        connection.send_command("TIME", check_health=False)
        raise Interrupted

    client = redis.Redis(unix_socket_path=str(server.socket))
    monkeypatch.setattr(redis.UnixDomainSocketConnection, "on_connect_check_health", interrupted)
    with pytest.raises(Interrupted):
        take_connection(client)
    assert all(one._sock is None for one in client.connection_pool._available_connections)
    monkeypatch.setattr(redis.UnixDomainSocketConnection, "on_connect_check_health", handshake)
    connection = take_connection(client)
    connection.send_command("ECHO", "mine")
    assert connection.read_response() == b"mine"
    connection.disconnect()


@pytest.mark.parametrize(
    ("args", "sent"),
    [
        (("PING",), b"*1\r\n$4\r\nPING\r\n"),
        (("CLIENT SETNAME", "é"), b"*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$2\r\n\xc3\xa9\r\n"),
        ((b"SET", b"a b", 12, 0.5, -1), b"*5\r\n$3\r\nSET\r\n$3\r\na b\r\n$2\r\n12\r\n$3\r\n0.5\r\n$2\r\n-1\r\n"),
    ],
)
def test_requests_are_packed_as_the_protocol_says(args: tuple[bytes | str | int | float, ...], sent: bytes) -> None:
    assert b"".join(Packer().pack(*args)) == sent
