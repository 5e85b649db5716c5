"""Stores written by earlier releases are upgraded, open, and work. `leasehold-*`: e286b7d, the last release of that name."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

import tenure
from tenure.cli.format_upgrade import found_format, steps_from
from tenure.errors import FormatError
from tenure.queueing import upgrades
from tenure.storage.folder import Folder

#: The receipt of a job of queue "plain" that was leased when the store was closed.
LEASED = {
    "rocksdb": "01a1e29b874277be96780be93a1abcf1.01a1e29b874478f989d50a6482189074.1",
    "lmdb": "01a1e29b895b76ad8698d36b3fc49a4d.01a1e29b896071248ee3c65af044b2bb.1",
}


def unpacked(engine: str, tmp_path: Path) -> Folder:
    """A store of format 1, as bytes."""
    with tarfile.open(Path(__file__).parent / f"leasehold-{engine}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return Folder(str(tmp_path), engine)


def upgrade(folder: Folder) -> list[tuple[int, int | None]]:
    told: list[tuple[int, int | None]] = []
    for step in steps_from(found_format(folder)):
        step.run(folder, lambda done, of: told.append((done, of)))
    return told


@pytest.mark.parametrize("engine", LEASED)
def test_a_store_of_format_1_is_refused_unchanged_until_it_is_upgraded(engine: str, tmp_path: Path):
    folder = unpacked(engine, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(FormatError, match="tenure upgrade"):
        tenure.open(f"{engine}:{tmp_path}")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    told = upgrade(folder)
    assert told[-1][0] == told[-1][1] == 70  # every job of the store
    assert (tmp_path / "FORMAT").read_text() == f"tenure 2 {engine}\n"
    assert steps_from(found_format(folder)) == []


@pytest.mark.parametrize("engine", LEASED)
def test_an_upgrade_that_was_cut_off_goes_on(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = unpacked(engine, tmp_path)
    monkeypatch.setattr(upgrades, "_CHUNK", 20)

    def cut_off(done: int, of: int | None) -> None:
        if done >= 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        steps_from(1)[0].run(folder, cut_off)
    # Releases that know format 1 alone read three words there: they take it for damage, and change nothing.
    assert (tmp_path / "FORMAT").read_text() == f"tenure 2 {engine} upgrading\n"
    with pytest.raises(FormatError, match="half upgraded"):
        tenure.open(f"{engine}:{tmp_path}")
    told = upgrade(folder)
    assert told[0][0] == 20
    assert told[-1][0] == 30  # the first forty were done before
    with tenure.open(f"{engine}:{tmp_path}", sweep=False) as store:
        assert store.check().ok
        for info in store.queues():
            queue = store.queue(info.queue, info.tenant)
            for state in ("ready", "scheduled", "leased", "done", "dead"):
                for job in queue.list(state):
                    assert store.get(job.id) == job


@pytest.mark.parametrize("engine", LEASED)
def test_a_store_of_e286b7d_is_upgraded_and_works(engine: str, tmp_path: Path):
    upgrade(unpacked(engine, tmp_path))
    with tenure.open(f"{engine}:{tmp_path}", sweep=False) as store:
        assert store.check().ok
        emails, plain = store.queue("emails", tenant="acme"), store.queue("plain")
        counts = emails.counts()
        assert (counts.ready, counts.scheduled, counts.leased, counts.done, counts.dead) == (43, 1, 14, 6, 1)
        assert emails.policy().max_waiting == 10_000
        plain.ack(LEASED[engine])  # a lease outlives the release that gave it
        assert [d.payload for d in plain.claim(limit=10)] == [b"single %d" % n for n in range(1, 5)]
        again = emails.enqueue(b"keyed", key="order-17")
        assert again.duplicate
        assert emails.replay().count == 1
        claim = emails.claim(limit=100)
        payloads = {d.payload for d in claim}
        assert len(payloads) == 44
        assert b"large" * 100_000 in payloads
        assert len(emails.ack_many(claim).done) == 44
        assert store.check().ok
