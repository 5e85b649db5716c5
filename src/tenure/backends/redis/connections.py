"""Take a connection from the driver's pool so that an exception at any point leaves none half used."""

from __future__ import annotations

from typing import Any

import redis


def take_connection(client: redis.Redis) -> Any:
    """Return a connection that is ready for a request.

    The driver cleans up after its own errors only. If another exception (from a signal handler) interrupts the
    handshake of a new connection, the driver returns that connection to the pool with answers pending: the next request
    would read one of them as its own. So in that case all idle connections are closed.
    """
    try:
        return client.connection_pool.get_connection()
    except (redis.RedisError, OSError):
        raise
    except BaseException:
        close_idle(client)
        raise


def close_idle(client: redis.Redis) -> None:
    """Close the idle connections only: another thread may be reading from the others."""
    client.connection_pool.disconnect(inuse_connections=False)
