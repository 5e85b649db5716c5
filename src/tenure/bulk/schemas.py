"""The tables, column by column: `docs/tables.md` is these lists as a page, and a test holds the two together.

    jobs        one row a job                     queues      one row a queue
    events      one row an event of the journal   counters    one row a queue and counter
    leases      one row a lease that is open      groups      one row a group that has jobs
    parents     one row a job and its parent      steps       one row a step or signal of a job
    indexes     one row an index row              lease_jobs  one row a job that an open lease was given

`groups`, `indexes` and `lease_jobs` are for audits: what the store keeps beside the jobs, and must agree with them.

Columns are only ever added, at the end. Times are UTC with microseconds; numbers are signed 64 bits wherever the
stored ones could outgrow 32, since Spark has no unsigned types; ids are 32 hex digits, as users see them.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from tenure.errors import InvalidArgument

TEXT, BYTES, LONG, INT, REAL, BOOL = pa.string(), pa.binary(), pa.int64(), pa.int32(), pa.float64(), pa.bool_()
TIME = pa.timestamp("us", tz="UTC")
HEADERS = pa.map_(TEXT, TEXT)


class Column(NamedTuple):
    name: str
    type: pa.DataType
    nullable: bool
    meaning: str


def _of_queue() -> list[Column]:
    return [
        Column("tenant", TEXT, False, "its queue's tenant"),
        Column("queue", TEXT, False, "its queue"),
        Column("queue_number", LONG, False, "the queue's number, never used again for another"),
    ]


TABLES: dict[str, list[Column]] = {
    "jobs": [
        *_of_queue(),
        Column("id", TEXT, False, "the job"),
        Column("state", TEXT, False, "`blocked`, `scheduled`, `ready`, `leased`, `done` or `dead`, at the moment that is read"),
        Column("priority", INT, False, "0 to 9, 9 first"),
        Column("attempt", LONG, False, "deliveries so far; replay starts again from 0"),
        Column("max_attempts", LONG, False, "deliveries it may have"),
        Column("replays", LONG, False, "times it came back from the dead"),
        Column("token", LONG, False, "the fencing token of its last delivery; never reset"),
        Column("created_at", TIME, False, "when it was enqueued"),
        Column("visible_at", TIME, False, "from when it may be claimed"),
        Column("ended_at", TIME, True, "when it was done or dead"),
        Column("due_at", TIME, True, "when it will be removed: its ttl before the first claim, its retention once done"),
        Column("reason", TEXT, True, "of a dead job: `max_attempts` or `failed`"),
        Column("lease_id", TEXT, True, "of a leased job"),
        Column("lease_until", TIME, True, "of a leased job: when its lease ends"),
        Column("worker", TEXT, True, "of a leased job: who claimed it, if a name was given"),
        Column("key", TEXT, True, "its idempotency key"),
        Column("headers", HEADERS, False, "its headers; an empty map if it has none"),
        Column("group", TEXT, True, "its group"),
        Column("payload", BYTES, False, "its payload"),
        Column("error", TEXT, True, "its last error"),
        Column("result", BYTES, True, "its result"),
        Column("progress", REAL, True, "0 to 1, as its handler said last"),
        Column("progress_note", TEXT, True, "what the handler said with it"),
        Column("last_commit", LONG, False, "where its last event is in the journal: the commit"),
        Column("last_index", INT, False, "… and the event's place in it"),
        Column("last_lease_id", TEXT, True, "the lease it is held by, or that settled it last; null if that one expired"),
    ],
    "events": [
        Column("shard", TEXT, False, "the journal it is in: `0` in a store that has one"),
        Column("commit", LONG, False, "the journal row; rows of a shard are numbered without a gap"),
        Column("index", INT, False, "the event's place in the row, from 0. (shard, commit, index) is its key"),
        Column("number", LONG, False, "counts the events of a shard from 1 without a gap"),
        Column("time", TIME, False, "when it happened; never decreases along a shard"),
        Column("type", TEXT, False, "`enqueued`, `claimed`, … ([all](keyspace.md#the-journal)); `type_N` if this Tenure does not know it"),
        *_of_queue(),
        Column("job_id", TEXT, True, "the job; null if it is about a queue or a lease"),
        Column("state", TEXT, True, "the job's from here on: `blocked`, `waiting`, `leased`, `done`, `dead` or `gone`"),
        Column("priority", INT, False, "the job's"),
        Column("attempt", LONG, False, "the job's, after it"),
        Column("max_attempts", LONG, False, "the job's"),
        Column("token", LONG, False, "the job's, after it; with `job_id` it names a delivery"),
        Column("lease_id", TEXT, True, "the lease it happened under"),
        Column("visible_at", TIME, True, "of `enqueued`, `retried`, `released`, `expired`, `replayed`, `repaired`, `restored`: from when the job may be claimed"),
        Column("lease_until", TIME, True, "of `claimed` and `extended`: when the lease ends"),
        Column("reason", TEXT, True, "of `died`: `max_attempts` or `failed`"),
        Column("worker", TEXT, True, "of `claimed`: who, if a name was given"),
        Column("error", TEXT, True, "of `retried`, `died` and `restored`: what was said"),
        Column("text", TEXT, True, "of `queue_created` and `queue_configured`: the names, the policy, as JSON; of others, text that has no column of its own"),
        Column("previous_commit", LONG, True, "the job's event before this one; null if it is the first"),
        Column("previous_index", INT, True, "… and its place in that commit"),
        Column("raw", BYTES, True, "of an unknown type: the event's 80 bytes and its text, as stored"),
    ],
    "leases": [
        *_of_queue(),
        Column("id", TEXT, False, "the lease"),
        Column("worker", TEXT, True, "who claimed, if a name was given"),
        Column("granted_at", TIME, False, "when it was given"),
        Column("expires_at", TIME, False, "when it ends, unless extended"),
        Column("given", LONG, False, "jobs it was given"),
        Column("open", LONG, False, "of them, not yet settled"),
        Column("lost", LONG, False, "of them, cancelled under their holder"),
        Column("claim", TEXT, True, "the digest of the claim's id, if it had one"),
    ],
    "queues": [
        *_of_queue(),
        Column("paused", BOOL, False, "whether claims return nothing"),
        Column("policy", TEXT, False, "the whole policy, as JSON"),
        Column("max_attempts", LONG, False, "of the policy"),
        Column("lease", REAL, False, "of the policy, in seconds"),
        Column("backoff_on_expiry", BOOL, False, "of the policy"),
        Column("retention", REAL, False, "of the policy, in seconds"),
        Column("result_retention", REAL, False, "of the policy, in seconds"),
        Column("dedup_window", REAL, False, "of the policy, in seconds"),
        Column("max_waiting", LONG, True, "of the policy; null: no limit"),
    ],
    "counters": [
        *_of_queue(),
        Column("counter", TEXT, False, "`blocked`, `waiting`, `leased`, `done`, `dead`, `enqueued` or `removed`"),
        Column("value", LONG, False, "how many"),
    ],
    "indexes": [
        *_of_queue(),
        Column("index", TEXT, False, "`ready`, `group_ready`, `done`, `dead`, or of what is due `due_lease`, `due_ttl`, `due_retention`, `due_dedup`, `due_claim`"),
        Column("time", TIME, False, "visible at, ended at, or due at"),
        Column("priority", INT, True, "of `ready` and `group_ready`"),
        Column("id", TEXT, False, "the job, the lease, or the digest of a key or of a claim's id"),
        Column("group_id", TEXT, True, "of `group_ready`: the group, as the table `groups` has it"),
    ],
    "lease_jobs": [
        *_of_queue(),
        Column("lease_id", TEXT, False, "the lease"),
        Column("job_id", TEXT, False, "a job it was given"),
        Column("token", LONG, True, "the token it was given with; null in the row that says it was cancelled"),
        Column("cancelled", BOOL, False, "whether this row says that the job was cancelled under its holder"),
    ],
    "groups": [
        *_of_queue(),
        Column("id", TEXT, False, "the digest of the group's name, which stands for it in index rows"),
        Column("group", TEXT, False, "the group"),
        Column("waiting", LONG, False, "how many of its jobs are counted as waiting"),
        Column("leased", LONG, False, "how many of its jobs are counted as leased"),
        Column("at_limit", BOOL, False, "whether it has lost turns because as many of its jobs are leased as may be"),
        Column("full_at", TIME, True, "when the bucket of its rate is full again; null: it is full"),
    ],
    "parents": [
        *_of_queue(),
        Column("job_id", TEXT, False, "a job that was enqueued to run after others"),
        Column("place", LONG, False, "the parent's place among the job's parents, from 0"),
        Column("parent_id", TEXT, False, "a job that it runs after: its parent"),
        Column("parent_queue", TEXT, False, "the parent's queue, of the same tenant"),
        Column("parent_queue_number", LONG, False, "that queue's number"),
        Column("parent_state", TEXT, False, "`blocked`, `scheduled`, `ready`, `leased`, `done` or `dead`; `gone`: the parent was removed"),
        Column("met", BOOL, False, "whether the job no longer waits for this parent"),
        Column("unmet", LONG, True, "of a blocked job: how many of its parents it waits for, as the store counts them; the same in each of its rows"),
        Column("on_parent_dead", TEXT, True, "of a blocked job: `cancel`, `run` or `wait`"),
    ],
    "steps": [
        *_of_queue(),
        Column("job_id", TEXT, False, "the job"),
        Column("number", LONG, False, "counts the job's steps and signals from 0, in the order in which they were stored"),
        Column("kind", TEXT, False, "`step`: stored by the holder of the job's lease; `signal`: given by anybody"),
        Column("name", TEXT, False, "the name of the step or signal"),
        Column("stored_at", TIME, False, "when it was stored"),
        Column("size", LONG, False, "how many bytes its value has"),
        Column("value", BYTES, False, "its value: the result of the step, or the signal's payload"),
        Column("count", LONG, True, "how many steps and signals the job has, as the store counts them; the same in each of its rows"),
    ],
}  # fmt: skip

#: What `docs/tables.md` and Spark call the types.
TYPE_NAMES = {TEXT: "STRING", BYTES: "BINARY", LONG: "BIGINT", INT: "INT", REAL: "DOUBLE", BOOL: "BOOLEAN",
              TIME: "TIMESTAMP", HEADERS: "MAP<STRING, STRING>"}  # fmt: skip


def schema(table: str, columns: list[str] | tuple[str, ...] | None = None) -> pa.Schema:
    """The Arrow schema of a table, or of some of its columns in the order asked for."""
    known = {column.name: column for column in columns_of(table)}
    chosen = list(known) if columns is None else list(columns)
    for name in chosen:
        if name not in known:
            raise InvalidArgument(f"table {table} has no column {name!r}: it has {', '.join(known)}")
    if not chosen or len(set(chosen)) != len(chosen):
        raise InvalidArgument(f"columns {chosen!r}: name each one once, and at least one")
    return pa.schema([pa.field(name, known[name].type, known[name].nullable) for name in chosen])


def columns_of(table: str) -> list[Column]:
    if table not in TABLES:
        raise InvalidArgument(f"unknown table {table!r}: one of {', '.join(TABLES)}")
    return TABLES[table]


def ddl(table: str, columns: list[str] | tuple[str, ...] | None = None) -> str:
    """The same as a Spark schema string."""
    return ", ".join(
        f"`{field.name}` {TYPE_NAMES[field.type]}{'' if field.nullable else ' NOT NULL'}"
        for field in schema(table, columns)
    )
