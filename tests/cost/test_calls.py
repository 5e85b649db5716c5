"""How long the way of a verb is: Python functions that a plain job goes through. Every feature lengthens it a little."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TypeVar

import pytest

import tenure

T = TypeVar("T")


def counted(verb: Callable[[], T]) -> tuple[T, int]:
    """What the verb returns, and how many functions of ours were called."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        if event == "call" and "/tenure/" in frame.f_code.co_filename:
            calls += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        return verb(), calls
    finally:
        sys.setprofile(before)


def test_a_plain_life_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few calls more than it takes: whether a millisecond has passed, and ids are made ahead, is chance."""
    monkeypatch.delenv("DEBUG_WRITER_LOCK", raising=False)
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", durability="os", sweep=False, listen=False) as store:
        queue = store.queue("plain")
        for _ in range(3):
            queue.enqueue(b"x")
            queue.ack(next(iter(queue.claim())))
        _, enqueue = counted(lambda: queue.enqueue(b"x"))
        claim, taken = counted(queue.claim)
        _, ack = counted(lambda: queue.ack(claim[0]))
    assert enqueue <= 40, enqueue
    assert taken <= 59, taken
    assert ack <= 39, ack


def test_a_claim_over_1001_named_queues_is_hardly_longer_than_from_one(tmp_path: Path) -> None:
    """Queues that have nothing are passed over all at once, wherever among them the busy one is."""
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", durability="os", sweep=False, listen=False) as store:
        busy, quiet = store.queue("busy"), [store.queue(f"q{n}") for n in range(1000)]
        for queue in quiet:
            queue.pause()
            queue.resume()
        busy.enqueue_many([b"x"] * 50)
        queues = [*quiet[:500], busy, *quiet[500:]]
        store.claim(queues)  # sees that they are quiet
        for _ in range(3):
            busy.claim()
            store.claim(queues)
        one = min(counted(busy.claim)[1] for _ in range(3))
        many = min(counted(lambda: store.claim(queues))[1] for _ in range(3))
        assert many <= 1.5 * one, (one, many)
        quiet[17].enqueue(b"found")
        found = [store.claim(queues)[0].payload for _ in range(2)]
        assert b"found" in found
