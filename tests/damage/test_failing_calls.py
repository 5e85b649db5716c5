"""System calls of a working process fail with EIO or ENOSPC (strace's injection): once, or from then on.

The process gets typed errors and ends by itself. Afterwards the store opens, and everything acknowledged is there.
FAILING_CALLS sets the number of processes for each engine (`make test-crash`: 100).
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.errors import OpenError
from tenure.storage import folder
from tenure.testing.conformance.world import all_events, assert_sound

ROOT = Path(__file__).parents[2]
COUNT = int(os.environ.get("FAILING_CALLS", "6"))
#: By engine: the calls that write and sync, and about how often a process makes them.
CALLS = {
    "rocksdb": {"fdatasync": 140, "write": 250, "fsync": 30, "rename": 5},
    "lmdb": {"fdatasync": 100, "pwrite64": 480, "ftruncate": 3},
}
CODE = """
import os, sys, tenure, traceback
from tenure.errors import StoreError
url, log, writes = sys.argv[1:]
out = os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
at = 0

def say(*words):
    # By another call than the engine's, which fails.
    global at
    line = (" ".join(words) + "\\n").encode()
    at += os.pwrite(out, line, at) if writes == "pwrite" else os.write(out, line)

def work():
    # Writes to a pipe, with which the listener wakes its thread, would fail too.
    store = tenure.open(url, sweep=False, **{"listen": False} if url.startswith("rocksdb:") else {})
    queue = store.queue("work")
    for number in range(40):
        try:
            say("enqueued", queue.enqueue(b"%d" % number * 500).id)
            for delivery in queue.claim(limit=2, lease=3600) if number % 2 else ():
                queue.ack(delivery)
                say("done", delivery.id)
        except StoreError as error:
            say("error", type(error).__name__)
    store.close()

try:
    work()
except StoreError as error:
    say("error", type(error).__name__)
except BaseException:
    say("untyped", traceback.format_exc().replace("\\n", "|"))
"""

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: apt-get install strace"),
    pytest.mark.timeout(120 + 10 * COUNT),
]


@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_a_failing_call_loses_nothing_acknowledged(engine: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("DAMAGE_SEED") or random.SystemRandom().randrange(2**32))
    print(f"DAMAGE_SEED={seed}")
    chance, outcomes = random.Random(seed), Counter[str]()
    for number in range(COUNT):
        call = chance.choices(list(CALLS[engine]), (4, 4, 1, 1)[: len(CALLS[engine])])[0]
        when = f"{chance.randrange(1, CALLS[engine][call] + 1)}{chance.choice(('', '+'))}"
        error = chance.choice(("EIO", "ENOSPC"))
        where = f"{call} fails with {error} at {when}"
        outcomes[trial(engine, tmp_path / str(number), f"inject={call}:error={error}:when={when}", where)] += 1
    print(f"{engine}: {COUNT} processes with failing calls: {dict(outcomes)}; nothing lost")
    assert set(outcomes) != {"none"}, "no call failed"


def trial(engine: str, work: Path, injection: str, where: str) -> str:
    """Run a process, then open its store. Returns the errors that it got, or "none"."""
    work.mkdir()
    data, log = work / "data", work / "log"
    log.touch()
    strace = [
        "strace",
        "-f",
        "-q",
        "-o",
        "/dev/null",
        "-e",
        f"trace={injection[7:].partition(':')[0]}",
        "-e",
        injection,
    ]
    command = [sys.executable, "-c", CODE, f"{engine}:{data}", str(log), "pwrite" if engine == "rocksdb" else "write"]
    done = subprocess.run([*strace, *command], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    told = [line.split(" ", 1) for line in log.read_text().splitlines()]
    untyped = [text for kind, text in told if kind == "untyped"]
    assert not untyped, f"{where}: {untyped}"
    assert done.returncode >= 0, f"{where}: {done}"
    errors = sorted({name for kind, name in told if kind == "error"})
    with tenure.open(f"{engine}:{data}", sweep=False) as store:
        report = store.check(specification=True)
        assert report.clean, f"{where}: {report.findings[:5]}"
        there = {(event.type, event.job_id) for event in all_events(store)}
        lost = {(kind, name) for kind, name in told if kind in ("enqueued", "done")} - there
        assert not lost, f"acknowledged and lost, {where}: {json.dumps(sorted(lost))}"
        store.queue("work").enqueue(b"goes on")
    return " ".join(errors) or "none"


def _fails(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
@pytest.mark.parametrize("place", [(folder, "sync_path"), (mmap, "mmap")], ids=["FORMAT", "DURABLE"])
def test_a_store_that_cannot_be_made_says_so(
    engine: str, place: tuple[Any, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it was an OSError."""
    with monkeypatch.context() as patched:
        patched.setattr(*place, _fails)
        with pytest.raises(OpenError, match="Input/output error"):
            tenure.open(f"{engine}:{tmp_path / 'data'}")
    with tenure.open(f"{engine}:{tmp_path / 'data'}", sweep=False) as store:
        assert_sound(store)


def test_lmdb_that_cannot_make_its_databases_says_so(tmp_path: Path) -> None:
    """Once it was an error of the driver."""
    assert trial("lmdb", tmp_path / "1", "inject=fdatasync:error=EIO:when=1+", "the first sync fails") == "OpenError"
