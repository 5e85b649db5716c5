"""Repeated `kill -9` on the same data: acknowledged calls survive, and no call takes effect in part.

CRASH_ROUNDS sets how often (default: 10 for each engine; `make test-crash`: 200).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure import Backoff, Policy
from tests.crash.audit import Audit, Call, read_log

ROUNDS = int(os.environ.get("CRASH_ROUNDS", "10"))
ROOT = Path(__file__).parents[2]
PATIENCE = 60.0

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120 + 6 * ROUNDS)]


class Server:
    """Forks workers (see `worker`)."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.worker"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

        self._alive: set[int] = set()

    def start(self, url: str, durability: str, log: Path, seed: int, name: str) -> int:
        pid = self._ask(url, durability, str(log), seed, name)
        self._alive.add(pid)
        return pid

    def reap(self, pid: int) -> int:
        """The exit code of a worker, or minus the signal's number."""
        code = self._ask("reap", pid)
        self._alive.discard(pid)
        return code

    def _ask(self, *words: object) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def end(self) -> None:
        """Kill all workers: none may outlive its test."""
        for pid in list(self._alive):
            os.kill(pid, signal.SIGKILL)
            self.reap(pid)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(scope="module")
def servers() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def server(servers: Server) -> Iterator[Server]:
    yield servers
    servers.end()


class Trial:
    """One store whose workers are killed in each round."""

    def __init__(self, server: Server, folder: Path, engine: str, durability: str, seed: int) -> None:
        self.server = server
        self.url = f"{engine}:{folder / 'data'}"
        self.durability = durability
        self.random = random.Random(seed)
        self.audit = Audit()
        self._folder = folder
        self._rounds = 0
        self.unopened = 0
        quick = Policy(max_attempts=3, backoff=Backoff.fixed(0.01), result_retention=0.5)
        with tenure.open(self.url, sweep=False) as store:
            store.apply({"plain": quick, "kept": Policy(max_attempts=2, backoff=Backoff.fixed(0), retention=0.3)})

    def start(self, count: int) -> list[tuple[int, Path]]:
        self._rounds += 1
        started = []
        for number in range(count):
            log = self._folder / f"log-{self._rounds}-{number}"
            name = f"{self._rounds}.{number}"
            pid = self.server.start(self.url, self.durability, log, self.random.randrange(2**32), name)
            started.append((pid, log))
        return started

    def kill(self, pid: int, log: Path) -> None:
        """Kill a worker after some work, or sometimes before it has begun."""
        if self.random.random() < 0.15:
            time.sleep(self.random.random() * 0.06)
        else:
            self.until_working(pid, log)
            time.sleep(self.random.random() * 0.3)
        os.kill(pid, signal.SIGKILL)
        assert self.server.reap(pid) == -signal.SIGKILL, log.read_text()[-1000:]

    def until_working(self, pid: int, log: Path) -> None:
        self.until_grown(pid, log, 0)

    def until_grown(self, pid: int, log: Path, size: int) -> None:
        """Wait until its log is larger than that."""
        until = time.monotonic() + PATIENCE
        while not log.exists() or log.stat().st_size <= size:
            if time.monotonic() > until:
                os.kill(pid, signal.SIGUSR1)
                time.sleep(1)
                pytest.fail("the worker does not get going, or on; it said where it stands")
            time.sleep(0.002)

    def verify(self, logs: list[Path]) -> list[Call]:
        calls = [call for log in logs if log.exists() for call in read_log(log)]
        self.unopened += not calls
        with tenure.open(self.url, durability=self.durability, sweep=False) as store:  # type: ignore[arg-type]
            self.audit.round(store, calls)
        for log in logs:
            log.unlink(missing_ok=True)
        return calls

    def report(self) -> None:
        found = self.audit
        print(
            f"\n{self.url.split(':')[0]} at {self.durability}: killed {self._rounds} times, {self.unopened} before any work; "
            f"{found.calls:,} calls, {found.events:,} events, {len(found.jobs):,} jobs, {len(found.keys):,} keys; "
            f"{found.in_flight_done} of {found.in_flight} enqueues and claims in flight had happened"
        )
        assert found.calls > 3 * self._rounds, "the workers hardly worked: nothing was tested"
        assert self.unopened < self._rounds * 3 / 4


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(2**32))
    print(f"CRASH_SEED={chosen}")
    return chosen


@pytest.mark.parametrize(("engine", "durability"), [("rocksdb", "disk"), ("rocksdb", "os"), ("lmdb", "disk")])
def test_kill(server: Server, tmp_path: Path, engine: str, durability: str, seed: int) -> None:
    trial = Trial(server, tmp_path, engine, durability, seed)
    for _ in range(ROUNDS):
        ((pid, log),) = trial.start(1)
        trial.kill(pid, log)
        trial.verify([log])
    trial.report()


def test_kill_one_of_two(server: Server, tmp_path: Path, seed: int) -> None:
    """On LMDB the other process continues, and closes cleanly."""
    trial = Trial(server, tmp_path, "lmdb", "disk", seed)
    for _ in range(ROUNDS):
        (victim, log), (survivor, other) = trial.start(2)
        trial.until_working(survivor, other)
        trial.kill(victim, log)
        before = other.stat().st_size
        trial.until_grown(survivor, other, before + 200)
        os.kill(survivor, signal.SIGTERM)
        assert server.reap(survivor) == 0, other.read_text()[-1000:]
        said = other.read_bytes()
        assert said.endswith(b'["closed"]\n')
        assert all(call.ended for call in read_log(other))
        trial.verify([log, other])
    trial.report()


@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_kill_while_the_store_is_made(server: Server, tmp_path: Path, engine: str, seed: int) -> None:
    """Afterwards the folder can be used for a new store, or is a store."""
    chance = random.Random(seed)
    for number in range(max(6, ROUNDS // 4)):
        url = f"{engine}:{tmp_path / str(number)}"
        log = tmp_path / f"log-{number}"
        pid = server.start(url, "disk", log, seed + number, f"{number}.0")
        time.sleep(chance.random() * 0.08)
        os.kill(pid, signal.SIGKILL)
        server.reap(pid)
        calls = read_log(log) if log.exists() else []
        with tenure.open(url, sweep=False) as store:
            Audit().round(store, calls)


def test_the_audit_notices_what_is_lost(server: Server, tmp_path: Path, seed: int) -> None:
    """The audit must fail on a log that was truncated: otherwise the tests above would prove nothing."""
    trial = Trial(server, tmp_path, "rocksdb", "os", seed)
    ((pid, log),) = trial.start(1)
    trial.until_grown(pid, log, 60_000)
    os.kill(pid, signal.SIGKILL)
    server.reap(pid)
    wal = max((tmp_path / "data" / "db").glob("*.log"), key=lambda path: path.stat().st_size)
    os.truncate(wal, wal.stat().st_size // 8)  # the last part may be one large commit that was not acknowledged
    (tmp_path / "data" / "DURABLE").unlink()
    with pytest.raises(AssertionError, match=r"lost|nobody|forgotten|two jobs"):
        trial.verify([log])
