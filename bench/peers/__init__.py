"""Other queues, from Python, each at its best: batches pipelined, prepared statements, sockets of this machine only.

    peer            os                                   disk
    valkey          AOF, everysec                        AOF, appendfsync always
    postgres        synchronous_commit off               synchronous_commit on
    beanstalkd      log, fsync every 50 ms               log, fsync every write
    nats            JetStream file store, default sync   sync_interval always (from 2.10)
    huey            SQLite WAL, synchronous normal       synchronous full
    litequeue       SQLite WAL, synchronous normal       synchronous full

A server is started in a folder of the run, listens there (a Unix socket, or loopback), and is stopped with the run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench.lives import Contender
from bench.peers import beanstalkd, huey, litequeue, nats, postgres, valkey

Opener = Callable[[Path, str], Contender]

#: Peers with batches for claims and acks, and all peers.
BATCHED: dict[str, Opener] = {
    "valkey": valkey.Valkey,
    "postgres": postgres.Postgres,
    "beanstalkd": beanstalkd.Beanstalkd,
    "nats": nats.Nats,
}
ALL: dict[str, Opener] = {**BATCHED, "huey": huey.Huey, "litequeue": litequeue.Lite}
