"""The number of Python function calls of a verb on a plain job, which every feature increases a little."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TypeVar

import pytest

import tenure
from tenure.api.queue import Queue

T = TypeVar("T")


def counted(verb: Callable[[], T]) -> tuple[T, int]:
    """The verb's result, and the number of calls of our functions."""
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


def shortest_life(queue: Queue) -> tuple[int, ...]:
    """The calls of an enqueue, a claim and an ack, each the fewest of some: finalizers may run meanwhile."""
    lives = []
    for _ in range(8):
        _, enqueue = counted(lambda: queue.enqueue(b"x"))
        claim, taken = counted(queue.claim)
        _, ack = counted(partial(queue.ack, claim[0]))
        lives.append((enqueue, taken, ack))
    return tuple(map(min, zip(*lives, strict=True)))


def test_a_plain_life_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds allow a few more calls: they vary with the clock and with prepared ids."""
    monkeypatch.delenv("DEBUG_WRITER_LOCK", raising=False)
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", durability="os", sweep=False, listen=False) as store:
        enqueue, claim, ack = shortest_life(store.queue("plain"))
    assert enqueue <= 35, enqueue
    assert claim <= 49, claim
    assert ack <= 36, ack


def test_a_plain_life_is_hardly_longer_where_jobs_were_stored_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new job is behind all segments of its queue, so none is looked for. The bounds are some calls above the others."""
    monkeypatch.delenv("DEBUG_WRITER_LOCK", raising=False)
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", durability="os", sweep=False, listen=False) as store:
        queue = store.queue("plain")
        queue.enqueue_many([b"x"] * 20)
        queue.ack_many(queue.claim(20))
        enqueue, claim, ack = shortest_life(queue)
    assert enqueue <= 39, enqueue
    assert claim <= 60, claim
    assert ack <= 42, ack


def test_a_claim_over_1001_named_queues_is_hardly_longer_than_from_one(tmp_path: Path) -> None:
    """Empty queues are skipped together, wherever the busy one is among them."""
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", durability="os", sweep=False, listen=False) as store:
        busy, quiet = store.queue("busy"), [store.queue(f"q{n}") for n in range(1000)]
        for queue in quiet:
            queue.pause()
            queue.resume()
        busy.enqueue_many([b"x"] * 50)
        queues = [*quiet[:500], busy, *quiet[500:]]
        store.claim(queues)  # learns that they are empty
        for _ in range(3):
            busy.claim()
            store.claim(queues)
        one = min(counted(busy.claim)[1] for _ in range(3))
        many = min(counted(lambda: store.claim(queues))[1] for _ in range(3))
        assert many <= 1.5 * one, (one, many)
        quiet[17].enqueue(b"found")
        found = [store.claim(queues)[0].payload for _ in range(2)]
        assert b"found" in found
