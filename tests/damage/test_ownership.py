"""Ownership: a second process learns who has the store, and a killed owner does not block the next."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure.backends import joined
from tenure.errors import StoreLocked
from tenure.testing.conformance.world import assert_sound

CODE = """
import sys, tenure
store = tenure.open(sys.argv[1], sweep=False, listen=False)
print(store.queue("work").enqueue(b"mine").id, flush=True)
sys.stdin.readline()
store.close()
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"rocksdb:{tmp_path / 'data'}"


@pytest.fixture
def owner(url: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the store open."""
    with subprocess.Popen(
        [sys.executable, "-c", CODE, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.made = process.stdout.readline().strip()  # type: ignore[attr-defined]
        assert process.made  # type: ignore[attr-defined]
        yield process
        process.kill()


def files(url: str) -> dict[str, bytes]:
    folder = Path(url.removeprefix("rocksdb:"))
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_process_learns_who_has_the_store(url: str, owner: subprocess.Popen[str]) -> None:
    before = files(url)
    with pytest.raises(StoreLocked) as locked:
        tenure.open(url, sweep=False)
    assert str(owner.pid) in str(locked.value)
    assert socket.gethostname() in str(locked.value)
    assert f"process {owner.pid}" in locked.value.owner
    assert locked.value.path == url.removeprefix("rocksdb:")
    assert "kill" in str(locked.value)  # what to do
    assert files(url) == before, "a refusal changed something"
    owner.communicate("done\n", timeout=30)
    assert owner.returncode == 0, "the owner was disturbed"
    with tenure.open(url, sweep=False) as store:
        assert store.queue("work").counts().ready == 1


@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_a_second_opening_in_one_process_has_its_own_message(tmp_path: Path, engine: str) -> None:
    url = f"{engine}:{tmp_path / 'data'}"
    with tenure.open(url, sweep=False) as store:
        with pytest.raises(StoreLocked, match="this process") as locked:
            tenure.open(url, sweep=False)
        assert "safe for threads" in str(locked.value)
        store.queue("work").enqueue(b"still open")
    with tenure.open(url, sweep=False) as store:
        assert store.queue("work").counts().ready == 1


def test_a_killed_owner_leaves_nothing_in_the_way(url: str, owner: subprocess.Popen[str]) -> None:
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait(30)
    with tenure.open(url, sweep=False) as store:
        assert store.queue("work").get(owner.made) is not None  # type: ignore[attr-defined]
        assert_sound(store)


def test_an_owner_that_cannot_be_read_is_another_process(
    url: str, owner: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined, "PATIENCE", 0.5)  # the caller waits a minute for an owner that may be about to listen
    Path(url.removeprefix("rocksdb:"), "OWNER").write_bytes(b"\xff\0{")
    with pytest.raises(StoreLocked, match="another process"):
        tenure.open(url, sweep=False)
