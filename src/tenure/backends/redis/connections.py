"""Taking a connection out of the driver's pool so that an exception at any moment leaves none half used."""

from __future__ import annotations

from typing import Any

import redis


def take_connection(client: redis.Redis) -> Any:
    """A connection that is ready for a request.

    The driver cleans up after its own errors only. If another exception (a signal handler's) ends the handshake of a
    new connection, the driver puts that connection back among the idle ones, with answers still to come: the next
    request would read one of them as its own. So no idle connection is kept then.
    """
    try:
        return client.connection_pool.get_connection()
    except (redis.RedisError, OSError):
        raise
    except BaseException:
        let_go_idle(client)
        raise


def let_go_idle(client: redis.Redis) -> None:
    """Close its idle connections; another thread may be reading from one that is not idle."""
    client.connection_pool.disconnect(inuse_connections=False)
