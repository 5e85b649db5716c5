"""The outbox's table, for SQLite and PostgreSQL: its columns, and the two dialects.

column          written by   meaning
id              database     the order in which rows are sent; with several writers not the order of their commits
tenant, queue   you          where the job goes
payload         you          its content
key             you          its idempotency key; random by default
on_conflict     you          "error" or "keep": if a job with another payload holds the key
priority, max_attempts, ttl (seconds), headers (JSON), visible_at (Unix seconds), job_group      as for `enqueue`
written_at      database     Unix seconds
sending_since   relay        when the row was first taken to be sent; empty: never
sending_batch   relay        with which batch it was first taken
error           relay        why it cannot be sent; such a row waits for you (`tenure outbox retry`)
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tenure.errors import InvalidArgument

DEFAULT_TABLE = "tenure_outbox"
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")

#: The columns that a writer fills, in this order.
WRITTEN = (
    "tenant", "queue", "payload", "key", "on_conflict", "priority", "max_attempts", "ttl", "headers", "visible_at",
    "job_group",
)  # fmt: skip


class Dialect(NamedTuple):
    """The differences between the databases."""

    name: str
    #: The placeholder of a value in a statement.
    mark: str
    #: The time as Unix seconds.
    now: str
    row_id: str
    binary: str
    number: str
    random_key: str
    #: The values of a JSON array as rows: numbers, and texts.
    numbers: str
    texts: str
    #: Skips rows that another transaction is changing.
    skip_locked: str


SQLITE = Dialect(
    name="sqlite",
    mark="?",
    now="((julianday('now') - 2440587.5) * 86400.0)",
    row_id="INTEGER PRIMARY KEY AUTOINCREMENT",
    binary="BLOB",
    number="REAL",
    random_key="(lower(hex(randomblob(16))))",
    numbers="(SELECT value FROM json_each(?))",
    texts="(SELECT value FROM json_each(?))",
    skip_locked="",
)
POSTGRES = Dialect(
    name="postgresql",
    mark="%s",
    now="(extract(epoch FROM clock_timestamp())::double precision)",
    row_id="bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    binary="bytea",
    number="double precision",
    random_key="gen_random_uuid()::text",
    numbers="(SELECT value::bigint FROM json_array_elements_text(%s::json))",
    texts="(SELECT value FROM json_array_elements_text(%s::json))",
    skip_locked=" FOR UPDATE SKIP LOCKED",
)


def table_name(name: str) -> str:
    """Check that a name can be used in a statement: `tenure_outbox`, `app.outbox`. Raises InvalidArgument."""
    if _TABLE.fullmatch(name) is None:
        raise InvalidArgument(f"table={name!r} is not the name of a table (letters, digits, _; SCHEMA.TABLE)")
    return name


def create_statement(dialect: Dialect, table: str) -> str:
    return f"""CREATE TABLE IF NOT EXISTS {table_name(table)} (
    id {dialect.row_id},
    tenant text NOT NULL DEFAULT 'default',
    queue text NOT NULL,
    payload {dialect.binary} NOT NULL,
    key text NOT NULL DEFAULT {dialect.random_key},
    on_conflict text NOT NULL DEFAULT 'error',
    priority integer NOT NULL DEFAULT 0,
    max_attempts integer,
    ttl {dialect.number},
    headers text,
    visible_at {dialect.number},
    job_group text,
    written_at {dialect.number} NOT NULL DEFAULT {dialect.now},
    sending_since {dialect.number},
    sending_batch text,
    error text
)"""
