"""The record in OWNER: what it tells other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.errors import StoreLocked
from tenure.storage import ownership
from tenure.storage.folder import Folder

HOLD = (
    "import sys\n"
    "from tenure.storage.folder import Folder\n"
    "folder = Folder(sys.argv[1], 'rocksdb')\n"
    "folder.lock(listens=sys.argv[2] == 'True')\n"
    "print('locked', flush=True)\n"
    "sys.stdin.readline()\n"
)


def test_a_process_knows_its_own_record_by_its_id() -> None:
    made, written = ownership.record(listens=True)
    assert ownership.described(written)[0] == "this process"
    assert not ownership.lets_in(written)
    ownership.withdraw(made)
    assert ownership.described(written)[0] != "this process"
    assert ownership.lets_in(written), "the same process, but no longer the owner: another has taken the folder"


def test_another_container_with_the_same_process_id(tmp_path: Path) -> None:
    """Both are process 1 of their own pid namespace, on one volume."""
    theirs = Folder(str(tmp_path), "rocksdb")
    theirs.lock()
    written = json.loads((tmp_path / "OWNER").read_bytes())
    written |= {"place": "the same boot pid:[4026532000]", "id": "f" * 32, "listens": False}
    (tmp_path / "OWNER").write_text(json.dumps(written))
    with pytest.raises(StoreLocked, match="another container") as locked:
        Folder(str(tmp_path), "rocksdb").lock()
    assert "this process " not in str(locked.value).replace("this process runs", "")
    assert f"kill {os.getpid()}" not in str(locked.value), "that would be another process here"
    assert not ownership.lets_in(json.dumps(written).encode())
    assert ownership.lets_in(json.dumps(written | {"listens": True}).encode())
    theirs.unlock()


def test_pid_namespaces_for_real(tmp_path: Path) -> None:
    """Process 1 of one pid namespace has the folder; process 1 of another is told so correctly."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c"]
    if subprocess.run([*unshare, ""], capture_output=True).returncode != 0:
        pytest.skip("pid namespaces cannot be made here")
    with subprocess.Popen(
        [*unshare, HOLD, str(tmp_path), "False"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "locked\n"
        assert json.loads((tmp_path / "OWNER").read_bytes())["pid"] == 1
        second = subprocess.run([*unshare, HOLD, str(tmp_path), "False"], capture_output=True, text=True, timeout=60)
        first.communicate("\n", timeout=60)
    assert second.returncode != 0
    assert "in another container" in second.stderr
    assert "in use by this process" not in second.stderr


def test_the_record_of_an_ended_owner_is_ignored(tmp_path: Path) -> None:
    """Its process id may be reused: its record says nothing about the process that holds the lock now."""
    done = subprocess.run(
        [sys.executable, "-c", HOLD + "import os\nos._exit(0)\n", str(tmp_path), "False"],
        input="\n",
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    left = (tmp_path / "OWNER").read_bytes()
    assert json.loads(left)["listens"] is False
    assert ownership.lets_in(left), "the next owner may listen: look again"
    assert ownership.described(left)[0] == "another process"


def test_unlocking_clears_the_record(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path), "rocksdb")
    folder.lock()
    folder.unlock()
    assert (tmp_path / "OWNER").read_bytes().strip() == b""


@pytest.mark.parametrize("written", [b"", b"{", b"[]", b"1", b'{"pid": "x"}', b'{"pid": 1, "since": "y", "host": "h"}'])
def test_an_unreadable_record_means_another_process(written: bytes) -> None:
    assert ownership.described(written)[0] == "another process"
    assert ownership.lets_in(written)


def test_a_record_of_an_older_version_is_known_by_the_process_id() -> None:
    made, written = ownership.record(listens=False)
    older = json.loads(written)
    del older["id"]
    assert ownership.described(json.dumps(older).encode())[0] == "this process"
    other = older | {"pid": os.getppid()}
    assert ownership.described(json.dumps(other).encode())[0] != "this process"
    ownership.withdraw(made)


def test_a_folder_whose_owner_file_is_removed_while_it_is_locked_is_locked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removed the file between opening and locking it: a lock on it would exclude nobody."""
    lock = Folder._lock
    removed: list[bool] = []

    def racing(self: Folder, fd: int, shared: bool) -> bool:
        if not removed:
            removed.append(True)
            (tmp_path / "OWNER").unlink()
        return lock(self, fd, shared)

    monkeypatch.setattr(Folder, "_lock", racing)
    folder = Folder(str(tmp_path), "rocksdb")
    folder.share()  # not locked yet: nothing to share
    folder.lock()
    with pytest.raises(StoreLocked):
        Folder(str(tmp_path), "rocksdb").lock()
    folder.unlock()
