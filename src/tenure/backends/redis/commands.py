"""Commands to the servers: sends a request again when its answer is lost, and raises Tenure's errors only.

The driver must never repeat a command by itself: one whose answer was lost may have run.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis
from redis import exceptions as driver

from tenure.backends.redis.connections import take_connection
from tenure.backends.redis.library import Library, library
from tenure.backends.redis.packer import Arg
from tenure.backends.redis.request_lanes import RequestLanes
from tenure.backends.redis.topology import Place, Topology
from tenure.errors import Corrupt, OpenError, StoreClosed, StoreError, TenureError, Unavailable

#: Errors of a server that is the wrong one, or not ready: refresh the topology and send again.
_WRONG_NODE = (
    driver.MovedError, driver.AskError, driver.ClusterDownError, driver.TryAgainError, driver.ReadOnlyError,
    driver.MasterDownError, driver.BusyLoadingError, driver.ConnectionError, driver.TimeoutError, OSError,
)  # fmt: skip
#: What a node that is importing a slot says to a verb: a function reads keys of a slot only where all of them are.
_MOVING = "non local key in a cluster node"


class NotConfirmed(Exception):
    """The write was applied, but too few replicas (or disks) have confirmed it yet."""


def _shown(problem: Exception) -> str:
    if isinstance(problem, driver.AskError):  # its text is the slot and the server
        return f"slot {problem.slot_id} is on, or moves to, {problem.host}:{problem.port}"
    return str(problem)


class Commands:
    def __init__(
        self,
        topology: Topology,
        *,
        patience: float,
        wait_replicas: int = 0,
        wait_aof: bool = False,
        wait_timeout: float = 5.0,
        scripts: bool = False,
    ) -> None:
        self._topology = topology
        self._use(library())
        self._patience = patience
        self._confirm: tuple[Arg, ...] | None = None
        if wait_aof:
            self._confirm = ("WAITAOF", 1, wait_replicas, round(wait_timeout * 1000))
        elif wait_replicas:
            self._confirm = ("WAIT", wait_replicas, round(wait_timeout * 1000))
        self._required = (1, wait_replicas) if wait_aof else (wait_replicas,)
        #: Whether verbs are sent with EVALSHA, because the server has no functions.
        self._scripts = scripts
        self._lanes = RequestLanes()
        self._owner = os.getpid()
        self._closed = False
        self._lock = threading.RLock()  # reentrant: a signal handler may run a verb at any point
        self.on_retry: Callable[[str], None] = lambda reason: None
        #: A test's clock, in milliseconds; None: the server's own.
        self.time: Callable[[], int] | None = None
        #: Round trips made, for tests and benchmarks.
        self.trips = 0

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def call(self, base: bytes, verb: str, *args: Arg) -> list[Any]:
        """Run a verb that may run twice: it writes nothing, or has an id by which the server recognizes a repeat."""
        return self._verb(base, verb, b"", 0, args)

    def call_once(self, base: bytes, verb: str, *args: Arg) -> list[Any]:
        """Run a verb that writes. It takes effect once, however often it is sent."""
        with self._lanes.request() as request:
            return self._verb(base, verb, request.lane, request.number, args)

    def call_remembered(self, base: bytes, verb: str, request: bytes, *args: Arg) -> list[Any]:
        """Run a verb that writes, as a step of the request with this id.

        It takes effect once for all callers with that id.
        """
        return self._verb(base, verb, b"r" + request, 0, args)

    def _verb(self, base: bytes, verb: str, lane: bytes, number: int, args: Sequence[Arg]) -> list[Any]:
        now: Arg = b"" if self.time is None else self.time()
        if self._scripts:
            sha = self._library.script_of(verb).sha
            command: list[Arg] = ["EVALSHA", sha, 1, base, verb, now, lane, number, *args]
        else:
            command = ["FCALL", self._functions[verb], 1, base, now, lane, number, *args]
        confirm = self._confirm if verb in self._library.verbs else None
        reply = self.send(base, command, confirm)
        if reply and reply[0] == b"E":
            if reply[1] == b"corrupt":
                raise Corrupt(reply[3].decode(), reply[2].hex() or None)
            if reply[1] == b"late":
                raise Unavailable("this request came after its successor: it was given up, and has done nothing")
        answer: list[Any] = reply
        return answer

    def plain(self, key: bytes, *args: Arg) -> Any:
        """Run a plain command of the server on one key."""
        return self.send(key, args, None)

    # ── sending and repeating ────────────────────────────────────────────────────────────────────────────────────────

    def send(self, key: bytes, command: Sequence[Arg], confirm: Sequence[Arg] | None) -> Any:
        self.ensure_open()
        give_up: float | None = None
        pause = 0.01
        followed: Place | None = None
        while True:
            try:
                return self._attempt(key, command, confirm)
            except driver.ResponseError as exc:
                if not isinstance(exc, _WRONG_NODE) and _MOVING not in str(exc):
                    raise self._translated(exc) from exc
                problem: Exception = exc
            except (*_WRONG_NODE, NotConfirmed) as exc:
                problem = exc
            self.ensure_open()
            now = time.monotonic()
            give_up = give_up or now + self._patience
            if now >= give_up:
                raise Unavailable(f"no answer for {self._patience:g} s: {_shown(problem)}") from problem
            self.on_retry(f"{type(problem).__name__}: {_shown(problem)}")
            # The driver's MovedError is an AskError.
            moved = (problem.host, problem.port) if isinstance(problem, driver.MovedError) else None
            if moved is None or moved == followed:
                time.sleep(pause * (0.5 + random.random()))
                pause = min(pause * 2, 0.5)
            followed = moved
            self._refresh_topology(problem, moved)

    def _attempt(self, key: bytes, command: Sequence[Arg], confirm: Sequence[Arg] | None) -> Any:
        """Send a request once, or twice if the server does not have the library yet. Raises the driver's errors."""
        node = self._topology.node(key)
        try:
            return self._exchange(node, command, confirm)
        except driver.NoScriptError:
            self._load_scripts(node)
        except driver.ResponseError as exc:
            if "Function not found" not in str(exc):
                raise
            self._load_functions(node)
        return self._exchange(node, command, confirm)

    def _refresh_topology(self, problem: Exception, moved: Place | None) -> None:
        if isinstance(problem, NotConfirmed):
            return
        try:
            self._topology.refresh(moved)
        except (redis.RedisError, OSError):
            return  # no server answers now; the next attempt finds out

    def _exchange(self, node: redis.Redis, command: Sequence[Arg], confirm: Sequence[Arg] | None) -> Any:
        pool = node.connection_pool
        connection = take_connection(node)
        try:
            self.trips += 1
            if confirm is None:
                connection.send_command(*command)
                return connection.read_response()
            connection.send_packed_command(connection.pack_commands([tuple(command), tuple(confirm)]))
            try:
                reply = connection.read_response()
            finally:
                confirmed = connection.read_response()
        except driver.ResponseError:
            raise
        except BaseException:
            connection.disconnect()  # an answer may still come, and must not be read as the answer to another request
            raise
        finally:
            if self._closed:
                connection.disconnect()  # `close` disconnects idle connections only, and this one was in use
            pool.release(connection)
        counts = confirmed if isinstance(confirmed, list) else [confirmed]
        if any(int(has) < wanted for has, wanted in zip(counts, self._required, strict=True)):
            raise NotConfirmed(f"{confirm[0]!r} was answered {confirmed}, and {self._required} was asked for")
        return reply

    # ── the library ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _use(self, chosen: Library) -> None:
        self._library = chosen
        self._functions = {verb: chosen.function(verb) for verb in chosen.verbs | chosen.readers}

    def prepare(self, any_queue: bool) -> str | None:
        """Load the library on every primary. If a server refuses functions, switch to scripts and return the reason.

        `any_queue`: the server is not part of a cluster, so that one step reaches the keys of all queues.
        """
        self._use(library(any_queue))
        for node in self._topology.primaries():
            try:
                self.load(node)
            except StoreError as exc:
                if not isinstance(exc.__cause__, driver.ResponseError):
                    raise
                self._scripts = True
                return str(exc.__cause__)
        return None

    def load(self, node: redis.Redis) -> None:
        if self._scripts:
            return
        try:
            self._load_functions(node)
        except (redis.RedisError, OSError) as exc:
            raise self._translated(exc) from exc

    def _load_functions(self, node: redis.Redis) -> None:
        # Check first: a full server refuses FUNCTION LOAD even for a library that it has.
        if self._exchange(node, ("FUNCTION", "LIST", "LIBRARYNAME", self._library.name), None):
            return
        try:
            self._exchange(node, ("FUNCTION", "LOAD", self._library.source), None)
        except driver.ResponseError as exc:
            if "already exists" not in str(exc):
                raise

    def _load_scripts(self, node: redis.Redis) -> None:
        for script in (self._library.script, self._library.script_when_full):
            self._exchange(node, ("SCRIPT", "LOAD", script.source), None)

    def on_primaries(self, *command: Arg) -> list[Any]:
        """Run a command on every primary; return the answers."""
        self.ensure_open()
        try:
            return [self._exchange(node, command, None) for node in self._topology.primaries()]
        except (redis.RedisError, OSError) as exc:
            raise self._translated(exc) from exc

    # ── listeners and closing ────────────────────────────────────────────────────────────────────────────────────────

    def listener(self, key: bytes) -> Any:
        """Open a new connection, for the caller alone, to the server that has the key."""
        pool = self._topology.node(key).connection_pool
        options = {k: v for k, v in pool.connection_kwargs.items() if k != "protocol"}
        return pool.connection_class(**options | {"protocol": 2, "socket_timeout": None})

    def ensure_open(self) -> None:
        if self._closed:
            raise StoreClosed("this store is closed")
        if os.getpid() != self._owner:
            raise StoreClosed("this process is a fork of the one that opened the store: open it again here")

    def close(self) -> None:
        with self._lock:
            if self._closed or os.getpid() != self._owner:
                return
            self._closed = True
        self._topology.close()

    @staticmethod
    def _translated(exc: Exception) -> TenureError:
        text = str(exc)
        if isinstance(exc, driver.AuthenticationError | driver.NoPermissionError | driver.AuthorizationError):
            if "NOAUTH" in text or text.startswith("HELLO must be called"):
                text = "it asks for a password: write it into the URL, redis://user:password@host or redis://:password@host"
            return OpenError(f"the server refuses this user: {text}")
        if isinstance(exc, driver.OutOfMemoryError) or text.startswith("OOM"):
            return Unavailable(
                "the server is full (maxmemory), and nothing was written. Claims, settling, cancel, purge, cleanup and "
                f"sweep still work and make room; or raise its maxmemory. It says: {text}"
            )
        if isinstance(exc, driver.BusyLoadingError):
            return Unavailable("the server is loading its data: try again in a while")
        if "MISCONF" in text:
            return Unavailable(f"the server takes no writes: {text}")
        return Unavailable(text)
