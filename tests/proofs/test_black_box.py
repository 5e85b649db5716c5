"""Processes call a store from outside and log what they are told, while servers and callers are killed and stopped at
random. One order of the calls on each job must explain all answers (`call_history`).

    server    `tenure serve` on RocksDB, and its clients
    owner     processes on one RocksDB folder: one of them owns it, and the others ask it
    valkey    processes on a Valkey server

BLACK_BOX sets the number of kills and stops for each (`make test-crash`: 60).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.backends.redis.servers import Server, running
from tests.planted.bugs import BUGS
from tests.planted.hunt import planted
from tests.proofs.call_history import CallHistory, read
from tests.proofs.caller import POLICY, QUEUES, Caller
from tests.proofs.crowd import PATIENCE, opened
from tests.proofs.test_server_killed import ROOT, ServerProcess

FAULTS = int(os.environ.get("BLACK_BOX", "6"))
CALLERS = 4
#: Answers between two faults.
ANSWERS = 60

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120 + 20 * FAULTS), pytest.mark.xdist_group("server-proofs")]


class Callers:
    """The processes and their logs."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self._url = url
        self._made = 0
        self.living: list[subprocess.Popen[bytes]] = []

    def add(self) -> None:
        self._made += 1
        name = f"c{self._made}"
        command = [sys.executable, "-m", "tests.proofs.caller", self._url, str(self.folder / f"{name}.calls"), name]
        with (self.folder / "said").open("ab") as said:
            self.living.append(subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=said, stderr=said))

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        self.living.remove(process)
        process.kill()
        process.communicate()

    def go_on(self, answers: int) -> None:
        """Wait until so many more lines were logged."""
        end, enough = time.monotonic() + PATIENCE, self._lines() + 2 * answers
        while self._lines() < enough:
            assert all(process.poll() is None for process in self.living), self._said()
            assert time.monotonic() < end, f"the callers do not go on\n{self._said()}"
            time.sleep(0.02)

    def end(self) -> None:
        for process in self.living:
            process.communicate(timeout=PATIENCE)  # the end of its input
            assert not process.returncode, self._said()

    def _lines(self) -> int:
        return sum(log.read_bytes().count(b"\n") for log in self.folder.glob("*.calls"))

    def _said(self) -> str:
        return (self.folder / "said").read_text()[-3000:]


def run(callers: Callers, server: ServerProcess | Server | None, faults: int, chance: random.Random) -> None:
    """Let callers work; kill and stop them and the server."""
    for _ in range(CALLERS):
        callers.add()
    try:
        for _ in range(faults):
            callers.go_on(ANSWERS)
            victim = chance.choice(callers.living)
            fault = chance.choice(("kill caller", "stop caller", "kill server", "stop server"))
            if fault == "kill server" and server is not None:
                server.kill()
                time.sleep(chance.choice((0, 1.5)))
                server.start()
            elif fault == "stop server" and server is not None:
                _stopped(server.pid, chance.choice((0.2, 1.0)))
            elif fault.startswith("stop"):  # past its lease: it settles late
                _stopped(victim.pid, chance.choice((0.5, 1.5)))
            else:
                callers.kill(victim)
                callers.add()
        callers.go_on(ANSWERS)
        callers.end()
    finally:
        for process in list(callers.living):
            callers.kill(process)


def _stopped(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


def end(url: str, folder: Path) -> CallHistory:
    """End all jobs and look at each, as one more caller. Returns the calls of all."""
    with opened(url, timeout=None) as store:
        caller = Caller(store, str(folder / "last.calls"), "last")
        for name in QUEUES:
            caller.drain(name)
        for job, name in read_all(folder).queues.items():
            caller.look_at(name, job)
        assert store.check(specification=True).clean
    return read_all(folder)


def read_all(folder: Path) -> CallHistory:
    return CallHistory(call for log in sorted(folder.glob("*.calls")) for call in read(log))


@pytest.fixture(params=["server", "owner", "valkey"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, ServerProcess | Server | None]]:
    with ExitStack() as stack:
        if request.param == "valkey":
            valkey = stack.enter_context(running(Server(fsync="always")))
            yield f"{valkey.url}?timeout=5&patience=1", valkey
        elif request.param == "server":
            server = ServerProcess(tmp_path / "data", tmp_path / "s")
            stack.callback(server.end)
            yield server.url, server
        else:
            yield f"rocksdb:{tmp_path / 'data'}", None


def test_one_order_of_the_calls_explains_all_answers(
    place: tuple[str, ServerProcess | Server | None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, server = place
    seed = int(os.environ.get("BLACK_BOX_SEED") or random.SystemRandom().randrange(2**32))
    with opened(url, timeout=None) as store:
        store.apply(dict.fromkeys(QUEUES, POLICY))
    callers = Callers(tmp_path, url)
    run(callers, server, FAULTS, random.Random(seed))
    history = end(url, tmp_path)
    assert not (wrong := history.violations()), "\n".join(wrong[:3])
    with capsys.disabled():
        print(
            f"\nBLACK_BOX_SEED={seed}: {FAULTS} kills and stops, {len(history.calls):,} calls on {history.jobs:,} jobs, "
            f"{history.unanswered} not answered; explained",
            flush=True,
        )
    assert history.jobs > 10


def test_a_bug_of_the_server_is_told_by_its_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server settles a job for a worker that once held it."""
    bug = next(bug for bug in BUGS if bug.name == "a job id alone settles a job")
    monkeypatch.setenv("PYTHONPATH", f"{planted(bug, tmp_path)}{os.pathsep}{ROOT}")
    server = ServerProcess(tmp_path / "data", tmp_path / "s")
    monkeypatch.undo()
    try:
        callers = Callers(tmp_path, server.url)
        with opened(server.url) as store:
            store.apply(dict.fromkeys(QUEUES, POLICY))
        run(callers, None, 4, random.Random(18))
    finally:
        server.end()
    assert any("nothing explains" in wrong for wrong in read_all(tmp_path).violations())
