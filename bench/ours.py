"""Tenure as a contender: the public API, as a user calls it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import tenure
from bench.lives import Client


class Ours:
    def __init__(self, path: Path, durability: Literal["disk", "os"], engine: str = "rocksdb") -> None:
        self.name = f"Tenure ({engine})"
        self.note = "one process" if engine == "rocksdb" else "several processes"
        self.store = tenure.open(f"{engine}:{path}", durability=durability)

    def client(self) -> Client:
        return _Client(self.store.queue("bench"))

    def tidy(self) -> None:
        pass

    def close(self) -> None:
        self.store.close()


class _Client:
    def __init__(self, queue: tenure.Queue) -> None:
        self.queue = queue

    def enqueue(self, payloads: Sequence[bytes]) -> object:
        if len(payloads) == 1:
            return self.queue.enqueue(payloads[0])
        return self.queue.enqueue_many(payloads)

    def claim(self, limit: int) -> Sequence[Any]:
        return self.queue.claim(limit).deliveries

    def ack(self, claimed: Sequence[Any]) -> object:
        if len(claimed) > 1:
            return self.queue.ack_many(claimed)
        self.queue.ack(claimed[0])
        return None

    def close(self) -> None:
        pass
