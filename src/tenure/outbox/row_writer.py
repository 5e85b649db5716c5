"""Create the outbox's table and add rows to it, in the program's own transaction. Nothing here commits."""

from __future__ import annotations

import json
import sqlite3
import uuid
from contextlib import closing
from typing import Any, ParamSpec, Protocol

import msgspec

from tenure.clock import SystemClock
from tenure.errors import InvalidArgument
from tenure.model.job import NewJob
from tenure.model.names import DEFAULT_TENANT, queue_name
from tenure.model.request import job_request
from tenure.outbox.schema import DEFAULT_TABLE, POSTGRES, SQLITE, WRITTEN, Dialect, create_statement, table_name

P = ParamSpec("P")
#: The fields of a job that a row can hold. Others are refused, not dropped.
_CARRIED = frozenset(
    {"payload", "delay", "at", "priority", "key", "max_attempts", "ttl", "headers", "on_conflict", "group"}
)


class Connection(Protocol):
    """A connection of a database driver (DB-API 2): sqlite3's, psycopg's, psycopg2's, or Django's `connection`."""

    def cursor(self) -> Any: ...  # Any: DB-API has no common class for the drivers' cursors


class Call(Protocol[P]):
    """A task: `tenure.worker.tasks.Task` is one."""

    @property
    def queue(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    def new_job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob: ...


def create(connection: Connection, table: str = DEFAULT_TABLE) -> None:
    """Create the table if it does not exist, as a part of your migrations. `tenure outbox create` does the same."""
    _execute(connection, create_statement(_dialect(connection), table), ())


def add(
    connection: Connection,
    queue: str,
    job: bytes | NewJob,
    *,
    tenant: str = DEFAULT_TENANT,
    table: str = DEFAULT_TABLE,
) -> str:
    """Add a job to the outbox, in the open transaction. Returns its key.

    A relay enqueues it after the commit. Raises InvalidArgument or TooLarge for a job that no store would accept, with
    nothing written. A job's `delay` counts from now.
    """
    name = queue_name(queue, tenant)
    given = job if isinstance(job, NewJob) else NewJob(job)
    for field in msgspec.structs.fields(NewJob):
        if field.name not in _CARRIED and getattr(given, field.name) != field.default:
            raise InvalidArgument(f"{field.name}= cannot go through an outbox: enqueue such a job directly")
    request = job_request(given)
    visible_at_ms = request.at_ms
    if request.delay_ms:
        visible_at_ms = SystemClock().wall_ms() + request.delay_ms
    key = request.key or str(uuid.uuid4())
    values = (
        name.tenant,
        name.queue,
        request.payload,
        key,
        request.on_conflict,
        request.priority,
        request.max_attempts,
        None if request.ttl_ms is None else request.ttl_ms / 1000,
        json.dumps(dict(request.headers)) if request.headers else None,
        None if visible_at_ms is None else visible_at_ms / 1000,
        request.group,
    )
    marks = ", ".join([_mark(connection)] * len(WRITTEN))
    _execute(connection, f"INSERT INTO {table_name(table)} ({', '.join(WRITTEN)}) VALUES ({marks})", values)  # noqa: S608 - the table's name is checked
    return key


def delay(connection: Connection, task: Call[P], /, *args: P.args, **kwargs: P.kwargs) -> str:
    """Run `task.delay(...)` through the outbox: the call is enqueued if your transaction commits.

    Returns the job's key.
    """
    return add(connection, task.queue, task.new_job(*args, **kwargs), tenant=task.tenant)


def _execute(connection: Connection, statement: str, values: tuple[object, ...]) -> None:
    with closing(connection.cursor()) as cursor:
        cursor.execute(statement, values)


def _mark(connection: Connection) -> str:
    """Return the placeholder: `?` for sqlite3; `%s` for psycopg, psycopg2, and Django's connections."""
    return SQLITE.mark if isinstance(connection, sqlite3.Connection) else POSTGRES.mark


def _dialect(connection: Connection) -> Dialect:
    """Return the dialect of a connection's database. Raises InvalidArgument."""
    vendor = getattr(connection, "vendor", None)  # set by Django
    if isinstance(connection, sqlite3.Connection) or vendor == "sqlite":
        return SQLITE
    if vendor == "postgresql" or type(connection).__module__.startswith("psycopg"):
        return POSTGRES
    raise InvalidArgument(f"an outbox is in SQLite or PostgreSQL, not in what {type(connection).__name__} connects to")
