"""A store's folder: refusals that change nothing, locks, and permissions."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tenure.errors import FormatError, OpenError, StoreLocked
from tenure.storage.folder import Folder, expand
from tenure.storage.keyspace import FORMAT


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


# ── paths ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_home_and_variables_are_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PLACE", "somewhere")
    monkeypatch.chdir(tmp_path)
    assert expand("~/data") == tmp_path / "data"
    assert expand("$HOME/data") == tmp_path / "data"
    assert expand("${HOME}/$PLACE") == tmp_path / "somewhere"
    assert expand("data") == tmp_path / "data"


@pytest.mark.parametrize("path", ["", "a\0b", "$NOT_SET_ANYWHERE/data"])
def test_unusable_paths_are_refused(path: str) -> None:
    with pytest.raises(OpenError):
        expand(path)


# ── refusals change nothing ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_or_empty_folder_is_accepted(tmp_path: Path) -> None:
    assert not Folder(str(tmp_path / "a" / "b"), "rocksdb").check()
    assert not Folder(str(tmp_path), "rocksdb").check()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_other_things_in_it_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(FormatError, match="holiday"):
        Folder(str(tmp_path), "rocksdb").check()
    (tmp_path / "OWNER").write_bytes(b"")
    with pytest.raises(FormatError, match="holiday"):
        Folder(str(tmp_path), "rocksdb").check()
    assert sorted(tree(tmp_path)) == ["OWNER", "holiday.jpg"]


def test_someone_elses_database_folder_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "precious").write_bytes(b"x")
    with pytest.raises(FormatError):
        Folder(str(tmp_path), "rocksdb").check()


def test_a_store_half_made_is_made_again(tmp_path: Path) -> None:
    """The process that created it was killed: the lock file is its first file, FORMAT its last."""
    folder = Folder(str(tmp_path), "rocksdb")
    folder.lock()
    folder.unlock()
    (tmp_path / "DURABLE").write_bytes(bytes(64))
    (tmp_path / "FORMAT.new").write_text("lea")
    assert not Folder(str(tmp_path), "rocksdb").check()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (f"tenure {FORMAT + 1} rocksdb", "newer"),
        ("tenure 0 rocksdb", "upgrade"),
        (f"tenure {FORMAT} lmdb", "lmdb:"),
        (f"tenure {FORMAT}", "damaged"),
        ("something else entirely", "damaged"),
        ("", "damaged"),
        ("tenure -1 rocksdb", "damaged"),
        ("tenure \u0661 rocksdb", "damaged"),
    ],
)
def test_other_formats_are_refused_and_said(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "FORMAT").write_text(content)
    before = tree(tmp_path)
    with pytest.raises(FormatError, match=says):
        Folder(str(tmp_path), "rocksdb").check()
    assert tree(tmp_path) == before


def test_a_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x")
    with pytest.raises(OpenError, match="is a file"):
        Folder(str(tmp_path / "data"), "rocksdb").check()
    with pytest.raises(OpenError):
        Folder(str(tmp_path / "data" / "below"), "rocksdb").check()


def test_a_written_format_is_read_back(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path), "lmdb")
    folder.write_format()
    assert folder.check()
    assert (tmp_path / "FORMAT").read_text() == f"tenure {FORMAT} lmdb\n"
    assert not (tmp_path / "FORMAT.new").exists()


# ── the lock ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_owner_at_a_time(tmp_path: Path) -> None:
    first, second = Folder(str(tmp_path), "rocksdb"), Folder(str(tmp_path), "rocksdb")
    assert first.lock()
    owner = json.loads((tmp_path / "OWNER").read_text())
    assert (owner["pid"], owner["host"]) == (os.getpid(), socket.gethostname())
    with pytest.raises(StoreLocked, match="this process"):
        second.lock()
    first.unlock()
    first.unlock()
    assert second.lock()
    second.unlock()


def test_a_shared_lock_tells_whether_it_was_the_first(tmp_path: Path) -> None:
    first, second, third = (Folder(str(tmp_path), "lmdb") for _ in range(3))
    assert first.lock(shared=True)
    first.share()
    assert not second.lock(shared=True)
    first.unlock()
    assert not third.lock(shared=True)
    second.unlock()
    third.unlock()
    assert first.lock(shared=True)
    first.unlock()


def test_the_names_of_new_folders_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    fsync = os.fsync

    def record(fd: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    folder = Folder(str(tmp_path / "a" / "b"), "rocksdb")
    folder.lock()
    folder.unlock()
    assert {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")} <= synced


def test_a_longer_owner_record_is_overwritten_completely(tmp_path: Path) -> None:
    (tmp_path / "OWNER").write_bytes(b"x" * 500)
    folder = Folder(str(tmp_path), "rocksdb")
    folder.lock()
    assert json.loads((tmp_path / "OWNER").read_bytes())["pid"] == os.getpid()
    folder.unlock()


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from tenure.storage.folder import Folder\n"
        "folder = Folder(sys.argv[1], 'rocksdb')\n"
        "folder.lock()\n"
        "print('locked', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        folder = Folder(str(tmp_path), "rocksdb")
        with pytest.raises(StoreLocked, match=f"process {process.pid} on "):
            folder.lock()
        process.kill()
        process.wait()
        assert folder.lock()
        folder.unlock()


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path), "rocksdb")
    folder.lock()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"alive")
        time.sleep(30)
        os._exit(0)
    try:
        assert os.read(read, 5) == b"alive"
        folder.unlock()
        again = Folder(str(tmp_path), "rocksdb")
        assert again.lock()
        again.unlock()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)


# ── who may use it ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mask", [0o000, 0o022], ids=oct)
@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_a_store_is_for_its_user_alone(tmp_path: Path, engine: str, mask: int) -> None:
    """With any umask. Files that the driver makes later are in a folder of 0700, and get 0600 at the next sweep."""
    code = (
        "import os, sys, tenure\n"
        "os.umask(int(sys.argv[2]))\n"
        "with tenure.open(sys.argv[1], sweep=False) as store:\n"
        "    store.queue('work').enqueue(b'secret')\n"
        "    os.chdir(sys.argv[3])\n"
        "    store.snapshot('copy')\n"
        "    store.sweep()\n"
        "    for top in (sys.argv[1].partition(':')[2], 'copy'):\n"
        "        for folder, _, files in os.walk(top):\n"
        "            print(oct(os.stat(folder).st_mode & 0o777), folder)\n"
        "            for name in files:\n"
        "                print(oct(os.stat(os.path.join(folder, name)).st_mode & 0o777), name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, f"{engine}:{tmp_path / 'data'}", str(mask), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    modes = {line for line in done.stdout.splitlines() if not line.startswith(("0o700 /", "0o700 copy", "0o600 "))}
    assert modes == set()
    assert done.stdout.count("0o600 ") >= 8


def test_a_folder_that_was_open_to_others_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "data" / "db").mkdir(parents=True)
    (tmp_path / "data" / "OWNER").touch()
    for place in (tmp_path / "data", tmp_path / "data" / "db"):
        place.chmod(0o755)
    folder = Folder(str(tmp_path / "data"), "rocksdb")
    folder.lock()
    for place in (tmp_path / "data", tmp_path / "data" / "db"):
        assert place.stat().st_mode & 0o777 == 0o700
    folder.unlock()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("inside", ["", "db", "OWNER"])
def test_a_folder_prepared_by_another_user_is_refused(tmp_path: Path, inside: str) -> None:
    data = tmp_path / "data"
    folder = Folder(str(data), "rocksdb")
    folder.lock()
    folder.unlock()
    os.chown(data / inside, 12345, 12345)
    with pytest.raises(OpenError, match=r"belongs to user 12345.*chown"):
        Folder(str(data), "rocksdb").check()
