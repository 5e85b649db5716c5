"""Databases of the test's own: an SQLite file, and a PostgreSQL server where one is installed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tenure import outbox
from tests.outbox.postgres import PostgresServer


class UserDatabase(NamedTuple):
    """A database as a user's program has it: an address for the relay, and connections of its own."""

    address: str
    connect: Callable[[], Any]


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    server = PostgresServer.started_or_skipped()
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> UserDatabase:
    if request.param == "sqlite":
        path = tmp_path / "app.db"
        made = UserDatabase(f"sqlite:{path}", lambda: sqlite3.connect(path, timeout=30))
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        address = server.new_database()
        made = UserDatabase(address, lambda: server.psycopg.connect(address))
    with closing(made.connect()) as connection:
        outbox.create(connection)
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
        connection.commit()
    return made
