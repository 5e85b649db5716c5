"""Huey on SQLite: a task queue of one process or several. Its storage is called directly, without tasks.

It has no leases: taking a job deletes it, and a worker that dies has lost it. So a life is two commits, not three.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.lives import Client
from bench.peers.server_process import module


class Huey:
    name = "Huey (SQLite)"

    def __init__(self, folder: Path, durability: str) -> None:
        storage = module("huey.storage", "pip install -r requirements/bench.txt")
        folder.mkdir(parents=True, exist_ok=True)
        level = "FULL" if durability == "disk" else "NORMAL"
        self.note = f"WAL, synchronous {level.lower()}; no leases: taking a job deletes it"
        self._storage = storage.SqliteStorage("bench", str(folder / "huey.db"))
        # Its own `fsync=False` means synchronous off, which a power cut may leave unreadable: less than `os`.
        self._storage.conn.execute(f"PRAGMA synchronous = {level}")

    def client(self) -> Client:
        return _Client(self._storage)

    def tidy(self) -> None:
        pass

    def close(self) -> None:
        self._storage.close()


class _Client:
    def __init__(self, storage: Any) -> None:
        self._storage = storage

    def enqueue(self, payloads: Sequence[bytes]) -> object:
        for payload in payloads:
            self._storage.enqueue(payload)
        return None

    def claim(self, limit: int) -> Sequence[Any]:
        return [self._storage.dequeue() for _ in range(limit)]

    def ack(self, claimed: Sequence[Any]) -> object:
        return None

    def close(self) -> None:
        pass
