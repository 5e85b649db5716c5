"""A full disk: a typed error, nothing acknowledged is lost, and with room the store goes on."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure.errors import StoreError, TenureError, Unavailable
from tenure.testing.conformance.world import assert_sound


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
    """Enqueue until it is refused; what was acknowledged, and how it was refused."""
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
    for _ in range(3):  # it says so as long as it lasts, and never takes what it cannot keep
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
        assert len(there) <= len(made) + 1 + 4, "what was refused is there, more than once"
        for number, job_id in enumerate(made):
            job = queue.get(job_id)
            assert job is not None
            assert job.payload == b"%d;" % number * 3000
        queue.enqueue(b"with room again")
        claim = queue.claim(limit=1, lease=60)
        assert claim[0].id == first
        queue.ack(claim[0])
        assert_sound(store)


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
    except StoreError as error:  # it opens and serves, or says why not
        said = str(error)
    assert said == "" or "space" in said or "full" in said, said
    ballast.unlink()
    with tenure.open(url, sweep=False) as store:
        assert store.queue("work").get(made) is not None
        assert_sound(store)
