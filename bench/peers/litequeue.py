"""litequeue: a small queue on SQLite. Messages are locked, then marked done; done ones are pruned between rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.lives import Client
from bench.peers.server_process import module


class Lite:
    name = "litequeue (SQLite)"

    def __init__(self, folder: Path, durability: str) -> None:
        litequeue = module("litequeue", "pip install -r requirements/bench.txt")
        folder.mkdir(parents=True, exist_ok=True)
        level = "FULL" if durability == "disk" else "NORMAL"
        self.note = f"WAL, synchronous {level.lower()}; locks without an expiry; text only"
        self._queue = litequeue.LiteQueue(str(folder / "queue.db"))
        self._queue.conn.execute(f"PRAGMA synchronous = {level}")

    def client(self) -> Client:
        return _Client(self._queue)

    def tidy(self) -> None:
        self._queue.prune()

    def close(self) -> None:
        self._queue.close()


class _Client:
    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def enqueue(self, payloads: Sequence[bytes]) -> object:
        for payload in payloads:
            self._queue.put(payload.decode())
        return None

    def claim(self, limit: int) -> Sequence[Any]:
        return [self._queue.pop() for _ in range(limit)]

    def ack(self, claimed: Sequence[Any]) -> object:
        for message in claimed:
            self._queue.done(message.message_id)
        return None

    def close(self) -> None:
        pass
