"""The outbox's table, as the relay uses it. Each verb is one statement in its own transaction.

`take` marks a row (`sending_since`) and returns it; `remove` deletes it once its job is in the store, `unmark` records
that the store refused it for now, `refuse` that no store would accept it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from tenure.errors import InvalidArgument
from tenure.model.names import QueueName
from tenure.outbox.schema import Dialect, create_statement, table_name

# ruff: noqa: S608  statements consist of constants and a checked table name; values are passed separately


class OutboxRow(NamedTuple):
    """A row to send. `age` is how many seconds ago a relay first took it; None if this is the first time.

    SQLite keeps any value in any column, so another program's row may have values of other types than these.
    """

    id: int
    tenant: str
    queue: str
    #: Text is encoded as UTF-8: see `payload_bytes`.
    payload: bytes | memoryview | str
    key: str
    on_conflict: str
    priority: int
    max_attempts: int | None
    ttl: float | None
    headers: str | None
    visible_at: float | None
    group: str | None
    age: float | None


_ROW_COLUMNS = (
    "id, tenant, queue, payload, key, on_conflict, priority, max_attempts, ttl, headers, visible_at, job_group"
)


class Waiting(NamedTuple):
    """What there is to send. `oldest` is the age of the oldest row in seconds, None if there is none."""

    rows: int
    refused: int
    oldest: float | None


class RefusedRow(NamedTuple):
    """A refused row, and why."""

    id: int
    tenant: str
    queue: str
    key: str
    error: str


class Database(Protocol):
    """One connection that commits every statement by itself, and reconnects when it was lost."""

    dialect: Dialect
    #: The address without its password, for messages.
    where: str

    def execute(self, statement: str, values: Sequence[object] = ()) -> tuple[list[Any], int]:
        """Return (rows, number of changed rows). Raises Unavailable, or OpenError for a missing table."""

    def close(self) -> None: ...


class OutboxTable:
    """One outbox."""

    def __init__(self, database: Database, table: str) -> None:
        self._database = database
        self.name = table_name(table)
        self.where = f"{database.where} {table}"

    def create(self) -> None:
        self._database.execute(create_statement(self._database.dialect, self.name))

    def take(self, limit: int, held_back: Collection[QueueName] = ()) -> list[OutboxRow]:
        """Take the first `limit` rows that can be sent, in order, except those of `held_back` queues."""
        d = self._database.dialect
        held = json.dumps([f"{name.tenant}/{name.queue}" for name in held_back])
        some = f"SELECT id FROM {self.name} WHERE error IS NULL AND tenant || '/' || queue NOT IN {d.texts} ORDER BY id"
        # Look first: a statement that may write takes SQLite's only write lock, even if it finds nothing.
        if not self._database.execute(f"{some} LIMIT 1", (held,))[0]:
            return []
        batch = uuid.uuid4().hex
        rows, _ = self._database.execute(
            f"UPDATE {self.name} SET sending_since = coalesce(sending_since, {d.now}), "
            f"sending_batch = coalesce(sending_batch, {d.mark}) WHERE id IN ({some} LIMIT {d.mark}{d.skip_locked}) "
            f"RETURNING {_ROW_COLUMNS}, {d.now} - sending_since, sending_batch",
            (batch, held, limit),
        )
        outbox_rows = [OutboxRow._make((*row[:-2], None if row[-1] == batch else row[-2])) for row in rows]
        return sorted(outbox_rows, key=attrgetter("id"))

    def remove(self, ids: Collection[int]) -> None:
        self._database.execute(
            f"DELETE FROM {self.name} WHERE id IN {self._database.dialect.numbers}", (json.dumps(list(ids)),)
        )

    def unmark(self, ids: Collection[int]) -> None:
        """Clear the marks of rows that were certainly not sent."""
        self._database.execute(
            f"UPDATE {self.name} SET sending_since = NULL, sending_batch = NULL WHERE id IN {self._database.dialect.numbers}",
            (json.dumps(list(ids)),),
        )

    def refuse(self, id: int, error: str) -> None:
        mark = self._database.dialect.mark
        self._database.execute(
            f"UPDATE {self.name} SET error = {mark} WHERE id = {mark}", (error.replace("\0", ""), id)
        )

    def retry(self, ids: Collection[int] | None = None) -> int:
        """Send refused rows again: these, or all. Returns how many."""
        statement = (
            f"UPDATE {self.name} SET error = NULL, sending_since = NULL, sending_batch = NULL WHERE error IS NOT NULL"
        )
        if ids is None:
            return self._database.execute(statement)[1]
        chosen = f"{statement} AND id IN {self._database.dialect.numbers}"
        return self._database.execute(chosen, (json.dumps(list(ids)),))[1]

    def waiting(self) -> Waiting:
        now = self._database.dialect.now
        ((rows, refused, oldest),), _ = self._database.execute(
            f"SELECT count(CASE WHEN error IS NULL THEN 1 END), count(error), "
            f"{now} - min(CASE WHEN error IS NULL THEN written_at END) FROM {self.name}"
        )
        return Waiting(rows, refused, oldest)

    def refused(self, limit: int = 100) -> list[RefusedRow]:
        """Return the first refused rows."""
        rows, _ = self._database.execute(
            f"SELECT id, tenant, queue, key, error FROM {self.name} WHERE error IS NOT NULL ORDER BY id "
            f"LIMIT {self._database.dialect.mark}",
            (limit,),
        )
        return [RefusedRow(*row) for row in rows]

    def close(self) -> None:
        self._database.close()


def payload_bytes(payload: object) -> bytes:
    """Return the payload as bytes; text is encoded as UTF-8.

    Raises InvalidArgument for another type. `bytes(12)` would be 12 zeros.
    """
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, (bytes, memoryview)):
        return bytes(payload)
    raise InvalidArgument(f"the payload is a {type(payload).__name__}, not bytes or text")
