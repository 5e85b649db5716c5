"""Opening and closing: a refused opening raises a clear error, and changes nothing on disk."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

import tenure
from tenure.api.queue import Queue
from tenure.errors import (
    FormatError,
    InvalidArgument,
    OpenError,
    StoreClosed,
    StoreLocked,
    TenureError,
    UnknownEngine,
)
from tenure.storage.keyspace import FORMAT
from tenure.testing.conformance.processes import Child
from tenure.testing.conformance.world import World, assert_sound, claimed, fill, footprint, ids, seen
from tenure.testing.harness import Harness


def _files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def foldered(harness: Harness, tmp_path: Path) -> Harness:
    if harness.url_at(tmp_path) is None:
        pytest.skip("this store is not a folder")
    return harness


def _url_at(harness: Harness, path: Path) -> str:
    url = harness.url_at(path)
    assert url is not None
    return url


def test_an_unknown_engine() -> None:
    for url in ("nosuch:./data", "sqlite:///x", ":x", "rocks db:x"):
        with pytest.raises(TenureError) as unknown:
            tenure.open(url, sweep=False)
        assert isinstance(unknown.value, UnknownEngine | tenure.SettingsError), unknown.value
    with pytest.raises(UnknownEngine, match="nosuch"):
        tenure.open("nosuch:./data", sweep=False)


def test_a_path_that_is_a_file(foldered: Harness, tmp_path: Path) -> None:
    file = tmp_path / "a-file"
    file.write_text("precious")
    for path in (file, file / "below"):
        with pytest.raises(OpenError, match="a-file"):
            tenure.open(_url_at(foldered, path), sweep=False)
    assert file.read_text() == "precious"


def test_a_folder_that_is_someone_elses(foldered: Harness, tmp_path: Path) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "thesis.tex").write_text("precious")
    before = _files(folder)
    with pytest.raises(FormatError):
        tenure.open(_url_at(foldered, folder), sweep=False)
    assert _files(folder) == before


def test_a_path_that_cannot_be_one(foldered: Harness, tmp_path: Path) -> None:
    for path in (tmp_path / "a\0b", tmp_path / "$TENURE_NO_SUCH_VARIABLE" / "x"):
        with pytest.raises(TenureError):
            tenure.open(_url_at(foldered, path), sweep=False)
    assert list(tmp_path.glob("[$]*")) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_one_may_not_write_to(foldered: Harness, tmp_path: Path) -> None:
    folder = tmp_path / "readonly"
    folder.mkdir(mode=0o500)
    with pytest.raises(OpenError):
        tenure.open(_url_at(foldered, folder / "data"), sweep=False)


@pytest.mark.parametrize("version", ["1", "99", "0"])
def test_another_format_is_refused_and_nothing_changed(foldered: Harness, tmp_path: Path, version: str) -> None:
    folder = tmp_path / "other-format"
    url = _url_at(foldered, folder)
    with tenure.open(url, sweep=False) as store:
        store.queue("work").enqueue(b"x")
    marker = folder / "FORMAT"
    marker.write_text(marker.read_text().replace(f" {FORMAT} ", f" {version} "))
    before = _files(folder)
    with pytest.raises(FormatError, match=version):
        tenure.open(url, sweep=False)
    assert _files(folder) == before
    marker.write_text(marker.read_text().replace(f" {version} ", f" {FORMAT} "))
    with tenure.open(url, sweep=False) as store:
        assert store.queue("work").counts().ready == 1


def test_a_damaged_format_is_refused(foldered: Harness, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    url = _url_at(foldered, folder)
    tenure.open(url, sweep=False).close()
    for damaged in ("", "tenure", "tenure x y", "another 1 rocksdb", "tenure 1 nosuch\n", "\xff\xfe"):
        (folder / "FORMAT").write_text(damaged)
        with pytest.raises(FormatError):
            tenure.open(url, sweep=False)


def test_a_store_one_process_owns_says_who_holds_it(live: World) -> None:
    if live.harness.url is None or live.store.traits.scope != "process":
        pytest.skip("this store has no owner")
    live.queue().enqueue(b"x")
    with Child(live.harness.url, "drain", argument=1) as other:
        answer = other.hear()
    assert answer["error"] == "StoreLocked"
    assert str(os.getpid()) in answer["message"]
    with pytest.raises(StoreLocked):
        live._open()
    assert live.queue().counts().ready == 1
    live.reopen()
    assert live.queue().counts().ready == 1


def test_the_lock_goes_with_its_holder(live: World) -> None:
    if live.harness.url is None or live.store.traits.scope != "process":
        pytest.skip("this store has no owner")
    live.queue().enqueue(b"x")
    live.store.close()
    with Child(live.harness.url, "hold", argument=600) as other:
        (receipt,) = other.answer()
        with pytest.raises(StoreLocked) as locked:
            live._open()
        assert str(other.pid) in str(locked.value)
        other.kill()
    live.store = live._open()
    live.queue().ack(receipt)


# ── closing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_closing_twice_is_fine(world: World) -> None:
    world.store.close()
    world.store.close()
    world.store = world._open()


def test_a_closed_store_refuses_everything(world: World) -> None:
    queue = world.queue()
    job_id = queue.enqueue(b"x").id
    delivery = claimed(queue)
    store = world.store
    store.close()
    for call in (
        lambda: queue.enqueue(b"y"), queue.claim, lambda: queue.ack(delivery), lambda: queue.nack(delivery),
        lambda: queue.extend(delivery, 5), lambda: queue.get(job_id), queue.counts, lambda: queue.list("ready"),
        lambda: queue.timeline(job_id), lambda: queue.wait_for(job_id), queue.replay, lambda: queue.cancel(job_id),
        queue.purge, queue.pause, store.queues, store.sweep, store.events, store.check, store.cleanup, store.upcoming,
    ):  # fmt: skip
        with pytest.raises(StoreClosed):
            call()
    world.store = world._open()


def test_with_closes(world: World) -> None:
    with world.store as store:
        store.queue("work").enqueue(b"x")
    with pytest.raises(StoreClosed):
        store.queue("work").counts()
    world.store = world._open()


def test_a_store_says_what_it_is(world: World) -> None:
    store = world.store
    assert store.durability == store.traits.durability
    assert store.durability in {"disk", "os", "memory"}
    assert store.traits.scope in {"process", "host", "cluster"}
    assert (store.durability == "memory") or world.harness.persistent
    assert store.url


def test_no_store_promises_more_than_it_keeps(harness: Harness) -> None:
    with contextlib.closing(harness.open()) as store:
        if store.durability == "disk":
            pytest.skip("there is no more to ask for")
        with pytest.raises(TenureError):
            tenure.open(store.url, durability="disk", sweep=False)


def test_opening_again_and_again(world: World) -> None:
    made = []
    for turn in range(5):
        made += fill(world.queue(), 3)
        world.reopen()
        assert world.queue().counts().ready == 3 * (turn + 1)
    assert sorted(ids(world.queue().claim(limit=100))) == sorted(made)


# ── snapshots ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _work(queue: Queue) -> str:
    fill(queue, 5)
    claim = queue.claim(limit=3, lease=600)
    queue.ack(claim[0])
    queue.fail(claim[1], "broken")
    return claim[2].receipt


def test_a_snapshot_is_a_store(live: World, tmp_path: Path) -> None:
    url = live.harness.url_at(tmp_path / "copy")
    if url is None:
        with pytest.raises(InvalidArgument):
            live.store.snapshot(tmp_path / "copy")
        return
    receipt = _work(live.queue())
    before = footprint(live.store)
    live.store.snapshot(tmp_path / "copy")
    live.queue().ack(receipt)
    live.queue().enqueue(b"after the snapshot")
    with tenure.open(url, sweep=False) as copy:
        assert footprint(copy) == before
        assert_sound(copy)
        assert seen(copy.queue("work"), receipt.split(".")[0]).state == "leased"
        copy.queue("work").ack(receipt)
        assert_sound(copy)


def test_a_snapshot_overwrites_nothing(live: World, tmp_path: Path) -> None:
    target = tmp_path / "there"
    target.mkdir()
    (target / "precious").write_text("precious")
    fill(live.queue(), 1)
    with pytest.raises(TenureError):
        live.store.snapshot(target)
    assert [p.name for p in target.iterdir()] == ["precious"]
    fill(live.queue(), 1)
