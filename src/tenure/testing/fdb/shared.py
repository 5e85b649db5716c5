"""A simulated cluster that other processes reach through its cluster file, like clients of a real cluster.

    with shared.serve(cluster, folder) as cluster_file:     # in the process that has the cluster
        …                                                   # elsewhere: tenure.testing.fdb.open(cluster_file)

Transactions run in the client, as in FoundationDB; the socket carries the same requests as its network (read version,
reads at a version, commits, watches, boundaries of shards). The cluster's process draws the faults. It is a simulation:
one process, one socket, no disk.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from tenure.testing.fdb import errors
from tenure.testing.fdb.cluster import Cluster, Committed, Mutation, Request
from tenure.testing.fdb.errors import FDBError
from tenure.testing.fdb.faults import Faults
from tenure.testing.fdb.futures import Future

#: The prefix of a simulated cluster's file; the path of its socket follows.
SCHEME = "simulated:"
_SIZE = struct.Struct(">I")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def _send(connection: socket.socket, message: object) -> None:
    body = _encode(message)
    connection.sendall(_SIZE.pack(len(body)) + body)


def _receive(connection: socket.socket) -> Any:
    (size,) = _SIZE.unpack(_exactly(connection, _SIZE.size))
    return _decode(_exactly(connection, size))


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            raise ConnectionError("the other side is gone")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


# ── the cluster's side ───────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def serve(cluster: Cluster, folder: Path) -> Iterator[str]:
    """Serve other processes of this host. Yields the path of a cluster file."""
    path = folder / "fdb.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)
    cluster_file = folder / "fdb.cluster"
    cluster_file.write_text(f"{SCHEME}{path}")
    threading.Thread(target=_accept, args=(listener, cluster), daemon=True).start()
    try:
        yield str(cluster_file)
    finally:
        cluster_file.unlink()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _accept(listener: socket.socket, cluster: Cluster) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # the listener was closed
        threading.Thread(target=_answer, args=(connection, cluster), daemon=True).start()


def _answer(connection: socket.socket, cluster: Cluster) -> None:
    calls: dict[str, Callable[..., Any]] = {
        "read_version": cluster.read_version,
        "get": lambda version, key: _checked(cluster, version).get(version, key),
        "get_range": lambda version, *rest: _checked(cluster, version).get_range(version, *rest),
        "boundaries": cluster.boundaries,
        "commit": lambda *parts: cluster.commit(_request(*parts)),
        "watch": lambda key, value: _watched(cluster, key, value),
    }
    with connection, contextlib.suppress(OSError):
        while True:
            name, *arguments = _receive(connection)
            try:
                answer: tuple[int, Any] = (0, calls[name](*arguments))
            except FDBError as error:
                answer = (error.code, None)
            _send(connection, answer)


def _checked(cluster: Cluster, version: int) -> Cluster:
    """The cluster. Raises FDBError if it cannot be read at that version."""
    with cluster.lock:
        cluster.check_version(version)
        if cluster.faults.of_read():
            raise FDBError(errors.TOO_OLD)
    return cluster


def _request(version: int, mutations: list[Any], reads: list[Any], writes: list[Any], idempotent: bool) -> Request:
    return Request(
        version, [Mutation(*m) for m in mutations], [(*r,) for r in reads], [(*w,) for w in writes], idempotent
    )


def _watched(cluster: Cluster, key: bytes, value: bytes | None) -> None:
    future: Future[None] = Future()
    cluster.watch(key, value, future)
    future.wait()


# ── the client's side ────────────────────────────────────────────────────────────────────────────────────────────────


class _Connection:
    """A connection of one thread, closed when the thread ends."""

    def __init__(self, path: str) -> None:
        self.process = os.getpid()
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)

    def __del__(self) -> None:
        self.socket.close()


class SharedCluster:
    """The methods of a `Cluster` that transactions use, executed by its process. One connection for each thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._local = threading.local()
        #: The cluster's process draws faults.
        self.faults = Faults()
        self.on_step: Callable[[str], None] = lambda step: None

    def read_version(self) -> int:
        version: int = self._call("read_version")
        return version

    def check_version(self, version: int) -> None:
        """Does nothing: the cluster's process checks each read."""

    def get(self, version: int, key: bytes) -> bytes | None:
        found: bytes | None = self._call("get", version, key)
        return found

    def get_range(
        self, version: int, begin: bytes, end: bytes, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        return [(key, value) for key, value in self._call("get_range", version, begin, end, limit, reverse)]

    def boundaries(self, begin: bytes, end: bytes, every: int) -> list[bytes]:
        found: list[bytes] = self._call("boundaries", begin, end, every)
        return found

    def commit(self, request: Request) -> Committed:
        return Committed(*self._call("commit", *request))

    def watch(self, key: bytes, value: bytes | None, future: Future[None]) -> None:
        connection = _Connection(self._path)

        def wait() -> None:
            try:
                _send(connection.socket, ("watch", key, value))
                _receive(connection.socket)
                if not future.is_ready():
                    future.set(None)
            except OSError:
                if not future.is_ready():
                    future.fail(FDBError(errors.OPERATION_CANCELLED))

        def end(_: Future[None]) -> None:
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)

        future.on_ready(end)
        threading.Thread(target=wait, daemon=True).start()

    def _call(self, name: str, *arguments: object) -> Any:
        kept: _Connection | None = getattr(self._local, "connection", None)
        if kept is None or kept.process != os.getpid():  # a forked child must not use its parent's connection
            kept = self._local.connection = _Connection(self._path)
        _send(kept.socket, (name, *arguments))
        code, answer = _receive(kept.socket)
        if code:
            raise FDBError(code)
        return answer


def cluster_of(cluster_file: str) -> SharedCluster | None:
    """The cluster of a file; None: it is not the file of a simulated cluster."""
    try:
        text = Path(cluster_file).read_text()
    except (OSError, UnicodeDecodeError):
        return None
    return SharedCluster(text.removeprefix(SCHEME).strip()) if text.startswith(SCHEME) else None
