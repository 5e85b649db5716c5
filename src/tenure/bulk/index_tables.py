"""The tables `leases`, `queues`, `counters`, `indexes`, `lease_jobs` and `groups`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from tenure.bulk import arrays, blocks, layouts
from tenure.bulk.arrays import Bools, Fields
from tenure.bulk.jobs import worker
from tenure.bulk.query import Query, StoreView
from tenure.errors import Corrupt
from tenure.storage import keyspace, records
from tenure.storage.engine import Row, Space, iterate
from tenure.storage.keyspace import Counter, Due

Columns = dict[str, Callable[[], pa.Array]]
_CHUNK = 8192


def leases(moment: StoreView, query: Query, begin: bytes, end: bytes) -> Iterator[pa.RecordBatch]:
    for rows in iterate(moment.reader, keyspace.LEASES, begin, end, _CHUNK):
        keys = keys_of([key for key, _ in rows], layouts.OF_QUEUE, "leases")
        found = _fixed(rows, layouts.LEASE, lambda key, value: records.decode_lease(value, key[4:]))
        workers = [worker(raw) for raw in found["worker"]] if "worker" in query.columns else []
        columns: Columns = {
            "id": lambda: arrays.hex_ids(keys["id"]),  # noqa: B023 - called before the next turn
            "worker": lambda: pa.array(workers, pa.string()),  # noqa: B023
            "granted_at": lambda: arrays.times(found["granted_at_ms"]),  # noqa: B023
            "expires_at": lambda: arrays.times(found["expires_at_ms"]),  # noqa: B023
            "given": lambda: arrays.longs(found["given"]),  # noqa: B023
            "open": lambda: arrays.longs(found["open"]),  # noqa: B023
            "lost": lambda: arrays.longs(found["lost"]),  # noqa: B023
            "claim": lambda: arrays.hex_ids(found["claim"], arrays.no_id(found["claim"])),  # noqa: B023
        }
        yield batch(moment, query, keys["queue"], columns, query.in_time(found["granted_at_ms"].astype(np.int64)))


def counters(moment: StoreView, query: Query, begin: bytes, end: bytes) -> Iterator[pa.RecordBatch]:
    names = ["counter_" + str(number) for number in range(256)]
    for counter in Counter:
        names[counter] = counter.name.lower()
    for rows in iterate(moment.reader, keyspace.COUNTERS, begin, end, _CHUNK):
        keys = keys_of([key for key, _ in rows], layouts.COUNTER, "counters")
        values = np.array([_count(key, value) for key, value in rows], np.int64)
        columns: Columns = {
            "counter": lambda: arrays.texts(names, keys["counter"]),  # noqa: B023
            "value": lambda: arrays.longs(values),  # noqa: B023
        }
        yield batch(moment, query, keys["queue"], columns)


def queues(moment: StoreView, query: Query, begin: bytes, end: bytes) -> Iterator[pa.RecordBatch]:
    wanted = moment.names.chosen(query.tenant, query.queue)
    found = [record for record in moment.queues() if wanted is None or record.number in wanted]
    if not found:
        return
    policies = [record.policy for record in found]

    def of_policy(name: str, kind: pa.DataType) -> Callable[[], pa.Array]:
        return lambda: pa.array([getattr(policy, name) for policy in policies], kind)

    columns: Columns = {
        "paused": lambda: pa.array([record.paused for record in found], pa.bool_()),
        "policy": lambda: pa.array([msgspec.json.encode(policy).decode() for policy in policies], pa.string()),
        "max_attempts": of_policy("max_attempts", pa.int64()),
        "lease": of_policy("lease", pa.float64()),
        "backoff_on_expiry": of_policy("backoff_on_expiry", pa.bool_()),
        "retention": of_policy("retention", pa.float64()),
        "result_retention": of_policy("result_retention", pa.float64()),
        "dedup_window": of_policy("dedup_window", pa.float64()),
        "max_waiting": of_policy("max_waiting", pa.int64()),
    }
    yield batch(moment, query, np.array([record.number for record in found], np.int64), columns)


def lease_jobs(moment: StoreView, query: Query, begin: bytes, end: bytes) -> Iterator[pa.RecordBatch]:
    for rows in iterate(moment.reader, keyspace.LEASE_JOBS, begin, end, 1024):
        given = np.array(
            [
                (*keyspace.split_of_queue(key), job, token)
                for key, value in rows
                if len(key) == layouts.OF_QUEUE.itemsize
                for job, token in records.decode_lease_jobs(value, key[4:])
            ],
            _GIVEN,
        )
        lost = keys_of(
            [key for key, _ in rows if len(key) != layouts.OF_QUEUE.itemsize], layouts.LOST_JOB, "lease_jobs"
        )
        cancelled = np.repeat([False, True], [len(given), len(lost)])
        lease = np.concatenate([_ids(given["lease"]), lost["id"]])
        job = np.concatenate([_ids(given["job"]), lost["job"]])
        token = np.concatenate([given["token"].astype(np.int64), np.zeros(len(lost), np.int64)])
        columns: Columns = {
            "lease_id": lambda: arrays.hex_ids(lease),  # noqa: B023
            "job_id": lambda: arrays.hex_ids(job),  # noqa: B023
            "token": lambda: arrays.longs(token, cancelled),  # noqa: B023
            "cancelled": lambda: pa.array(cancelled),  # noqa: B023
        }
        numbers = np.concatenate([given["queue"].astype(np.int64), lost["queue"].astype(np.int64)])
        yield batch(moment, query, numbers, columns)


def groups(moment: StoreView, query: Query, begin: bytes, end: bytes) -> Iterator[pa.RecordBatch]:
    for rows in iterate(moment.reader, keyspace.GROUPS, begin, end, _CHUNK):
        keys = keys_of([key for key, _ in rows], layouts.OF_QUEUE, "groups")
        found = [_group(key, value) for key, value in rows]
        full_at_ns = np.array([group.full_at_ns for group in found], np.uint64)
        columns: Columns = {
            "id": lambda: arrays.hex_ids(keys["id"]),  # noqa: B023 - called before the next turn
            "group": lambda: pa.array([g.name.decode("utf-8", "replace") for g in found], pa.string()),  # noqa: B023
            "waiting": lambda: pa.array([group.waiting for group in found], pa.int64()),  # noqa: B023
            "leased": lambda: pa.array([group.leased for group in found], pa.int64()),  # noqa: B023
            "at_limit": lambda: pa.array([group.at_limit > 0 for group in found], pa.bool_()),  # noqa: B023
            "full_at": lambda: arrays.times(full_at_ns // _NS, full_at_ns == 0),  # noqa: B023
        }
        yield batch(moment, query, keys["queue"], columns)


_NS = np.uint64(1_000_000)
_GIVEN = np.dtype([("queue", "u4"), ("lease", "V16"), ("job", "V16"), ("token", "u8")])


def _ids(ids: np.ndarray[tuple[int, ...], np.dtype[np.void]]) -> arrays.Bytes:
    return np.ascontiguousarray(ids).view(np.uint8).reshape(len(ids), 16)


# ── indexes ──────────────────────────────────────────────────────────────────────────────────────────────────────────

INDEXES: dict[Space, np.dtype[np.void]] = {
    keyspace.READY: layouts.READY,
    keyspace.GROUP_READY: layouts.GROUP_READY,
    keyspace.DUE: layouts.DUE,
    keyspace.DONE: layouts.ENDED,
    keyspace.DEAD: layouts.ENDED,
}
_DUE = [f"due_{number}" for number in range(256)]
for _kind in Due:
    _DUE[_kind] = f"due_{_kind.name.lower()}"


def index(moment: StoreView, query: Query, space: Space, begin: bytes, end: bytes) -> Iterator[pa.RecordBatch]:
    chosen = moment.names.chosen(query.tenant, query.queue)
    while True:
        found = moment.reader.keys(space, begin, end, _CHUNK)
        if found:
            keys = keys_of(found, INDEXES[space], keyspace.NAMES[space])
            # `due` begins with its kind, so that its queues cannot be chosen by a range.
            keep = None if chosen is None else np.isin(keys["queue"].astype(np.int64), chosen)
            yield batch(moment, query, keys["queue"], _index_columns(space, keys), keep)
        if len(found) < _CHUNK:
            return
        begin = found[-1] + b"\0"


def _index_columns(space: Space, keys: Fields) -> Columns:
    ready = space in (keyspace.READY, keyspace.GROUP_READY)
    kinds = _DUE if space == keyspace.DUE else [keyspace.NAMES[space]]
    return {
        "index": lambda: arrays.texts(kinds, keys["kind"] if space == keyspace.DUE else np.zeros(len(keys), np.int64)),
        "time": lambda: arrays.times(keys["time"]),
        "priority": lambda: (
            arrays.ints(9 - keys["tier"].astype(np.int32) % keyspace.GROUPED)
            if ready
            else pa.nulls(len(keys), pa.int32())
        ),
        "id": lambda: arrays.hex_ids(keys["id"]),
        "group_id": lambda: (
            arrays.hex_ids(keys["group"]) if space == keyspace.GROUP_READY else pa.nulls(len(keys), pa.string())
        ),
    }


# ── common ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def batch(
    moment: StoreView, query: Query, numbers: np.ndarray, columns: Columns, keep: Bools | None = None
) -> pa.RecordBatch:
    if query.wants(("tenant", "queue")):
        tenant, queue = moment.names.columns(numbers)
        columns |= {"tenant": lambda: tenant, "queue": lambda: queue}
    columns["queue_number"] = lambda: arrays.longs(numbers)
    made = [columns[name]() for name in query.columns]
    return arrays.filtered(pa.RecordBatch.from_arrays(made, schema=query.schema), keep)


def keys_of(keys: Sequence[bytes], layout: np.dtype[np.void], what: str) -> Fields:
    return arrays.keys_as(blocks.joined_keys(keys, layout.itemsize, what), layout)


def _fixed(rows: Sequence[Row], layout: np.dtype[np.void], decode: Callable[[bytes, bytes], object]) -> Fields:
    """Values of one width, checked; `decode` raises what is wrong with one of them."""

    def damage(at: int) -> None:
        decode(*rows[at])

    block = blocks.block(rows, len(rows[0][0]), "a table")
    arrays.check(block, layout.itemsize - 4, damage)
    if block.lengths.max() != layout.itemsize:
        damage(int(block.lengths.argmax()))
    return arrays.fields(block.data, layout, "a table")


def _count(key: bytes, value: bytes) -> int:
    try:
        return records.decode_count(value)
    except Corrupt as exc:
        raise Corrupt(f"{exc.detail}: {key.hex()}", key=key) from None


def _group(key: bytes, value: bytes) -> records.GroupRecord:
    try:
        return records.decode_group(value)
    except Corrupt as exc:
        raise Corrupt(f"{exc.detail}: {key.hex()}", key=key) from None
