"""A full disk gives a typed error, no acknowledged call is lost, and the store continues once there is room."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.errors import StoreError, TenureError, Unavailable
from tenure.testing.conformance.world import assert_sound, eventually


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tenure-test", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"a tmpfs of 24 MB cannot be mounted here: {mounted.stderr.strip() or 'not permitted'}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def grow_until_full(queue: tenure.Queue) -> tuple[list[str], StoreError]:
    """Enqueue until it is refused. Returns the acknowledged jobs and the error."""
    made: list[str] = []
    for number in range(10_000):
        try:
            made.append(queue.enqueue(b"%d;" % number * 3000).id)
        except StoreError as error:
            return made, error
    raise AssertionError("the disk never got full")


@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_a_full_disk(small_disk: Path, engine: str) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(12 << 20))
    url = f"{engine}:{small_disk / 'data'}"
    store = tenure.open(url, sweep=False)
    queue = store.queue("work")
    first = queue.enqueue(b"first").id
    made, error = grow_until_full(queue)
    assert isinstance(error, Unavailable), repr(error)
    assert "disk is full" in str(error)
    assert made
    for _ in range(3):  # every enqueue is refused while the disk is full
        with pytest.raises(Unavailable):
            queue.enqueue(b"x" * 100_000)
    with contextlib.suppress(TenureError):
        store.close()

    ballast.unlink()
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("work")
        assert_sound(store)
        there = {job.id for job in queue.list("ready", limit=10_000)}
        assert {first, *made} <= there, "acknowledged and lost"
        assert len(there) <= len(made) + 1 + 4, "refused jobs are stored"
        for number, job_id in enumerate(made):
            job = queue.get(job_id)
            assert job is not None
            assert job.payload == b"%d;" % number * 3000
        queue.enqueue(b"with room again")
        claim = queue.claim(limit=1, lease=60)
        assert claim[0].id == first
        queue.ack(claim[0])
        assert_sound(store)


@pytest.mark.parametrize("durability", ["disk", "os"])
def test_rocksdb_goes_on_by_itself_once_there_is_room(small_disk: Path, durability: Any) -> None:
    """The disk is filled and freed three times while threads work: verbs are refused while it is full, then work."""
    ballast = small_disk / "ballast"
    with tenure.open(f"rocksdb:{small_disk / 'data'}", durability=durability, sweep=0.1) as store:
        queue = store.queue("work")
        kept = [queue.enqueue(b"first").id]
        for number in range(3):
            with contextlib.suppress(OSError):  # writes as much as there is room for
                ballast.write_bytes(bytes(12 << 20))
            made, refusals = work_until_full(store, number)
            kept += made
            assert {type(error) for error in refusals} == {Unavailable}
            assert any("space" in str(error) for error in refusals), refusals
            ballast.unlink()
            assert eventually(lambda: works(store)), "the store did not continue"
            assert_sound(store)
            for job_id in kept:
                assert queue.get(job_id) is not None, "acknowledged and lost"
            queue.purge("ready")
            queue.purge("scheduled")
            kept = [queue.enqueue(b"first again").id]
    with tenure.open(f"rocksdb:{small_disk / 'data'}", sweep=False) as store:
        assert_sound(store)
        assert store.queue("work").get(kept[0]) is not None


def works(store: tenure.Store) -> bool:
    queue = store.queue(f"new-{os.urandom(4).hex()}")
    try:
        queue.enqueue(b"with room again")
        queue.ack(queue.claim(lease=60)[0])
        return queue.counts().ready == 0
    except Unavailable:
        return False


def work_until_full(store: tenure.Store, round_number: int) -> tuple[list[str], list[StoreError]]:
    """Four threads enqueue, one of them into a new queue each time, until each was refused."""
    made: list[str] = []
    refusals: list[StoreError] = []

    def run(number: int) -> None:
        for count in range(10_000):
            try:
                if number == 0:
                    store.queue(f"q-{round_number}-{count}").enqueue(b"y" * 5000)
                made.append(store.queue("work").enqueue(b"%d;" % count * 3000).id)
            except StoreError as error:
                refusals.append(error)
                return

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(refusals) == 4, "the disk never got full"
    return made, refusals


HANDLES = """
import os, resource, sys, time, tenure
from tenure.errors import Unavailable
from tenure.storage.engines.rocksdb import log_rotation
log_rotation.LOG_BYTES = dict.fromkeys(log_rotation.LOG_BYTES, 200_000)  # a new log, and so a new handle, often
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
store = tenure.open(sys.argv[1], durability=sys.argv[2], sweep=0.1)
queue = store.queue("work")
made = [queue.enqueue(b"first").id]
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
refused = None
for number in range(2000):
    try:
        made.append(queue.enqueue(b"x" * 5000).id)
    except Unavailable as error:
        refused = error
        break
print("refused", refused)
for handle in taken:
    os.close(handle)
until = time.monotonic() + 30
while True:
    try:
        made.append(queue.enqueue(b"again").id)
        break
    except Unavailable as error:
        if time.monotonic() > until:
            raise
        time.sleep(0.1)
assert all(queue.get(job) is not None for job in made), "acknowledged and lost"
report = store.check()
assert report.clean, report.findings
store.close()
print("works again")
"""


@pytest.mark.parametrize("durability", ["disk", "os"])
def test_a_process_at_its_limit_of_handles(tmp_path: Path, durability: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANDLES, f"rocksdb:{tmp_path / 'data'}", durability],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    refused, works = done.stdout.splitlines()
    assert "Too many open files" in refused
    assert works == "works again"


def test_lmdb_goes_on_by_itself_once_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(12 << 20))
    with tenure.open(f"lmdb:{small_disk / 'data'}", sweep=False) as store:
        queue = store.queue("work")
        made, _ = grow_until_full(queue)
        ballast.unlink()
        made.append(queue.enqueue(b"with room again").id)
        assert_sound(store)
        assert {job.id for job in queue.list("ready", limit=10_000)} == set(made)


@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_a_store_on_a_disk_that_is_full_already(small_disk: Path, engine: str) -> None:
    url = f"{engine}:{small_disk / 'data'}"
    with tenure.open(url, sweep=False) as store:
        made = store.queue("work").enqueue(b"before").id
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb") as out:
        while True:
            out.write(bytes(4096))
            out.flush()
    said = ""
    try:
        with tenure.open(url, sweep=False) as store, contextlib.suppress(Unavailable):
            store.queue("work").enqueue(b"x" * 200_000)
    except StoreError as error:  # it opens and works, or gives the reason
        said = str(error)
    assert said == "" or "space" in said or "full" in said, said
    ballast.unlink()
    with tenure.open(url, sweep=False) as store:
        assert store.queue("work").get(made) is not None
        assert_sound(store)
