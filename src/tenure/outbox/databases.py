"""Open an outbox by its address: `sqlite:PATH` by the standard library, `postgresql://…` by psycopg 3.

Foreign errors become ours here: a missing table or a wrong address is an OpenError, a lost connection Unavailable.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.errors import InvalidArgument, OpenError, Unavailable
from tenure.extras import needs
from tenure.outbox.schema import DEFAULT_TABLE, POSTGRES, SQLITE
from tenure.outbox.table import Database, OutboxTable

if TYPE_CHECKING:
    import psycopg

#: Seconds that SQLite waits for another connection's transaction.
_BUSY_SECONDS = 30.0
_CONNECT_SECONDS = 10


def connect(address: str, table: str = DEFAULT_TABLE) -> OutboxTable:
    """Return the outbox in a database: `sqlite:app.db` (or `sqlite:///app.db`), `postgresql://user@host/app`.

    Raises InvalidArgument, SettingsError if psycopg is not installed, OpenError if the database cannot be opened.
    """
    scheme, colon, rest = address.partition(":")
    if colon and scheme == "sqlite":
        return OutboxTable(SqliteDatabase(rest.removeprefix("///") if rest.startswith("///") else rest), table)
    if colon and scheme in ("postgresql", "postgres"):
        return OutboxTable(PostgresDatabase(address), table)
    raise InvalidArgument(f"{without_password(address)!r} is no database: write sqlite:PATH or postgresql://HOST/NAME")


def without_password(address: str) -> str:
    """Return the address without its password, which may be before the @ or in a parameter."""
    address = re.sub(r"(?<=//)([^/@:]*):.*@", r"\1@", address)
    return re.sub(r"(?i)(?<=[?&])(password=)[^&]*", r"\1…", address)


class SqliteDatabase:
    """The user's database file. It is never created here: a mistyped path must not become an empty outbox."""

    dialect = SQLITE

    def __init__(self, path: str) -> None:
        self.where = f"sqlite:{path}"
        if not Path(path).is_file():
            raise OpenError(f"there is no SQLite database at {path}")
        self._connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)

    def execute(self, statement: str, values: Sequence[object] = ()) -> tuple[list[Any], int]:
        try:
            cursor = self._connection.execute(statement, tuple(values))
            return cursor.fetchall(), cursor.rowcount
        except sqlite3.OperationalError as exc:
            if "no such table" in str(exc):
                raise _no_table(self) from exc
            raise Unavailable(f"{self.where}: {exc}") from exc
        except sqlite3.DatabaseError as exc:
            raise OpenError(f"{self.where}: {exc}") from exc

    def close(self) -> None:
        self._connection.close()


class PostgresDatabase:
    """A connection that is opened again after it was lost."""

    dialect = POSTGRES

    def __init__(self, address: str) -> None:
        with needs("postgres", "an outbox in PostgreSQL"):
            import psycopg

        self._psycopg = psycopg
        self._address = address
        self.where = without_password(address)
        self._connection: psycopg.Connection[Any] | None = None
        try:
            self._connection = self._connect()
        except psycopg.Error as exc:
            raise OpenError(f"{self.where}: {_first_line(exc)}") from exc

    def _connect(self) -> psycopg.Connection[Any]:
        # No prepared statements: they would not survive a pooler that gives each transaction another connection.
        return self._psycopg.connect(
            self._address, autocommit=True, prepare_threshold=None, connect_timeout=_CONNECT_SECONDS
        )

    def execute(self, statement: str, values: Sequence[object] = ()) -> tuple[list[Any], int]:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._connect()
            cursor = self._connection.execute(statement, tuple(values))
            return cursor.fetchall() if cursor.description else [], cursor.rowcount
        except self._psycopg.errors.UndefinedTable as exc:
            raise _no_table(self) from exc
        except (self._psycopg.OperationalError, self._psycopg.InterfaceError) as exc:
            self.close()
            raise Unavailable(f"{self.where}: {_first_line(exc)}") from exc
        except self._psycopg.Error as exc:
            raise OpenError(f"{self.where}: {_first_line(exc)}") from exc

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _no_table(database: Database) -> OpenError:
    return OpenError(f"{database.where} has no outbox of that name: make it with 'tenure outbox create'")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
