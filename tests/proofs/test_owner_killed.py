"""Several processes on one `rocksdb:` path, and the owner killed -9, again and again: the rest go on, each job is settled once.

OWNER_KILLS sets how often (`make test-crash`: 10).
"""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tenure
from tenure.testing.conformance.world import all_events

pytestmark = pytest.mark.xdist_group("server-proofs")
ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("OWNER_KILLS", "2"))
PATIENCE = 60.0


class Street:
    """The processes, and what they wrote down."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self._folder = folder
        self._living: dict[int, subprocess.Popen[bytes]] = {}
        self._made = 0
        #: What was read of each diary: its lines, and how many bytes they are.
        self._read: dict[Path, tuple[list[list[object]], int]] = {}

    def move_in(self) -> None:
        self._made += 1
        name = f"p{self._made}"
        command = [sys.executable, "-m", "tests.proofs.neighbour", f"rocksdb:{self.data}", str(self._diary(name)), name]
        with (self._folder / "log").open("ab") as log:
            made = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log)
        self._living[made.pid] = made
        self.until(lambda: any(words[0] == "here" for words in self.told(name)), f"{name} does not come in")

    def _diary(self, name: str) -> Path:
        return self._folder / f"{name}.diary"

    def told(self, name: str = "*") -> list[list[object]]:
        found: list[list[object]] = []
        for path in sorted(self._folder.glob(f"{name}.diary")):
            lines, size = self._read.setdefault(path, ([], 0))
            with path.open("rb") as diary:
                diary.seek(size)
                new = diary.read()
            whole = new[: new.rfind(b"\n") + 1]
            lines += [json.loads(line) for line in whole.splitlines()]
            self._read[path] = (lines, size + len(whole))
            found += lines
        return found

    def until(self, condition: Callable[[], bool], otherwise: str) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            failed = [words for words in self.told() if words[0] == "failed"]
            assert not failed, failed
            assert time.monotonic() < end, f"{otherwise}\n{(self._folder / 'log').read_text()[-3000:]}"
            time.sleep(0.02)

    def owner(self) -> int | None:
        try:
            pid = int(json.loads((self.data / "OWNER").read_text())["pid"])
        except (OSError, ValueError, KeyError):
            return None
        return pid if pid in self._living else None

    def kill_owner(self) -> None:
        self.until(lambda: self.owner() is not None, "nobody owns the store")
        pid = self.owner()
        assert pid is not None
        process = self._living.pop(pid)
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
        _close(process)

    def go_on(self, calls: int) -> None:
        """Until so many more calls were answered."""
        before = sum(words[0] in ("added", "acked") for words in self.told())
        self.until(
            lambda: sum(words[0] in ("added", "acked") for words in self.told()) >= before + calls,
            "the rest do not go on",
        )

    def move_out(self) -> None:
        for process in self._living.values():
            assert process.stdin is not None
            process.stdin.close()
        for process in self._living.values():
            assert process.wait(PATIENCE) == 0, (self._folder / "log").read_text()[-3000:]
        self._living.clear()

    def end(self) -> None:
        for process in self._living.values():
            process.kill()
            process.wait(PATIENCE)
            _close(process)


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()


def proof(folder: Path, processes: int, kills: int) -> str:
    street = Street(folder)
    try:
        for _ in range(processes):
            street.move_in()
        for _ in range(kills):
            street.go_on(10 * processes)
            street.kill_owner()
            street.go_on(processes)
            street.move_in()
        street.go_on(10 * processes)
        street.move_out()
    finally:
        street.end()
    return judge(street)


def judge(street: Street) -> str:
    told = street.told()
    assert not [words for words in told if words[0] == "failed"]
    adding = {payload for words in told if words[0] == "adding" for payload in words[1]}  # type: ignore[attr-defined]
    added = {payload: job for words in told if words[0] == "added" for payload, job in zip(*words[1:], strict=True)}
    acked = collections.Counter(words[1] for words in told if words[0] == "acked")
    acking = {words[1] for words in told if words[0] == "acking"}
    assert max(acked.values()) == 1, "acked twice"
    with tenure.open(f"rocksdb:{street.data}") as store:
        queue = store.queue("work")
        left: list[str] = []
        until = time.monotonic() + PATIENCE
        while queue.counts().waiting or queue.counts().leased:
            claim = queue.claim(limit=100, wait=1)
            assert queue.ack_many(claim).lost == []
            left += [delivery.payload.decode() for delivery in claim]
            assert time.monotonic() < until, "jobs are leased to nobody"
        assert not set(left) & set(acked), "what was acked came back"
        done = collections.Counter(left) + acked
        assert max(done.values()) == 1
        # Whoever was killed may have been about to say so: that much is not known, and no more.
        assert set(added) <= set(done) | acking
        assert set(done) <= adding
        events = all_events(store)
        lives = collections.Counter((event.job_id, event.type) for event in events)
        jobs = {event.job_id for event in events if event.type == "enqueued"}
        assert set(added.values()) <= jobs
        assert len(jobs) <= len(adding)
        assert all(lives[job, "done"] == lives[job, "enqueued"] == 1 for job in jobs), "a job was not settled once"
        assert store.check(specification=True).clean
    return f"{len(jobs)} jobs, each settled once"


@pytest.mark.crash
@pytest.mark.timeout(240 + 40 * KILLS)
def test_when_the_owner_is_killed_again_and_again_the_rest_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    processes = 5 if KILLS > 2 else 3
    said = proof(tmp_path, processes, KILLS)
    with capsys.disabled():
        print(f"\n{processes} processes, the owner killed {KILLS} times: {said}", flush=True)
