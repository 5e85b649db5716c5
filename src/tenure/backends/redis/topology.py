"""Find the server for a key: the only one, the primary that Sentinel names, or the cluster's node for the key's slot.

The driver opens connections and parses answers. Its retries and redirections are off: only `commands` knows the number
under which a request may be sent again.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from tenure.backends.redis.address import Address
from tenure.backends.redis.connections import close_idle, take_connection
from tenure.backends.redis.packer import packing_in_python
from tenure.errors import OpenError

Place = tuple[str, int]


class Topology(Protocol):
    def node(self, key: bytes) -> redis.Redis:
        """Return the primary that has this key, by the last refresh."""

    def primaries(self) -> list[redis.Redis]: ...

    def refresh(self, moved: Place | None = None) -> None:
        """Ask the servers again which of them has which keys. `moved`: the server that a redirection named."""

    def close(self) -> None: ...


Options = dict[str, Any]
"""Keyword arguments of redis-py's clients."""


def topology(address: Address, timeout: float, tls: Options | None = None) -> Topology:
    options: Options = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 3,
        "client_name": "tenure",
    }
    if address.user is not None:
        options["username"] = address.user
    if address.password is not None:
        options["password"] = address.password
    options |= _without_notifications()
    if address.kind == "unix":
        return _SingleServer(_client(unix_socket_path=address.path, db=address.db, **options))
    options |= tls or {}
    if address.kind == "cluster":
        return _Cluster(address.hosts, options)
    options["db"] = address.db
    if address.kind == "sentinel":
        return _Sentinel(address, options)
    host, port = address.hosts[0]
    return _SingleServer(_client(host=host, port=port, **options))


def _client(**options: Any) -> redis.Redis:
    return packing_in_python(redis.Redis(**options))


def _without_notifications() -> Options:
    try:
        from redis.maint_notifications import MaintNotificationsConfig
    except ImportError:  # a driver without them
        return {}
    return {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}


class _SingleServer:
    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def node(self, key: bytes) -> redis.Redis:
        return self._client

    def primaries(self) -> list[redis.Redis]:
        return [self._client]

    def refresh(self, moved: Place | None = None) -> None:
        if moved is not None:
            raise OpenError(
                f"this server is part of a cluster (it named {moved[0]}:{moved[1]}): write 'redis+cluster://'"
            )
        self._client.connection_pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        close_idle(self._client)


class _Sentinel(_SingleServer):
    def __init__(self, address: Address, options: Options) -> None:
        from redis import sentinel

        self._options = options
        self._service = address.service
        plain = {k: v for k, v in options.items() if k not in ("username", "password", "db", "protocol")}
        made: Any = sentinel.Sentinel
        self._sentinel: Any = made(address.hosts, sentinel_kwargs=plain)
        for client in self._sentinel.sentinels:
            packing_in_python(client)
        self._lock = threading.RLock()  # reentrant: a signal handler may run a verb at any point
        self._place: Place | None = None
        super().__init__(self._primary())

    def _primary(self) -> redis.Redis:
        self._place = self._sentinel.discover_master(self._service)
        return _client(host=self._place[0], port=self._place[1], **self._options)

    def refresh(self, moved: Place | None = None) -> None:
        with self._lock:
            super().refresh(moved)
            if self._sentinel.discover_master(self._service) != self._place:
                self._client = self._primary()

    def close(self) -> None:
        super().close()
        for sentinel in self._sentinel.sentinels:
            sentinel.close()


class _Cluster:
    def __init__(self, hosts: tuple[Place, ...], options: Options) -> None:
        self._options = options
        self._lock = threading.RLock()  # reentrant: a signal handler may run a verb at any point
        self._known: dict[Place, redis.Redis] = {}
        self._seeds = list(hosts)
        #: (first slot, last slot, primary), in order.
        self._slots: list[tuple[int, int, Place]] = []
        self.refresh()

    def node(self, key: bytes) -> redis.Redis:
        slot = key_slot(key)
        for first, last, place in self._slots:
            if first <= slot <= last:
                return self.at(place)
        raise redis.exceptions.ClusterDownError(f"no node has slot {slot}")

    def at(self, place: Place) -> redis.Redis:
        client = self._known.get(place)
        if client is None:
            with self._lock:
                client = self._known.setdefault(place, _client(host=place[0], port=place[1], **self._options))
        return client

    def primaries(self) -> list[redis.Redis]:
        return [self.at(place) for place in dict.fromkeys(place for _, _, place in self._slots)]

    def refresh(self, moved: Place | None = None) -> None:
        failed: redis.RedisError | None = None
        # The server that a redirection named first: another may not know yet.
        named = [moved] if moved is not None and moved[0] else []
        for place in [*named, *dict.fromkeys(place for *_, place in self._slots), *self._known, *self._seeds]:
            try:
                slots = self._ask(place)
            except redis.RedisError as exc:
                failed = exc
                continue
            if slots:
                self._slots = slots
                return
        raise failed or redis.exceptions.ClusterDownError("the cluster has no slots")

    def _ask(self, place: Place) -> list[tuple[int, int, Place]]:
        client = self.at(place)
        connection = take_connection(client)
        try:
            connection.send_command("CLUSTER", "SLOTS")
            rows = connection.read_response()
        except BaseException:
            connection.disconnect()
            raise
        finally:
            client.connection_pool.release(connection)
        return sorted(
            (int(first), int(last), (_text(primary[0]) or place[0], int(primary[1])))
            for first, last, primary, *_ in rows
        )

    def close(self) -> None:
        for client in self._known.values():
            close_idle(client)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
