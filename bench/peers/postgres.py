"""PostgreSQL with `FOR UPDATE SKIP LOCKED`: the usual queue on a database, with claims and leases.

A life is three statements, each its own transaction: INSERT of the batch by unnest, UPDATE ... RETURNING of the first n
waiting rows (skipping locked ones), DELETE by ids. Statements are prepared; psycopg 3 in C, over a Unix socket.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.lives import Client
from bench.peers.server_process import Missing, Server, account, module, program

_INSTALL_SERVER = "apt-get install postgresql (or any PostgreSQL, its bin folder on PATH)"
_INSTALL_CLIENT = "pip install -r requirements/bench.txt"

_SCHEMA = """
CREATE TABLE jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    priority smallint NOT NULL DEFAULT 0,
    visible_at timestamptz NOT NULL DEFAULT now(),
    attempt integer NOT NULL DEFAULT 0,
    lease_until timestamptz,
    worker text,
    payload bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ready ON jobs (priority DESC, visible_at, id) WHERE lease_until IS NULL;
"""
_ENQUEUE = "INSERT INTO jobs (payload) SELECT unnest(%b::bytea[]) RETURNING id"
_CLAIM = """
WITH first AS MATERIALIZED (
    SELECT id FROM jobs WHERE lease_until IS NULL AND visible_at <= now()
    ORDER BY priority DESC, visible_at, id LIMIT %s FOR UPDATE SKIP LOCKED
)
UPDATE jobs SET lease_until = now() + interval '30 seconds', attempt = attempt + 1, worker = 'w'
FROM first WHERE jobs.id = first.id RETURNING jobs.id, jobs.payload, jobs.attempt
"""
_ACK = "DELETE FROM jobs WHERE id = ANY(%b::bigint[]) AND lease_until > now()"


class Postgres:
    name = "PostgreSQL SKIP LOCKED"

    def __init__(self, folder: Path, durability: str) -> None:
        self._psycopg = module("psycopg", _INSTALL_CLIENT)
        bins = sorted(str(path) for path in Path("/usr/lib/postgresql").glob("*/bin"))
        postgres = program("postgres", _INSTALL_SERVER, *bins[::-1])
        initdb = program("initdb", _INSTALL_SERVER, *bins[::-1])
        commit = "on" if durability == "disk" else "off"
        self.note = f"synchronous_commit {commit}; psycopg 3 (C), prepared, binary; Unix socket"
        folder.mkdir(parents=True, exist_ok=True)
        user = account()
        if user is not None:
            shutil.chown(folder, user)
        self._host = folder
        made = subprocess.run(
            [initdb, "-D", str(folder / "data"), "-U", "bench", "-A", "trust", "--no-instructions", "-E", "UTF8"],
            user=user, cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if made.returncode:
            raise Missing(f"initdb failed: {made.stderr[-300:]}")
        settings = {
            "listen_addresses": "", "unix_socket_directories": str(folder), "synchronous_commit": commit,
            "shared_buffers": "256MB", "max_wal_size": "4GB", "autovacuum_naptime": "1s", "jit": "off",
        }  # fmt: skip
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._server = Server(
            [postgres, "-D", str(folder / "data"), *options], folder, self._answers, user=user, stop=signal.SIGINT
        )
        with self._connect() as connection:
            connection.execute(_SCHEMA, prepare=False)

    def _connect(self) -> Any:
        return self._psycopg.connect(
            host=str(self._host), user="bench", dbname="postgres", autocommit=True, prepare_threshold=0
        )

    def _answers(self) -> bool:
        try:
            self._connect().close()
        except self._psycopg.OperationalError:
            return False
        return True

    def client(self) -> Client:
        return _Client(self._connect())

    def tidy(self) -> None:
        with self._connect() as connection:
            connection.execute("VACUUM jobs", prepare=False)

    def close(self) -> None:
        self._server.stop()


class _Client:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._cursor = connection.cursor(binary=True)

    def enqueue(self, payloads: Sequence[bytes]) -> object:
        return self._cursor.execute(_ENQUEUE, (list(payloads),)).fetchall()

    def claim(self, limit: int) -> Sequence[Any]:
        rows: Sequence[Any] = self._cursor.execute(_CLAIM, (limit,)).fetchall()
        return rows

    def ack(self, claimed: Sequence[Any]) -> object:
        return self._cursor.execute(_ACK, ([row[0] for row in claimed],)).rowcount

    def close(self) -> None:
        self._connection.close()
