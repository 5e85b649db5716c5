"""Connections to the owner's socket that get nowhere, or are too many."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.backends.owner import connection
from tenure.backends.owner.listener import Listener
from tenure.protocol.dispatcher import Dispatcher

ASK = b"GET /v1/store HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextmanager
def listener(folder: Path, durability: Any, connections: int = 0, idle: float = 1.0) -> Iterator[str]:
    path = str(folder / "socket")
    url = "memory:" if durability == "memory" else f"rocksdb:{folder}/data"
    with tenure.open(url, sweep=False, durability=durability) as store:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(path)
        listening.listen(100)
        dispatcher = Dispatcher(store.backend, local=True)
        served = Listener(listening, dispatcher, idle_seconds=idle, connections=connections)
        try:
            yield path
        finally:
            served.stop()


def connect(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(20)
    made.connect(path)
    return made


def closed(caller: socket.socket) -> bool:
    try:
        while caller.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


each_way = pytest.mark.parametrize("durability", ["memory", "disk"], ids=["event loop", "threads"])
HALF = b"POST /v1/queues/work/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@each_way
@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /v1/st", HALF + b"Content-Length: 1000\r\n\r\n{", HALF + b"Content-Length: 900000\r\n\r\n" + b"x" * 99],
    ids=["nothing", "half a head", "half a small body", "half a large body"],
)
def test_one_that_gets_nowhere_is_closed(durability: str, sent: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # A body has its time at the least rate besides: minutes for the large one.
    monkeypatch.setattr(connection, "MIN_RATE", 10_000_000)
    with listener(tmp_path, durability, idle=0.3) as path, connect(path) as stuck:
        stuck.sendall(sent)
        assert closed(stuck)


@each_way
def test_one_that_has_asked_may_be_quiet(durability: str, tmp_path: Path):
    """Other processes keep their connections: they are not closed for being idle."""
    with listener(tmp_path, durability) as path, connect(path) as caller:
        caller.sendall(ASK)
        assert caller.recv(4096).startswith(b"HTTP/1.1 200")
        time.sleep(2)
        caller.sendall(ASK)
        assert caller.recv(4096).startswith(b"HTTP/1.1 200")


@each_way
def test_no_more_than_the_limit_and_callers_get_in(durability: str, tmp_path: Path):
    with listener(tmp_path, durability, connections=10) as path, ExitStack() as stack:
        before = len(os.listdir("/proc/self/fd"))
        crowd = [stack.enter_context(connect(path)) for _ in range(60)]
        time.sleep(0.3)
        assert len(os.listdir("/proc/self/fd")) <= before + 60 + 12
        for _ in range(5):
            caller = stack.enter_context(connect(path))
            caller.sendall(ASK)
            assert caller.recv(4096).startswith(b"HTTP/1.1 200")
        assert len(crowd) == 60


@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_a_thread_that_cannot_be_started_ends_its_connection_only(
    durability: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class NoThread:
        def __init__(self, **_: object) -> None:
            pass

        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with listener(tmp_path, durability) as path:
        with connect(path) as unlucky, monkeypatch.context() as patched:
            # An answer in parts, which the event loop leaves to a thread.
            patched.setattr(threading, "Thread", lambda **given: NoThread(**given))
            unlucky.sendall(ASK.replace(b"Host", b"Connection: keep-alive\r\nHost"))
            assert closed(unlucky)
        with connect(path) as caller:
            caller.sendall(ASK)
            assert caller.recv(4096).startswith(b"HTTP/1.1 200")


def test_an_error_of_no_connection_does_not_end_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with listener(tmp_path, "memory") as path, connect(path) as caller:
        failing = iter([OSError("no memory")])
        select = selectors.DefaultSelector.select

        def fails_once(selector: Any, timeout: float | None = None) -> Any:
            for error in failing:
                raise error
            return select(selector, timeout)

        monkeypatch.setattr(selectors.DefaultSelector, "select", fails_once)
        for _ in range(2):
            caller.sendall(ASK)
            assert caller.recv(4096).startswith(b"HTTP/1.1 200")
