"""Lost, doubled and late requests and replies: no job twice, no ack lost, no claim stranded.

NETWORK_SECONDS sets for how long (`make test-crash`: 30).
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import tenure
from tenure.api.store import Store
from tenure.backends.owner.listener import Listener
from tenure.protocol.dispatcher import Dispatcher
from tenure.server_settings import Server
from tests.proofs.crowd import Crowd, opened
from tests.proofs.proxy import FAULTS, Proxy

pytestmark = pytest.mark.xdist_group("server-proofs")
SECONDS = float(os.environ.get("NETWORK_SECONDS", "1.5"))


@contextmanager
def served(store: Store, by: str) -> Iterator[tuple[str, int]]:
    """Serve the store by the owner's listener, or by the application of `tenure serve`."""
    with ExitStack() as ending:
        if by == "listener":
            sock = socket.create_server(("127.0.0.1", 0), backlog=256)
            ending.callback(Listener(sock, Dispatcher(store._backend)).stop)
        else:
            pytest.importorskip("uvicorn", reason="the server's extra is not installed")
            from tenure.server.service import Bind, Service, listening

            sock = ending.enter_context(listening(Bind("127.0.0.1", 0)))
            service = Service(store, Bind("127.0.0.1", sock.getsockname()[1]), Server())
            ending.enter_context(service.running(sock))
        yield sock.getsockname()[:2]


def proof(folder: Path, by: str, seconds: float, clients: int, seed: int) -> str:
    url = f"rocksdb:{folder / 'data'}"
    with tenure.open(url, durability="os") as store, served(store, by) as upstream, ExitStack() as ending:
        proxy = Proxy(upstream, seed)
        ending.callback(proxy.stop)
        crowd = Crowd(lambda: opened(f"http://127.0.0.1:{proxy.port}"), clients, seed)
        until = time.monotonic() + seconds
        while time.monotonic() < until or not all(proxy.told[fault] for fault in FAULTS):
            crowd.check()
            time.sleep(0.02)
        proxy.calm()
        crowd.stop()
        said = crowd.judge(store)
        faults = ", ".join(f"{count} × {fault}" for fault, count in sorted(proxy.told.items()) if fault != "pass")
        return f"{said} through {faults}"


@pytest.mark.crash
@pytest.mark.timeout(120 + 4 * SECONDS)
@pytest.mark.parametrize("by", ["listener", "server"])
def test_a_bad_network_loses_and_doubles_nothing(tmp_path: Path, by: str, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("SERVER_SEED") or random.SystemRandom().randrange(2**32))
    said = proof(tmp_path, by, SECONDS, clients=16 if SECONDS > 5 else 6, seed=seed)
    with capsys.disabled():
        print(f"\nSERVER_SEED={seed}, {by}: {said}", flush=True)
