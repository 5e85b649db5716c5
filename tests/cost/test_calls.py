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
    assert enqueue <= 47, enqueue
    assert taken <= 66, taken
    assert ack <= 45, ack
