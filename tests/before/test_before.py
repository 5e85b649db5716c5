"""Stores written by earlier releases open, and work. `leasehold-*`: e286b7d, the last release of that name."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

import tenure

#: The receipt of a job of queue "plain" that was leased when the store was closed.
LEASED = {
    "rocksdb": "01a1e29b874277be96780be93a1abcf1.01a1e29b874478f989d50a6482189074.1",
    "lmdb": "01a1e29b895b76ad8698d36b3fc49a4d.01a1e29b896071248ee3c65af044b2bb.1",
}


@pytest.mark.parametrize("engine", LEASED)
def test_a_store_of_e286b7d_opens_and_works(engine: str, tmp_path: Path):
    with tarfile.open(Path(__file__).parent / f"leasehold-{engine}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
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
