"""Repeated `kill -9` of a server under load: every acknowledged enqueue and ack survives, each job is done once.

SERVER_KILLS sets how often (`make test-crash`: 20).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tenure.api.store import Store
from tests.proofs.crowd import PATIENCE, Crowd, opened, wait_until

pytest.importorskip("uvicorn", reason="the server's extra is not installed")
pytestmark = pytest.mark.xdist_group("server-proofs")

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("SERVER_KILLS", "2"))


class ServerProcess:
    """`tenure serve` in a separate process, restarted at the same address."""

    def __init__(self, data: Path, socket: Path) -> None:
        self._command = [
            sys.executable, "-m", "tenure", "serve", "--store", f"rocksdb:{data}", "--bind", f"unix:{socket}",
        ]  # fmt: skip
        self._log = data.with_suffix(".log")
        self.url = f"http+unix:{socket}"
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "TENURE_STORAGE_DURABILITY": "os"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, cwd=ROOT, env=environment, stdout=log, stderr=log)

    @property
    def pid(self) -> int:
        return self._process.pid

    def open(self) -> Store:
        return opened(self.url, timeout=PATIENCE)  # a server may start slowly

    def kill(self) -> None:
        assert self._process.poll() is None, self._log.read_text()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE)

    def end(self) -> None:
        """Stop the server as an operator does."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(PATIENCE)


def proof(folder: Path, kills: int, clients: int, seed: int) -> str:
    chance = random.Random(seed)
    server = ServerProcess(folder / "data", folder / "s")
    try:
        server.open().close()
        crowd = Crowd(server.open, clients, seed)
        try:
            for _ in range(kills):
                before = crowd.calls
                wait_until(lambda before=before: crowd.calls > before + clients, crowd)  # type: ignore[misc]
                time.sleep(chance.uniform(0, 0.3))
                server.kill()
                server.start()
            before = crowd.calls
            wait_until(lambda: crowd.calls > before + clients, crowd)
        finally:
            crowd.stop()
        with server.open() as store:
            return crowd.judge(store)
    finally:
        server.end()


@pytest.mark.crash
@pytest.mark.timeout(120 + 15 * KILLS)
def test_a_server_that_is_killed_again_and_again_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("SERVER_SEED") or random.SystemRandom().randrange(2**32))
    clients = 16 if KILLS > 2 else 8
    said = proof(tmp_path, KILLS, clients, seed)
    with capsys.disabled():
        print(f"\nSERVER_SEED={seed}: {KILLS} kills under load of {clients} clients, {said}", flush=True)
