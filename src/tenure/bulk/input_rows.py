"""Input rows: a column at a time from what a DataFrame holds to what a queue takes.

    payload        binary, string, or a struct or variant (written as JSON); never null
    queue, tenant  names; null means the queue that the write names
    priority       0 to 9                  max_attempts   1 and more
    delay, ttl     seconds, or an interval at             a timestamp, or seconds since 1970
    key            an idempotency key      headers        a map of strings
    group          a name                  flow, name, after, on_parent_dead   its place in a flow (`flow_rows`)

A timestamp without a time zone (`TIMESTAMP_NTZ`) is in the session's.

The rules are those of `model.request`, checked for a whole column at once; a test holds the two together, value by
value. A row that breaks one is set aside with its reason, which is the first rule it breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tenure.bulk.flow_rows import FLOW_COLUMNS, check_flows
from tenure.bulk.json_payloads import JsonStyle, as_json, zone_of
from tenure.errors import InvalidArgument
from tenure.model.durations import MAX_MS
from tenure.model.job import MAX_HEADERS_BYTES, MAX_PAYLOAD
from tenure.model.names import MAX_KEY_BYTES, NAME_PATTERN, TENANT_PATTERN, QueueName, checked
from tenure.model.retry import MAX_ATTEMPTS

Mask = np.ndarray[Any, np.dtype[np.bool_]]

#: What is staged: checked, in stored units. A column that is null throughout is left out.
STAGED = {
    "payload": pa.large_binary(),
    "delay_ms": pa.int64(),
    "at_ms": pa.int64(),
    "priority": pa.int8(),
    "key": pa.large_string(),
    "max_attempts": pa.int64(),
    "ttl_ms": pa.int64(),
    "headers": pa.map_(pa.string(), pa.string()),
    "group": pa.large_string(),
    **FLOW_COLUMNS,
}
COLUMNS = ("payload", "queue", "tenant", "priority", "delay", "at", "key", "max_attempts", "ttl", "headers", "group",
           *FLOW_COLUMNS)  # fmt: skip
_NAMES = {"tenant": rf"^{TENANT_PATTERN}\z", "group": rf"^{TENANT_PATTERN}\z", "queue": rf"^{NAME_PATTERN}\z"}


class Incoming(NamedTuple):
    """A batch, checked. `bad` and `reasons` are the rows set aside, as they came, and why."""

    #: By queue: the rows that go there, with the columns of `STAGED`.
    good: list[tuple[QueueName, pa.RecordBatch]]
    bad: pa.RecordBatch | None
    reasons: list[str]


def check_schema(schema: pa.Schema) -> None:
    """Raise InvalidArgument if a write does not take these columns. Called before any row is read."""
    if "payload" not in schema.names:
        raise InvalidArgument(f"there is no column 'payload' among {', '.join(schema.names) or 'no columns'}")
    for field in schema:
        if field.name not in COLUMNS:
            raise InvalidArgument(f"column {field.name!r}: a write takes {', '.join(COLUMNS)}")
        takes, what = _TYPES[field.name]
        if not takes(field.type):
            raise InvalidArgument(f"column {field.name!r} is {field.type}, and must be {what}")


class _Rejects:
    """The rows to set aside, and the first reason for each."""

    def __init__(self, rows: int) -> None:
        self.out: Mask = np.zeros(rows, dtype=bool)
        self.reasons: dict[int, str] = {}

    def add(self, bad: Mask, reason: Callable[[int], str]) -> None:
        if not bad.any():
            return
        for row in np.flatnonzero(bad & ~self.out).tolist():
            self.reasons[row] = reason(row)
        self.out |= bad

    def add_one(self, row: int, reason: str) -> None:
        self.reasons.setdefault(row, reason)
        self.out[row] = True


def check(batch: pa.RecordBatch, default: QueueName | None, style: JsonStyle | None = None) -> Incoming:
    """Check a batch whose schema `check_schema` took. `default` is for rows that name no queue.

    `style` says which time zone the session has, and how variants are read.
    """
    style = style or JsonStyle()
    rejects = _Rejects(batch.num_rows)
    given = dict(zip(batch.schema.names, batch.columns, strict=True))
    staged: dict[str, pa.Array] = {"payload": _payload(given["payload"], rejects, style)}
    if "at" in given and pa.types.is_timestamp(given["at"].type) and given["at"].type.tz is None:
        given["at"] = _in_zone(given["at"], style.zone)
    if "delay" in given and "at" in given:
        both = _bools(pc.and_(pc.is_valid(given["delay"]), pc.is_valid(given["at"])))
        rejects.add(both, lambda row: "give delay or at, not both")
    for name, to, convert in _CONVERSIONS:
        column = given.get(name)
        if column is not None and column.null_count < len(column):
            staged[to] = convert(column, rejects)
    staged |= check_flows(given, rejects.add_one)
    targets = _targets(given, default, rejects)
    rows = pa.RecordBatch.from_arrays(
        [staged[name].cast(STAGED[name]) for name in staged],
        schema=pa.schema([(name, STAGED[name]) for name in staged]),
    )
    if not rejects.reasons:
        return Incoming([(name, rows if chosen is None else rows.take(chosen)) for name, chosen in targets], None, [])
    good: list[tuple[QueueName, pa.RecordBatch]] = []
    for target, chosen in targets:
        every = np.arange(batch.num_rows) if chosen is None else chosen
        kept = every[~rejects.out[every]]
        if len(kept):
            good.append((target, rows.take(pa.array(kept))))
    out = sorted(rejects.reasons)
    return Incoming(good, batch.take(pa.array(out)), [rejects.reasons[row] for row in out])


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _payload(column: pa.Array, rejects: _Rejects, style: JsonStyle) -> pa.Array:
    rejects.add(_bools(pc.is_null(column)), lambda row: "payload is null")
    if pa.types.is_struct(column.type):
        column = as_json(column, style)
    elif not _is_bytes(column.type):
        column = column.cast(pa.large_string()).cast(pa.large_binary())
    sizes = pc.binary_length(column)
    rejects.add(
        _bools(pc.greater(sizes, MAX_PAYLOAD)),
        lambda row: f"the payload is {sizes[row].as_py():,} bytes, and at most {MAX_PAYLOAD:,} are taken",
    )
    return column


def _whole(name: str, low: int, high: int) -> Callable[[pa.Array, _Rejects], pa.Array]:
    def convert(column: pa.Array, rejects: _Rejects) -> pa.Array:
        bad = _bools(pc.or_(pc.less(column, low), pc.greater(column, high)))
        rejects.add(bad, lambda row: f"{name}={column[row].as_py()!r} must be a whole number from {low} to {high}")
        return _blanked(column, bad).cast(pa.int64())

    return convert


def _duration(name: str, minimum: int) -> Callable[[pa.Array, _Rejects], pa.Array]:
    def convert(column: pa.Array, rejects: _Rejects) -> pa.Array:
        return _milliseconds(name, column, minimum, MAX_MS, "is not a usable duration", rejects)

    return convert


def _moment(column: pa.Array, rejects: _Rejects) -> pa.Array:
    if not pa.types.is_timestamp(column.type):
        early = _bools(pc.less(column, 0))
        rejects.add(early, lambda row: f"at={column[row].as_py()!r} is not a usable moment")
        return _milliseconds("at", _blanked(column, early), 0, 2 * MAX_MS, "is not a usable moment", rejects)
    # Rounded up in any unit, so that no job becomes visible early.
    micros = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False).cast(pa.int64())
    ms = pc.add(pc.divide(micros, 1000), pc.cast(pc.greater(_rest(micros), 0), pa.int64()))
    bad = _bools(pc.or_(pc.less(micros, 0), pc.greater(ms, 2 * MAX_MS)))
    rejects.add(bad, lambda row: f"at={column[row]} is not a usable moment")
    return _blanked(ms, bad)


def _in_zone(column: pa.Array, zone: str) -> pa.Array:
    """Local times as moments. One that a change of the clocks skips is later by what they skip, as in Spark's casts."""
    try:
        return pc.assume_timezone(column, zone, ambiguous="earliest", nonexistent="raise")
    except pa.ArrowInvalid:
        found = zone_of(zone)
        moments = [None if local is None else _moment_of(local, found) for local in column.to_pylist()]
        return pa.array(moments, pa.timestamp("us", tz="UTC"))


def _moment_of(local: datetime, zone: tzinfo) -> datetime:
    return local.replace(tzinfo=zone).astimezone(UTC)


def _rest(micros: pa.Array) -> pa.Array:
    return pc.subtract(micros, pc.multiply(pc.divide(micros, 1000), 1000))


def _milliseconds(name: str, column: pa.Array, low: int, high: int, why: str, rejects: _Rejects) -> pa.Array:
    """Seconds or an interval as whole milliseconds, rounded up. Values that are not numbers are set aside."""
    valid = _bools(pc.is_valid(column))
    with np.errstate(invalid="ignore", over="ignore"):
        if pa.types.is_duration(column.type):
            # Integers: a float does not hold large numbers of milliseconds exactly.
            micros = pc.fill_null(column.cast(pa.duration("us"), safe=False).cast(pa.int64()), 0)
            ms = -(-np.asarray(micros.to_numpy(zero_copy_only=False)) // 1000)
        else:
            seconds = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            ms = np.ceil(np.round(np.asarray(seconds, dtype=float) * 1000, 3))
        bad = valid & ~((ms >= low) & (ms <= high))
    rejects.add(bad, lambda row: f"{name}={column[row].as_py()!r} {why}")
    usable = valid & ~bad
    return pa.array(np.where(usable, ms, 0).astype(np.int64), mask=~usable)


def _key(column: pa.Array, rejects: _Rejects) -> pa.Array:
    sizes = pc.binary_length(column)
    rejects.add(_bools(pc.equal(sizes, 0)), lambda row: "key must be a non-empty string, not ''")
    long = _bools(pc.greater(sizes, MAX_KEY_BYTES))
    rejects.add(long, lambda row: f"key has {sizes[row].as_py()} bytes, and at most {MAX_KEY_BYTES} are taken")
    return column


def _headers(column: pa.Array, rejects: _Rejects) -> pa.Array:
    column = column.cast(pa.map_(pa.string(), pa.string()))
    items = column.items
    broken = pc.is_null(items)
    sizes = np.asarray(pc.fill_null(pc.add(_size(column.keys), _size(items)), 0).to_numpy(zero_copy_only=False))
    offsets = np.asarray(column.offsets.to_numpy(zero_copy_only=False))
    # The offsets of a sliced array point into the items of the whole array.
    shift = int(offsets[0]) if len(items) == int(offsets[-1]) - int(offsets[0]) else 0
    flat = np.concatenate(([0], np.cumsum(sizes)))
    ends = np.clip(offsets - shift, 0, len(sizes))
    total = flat[ends[1:]] - flat[ends[:-1]]
    rejects.add(
        np.asarray(total > MAX_HEADERS_BYTES),
        lambda row: f"the headers are {int(total[row]):,} bytes, and at most {MAX_HEADERS_BYTES:,} are taken",
    )
    nulls = np.concatenate(([0], np.cumsum(_bools(broken).astype(np.int64))))
    rejects.add(
        np.asarray(nulls[ends[1:]] > nulls[ends[:-1]]), lambda row: "headers map strings to strings, not to null"
    )
    return column


def _group(column: pa.Array, rejects: _Rejects) -> pa.Array:
    wrong = _bools(pc.invert(pc.match_substring_regex(column.cast(pa.string()), _NAMES["group"])))
    rejects.add(wrong, lambda row: _name_reason("group", column[row].as_py()))
    return column


def _size(column: pa.Array) -> pa.Array:
    return pc.binary_length(column).cast(pa.int64())


_CONVERSIONS: tuple[tuple[str, str, Callable[[pa.Array, _Rejects], pa.Array]], ...] = (
    ("delay", "delay_ms", _duration("delay", 0)),
    ("at", "at_ms", _moment),
    ("priority", "priority", _whole("priority", 0, 9)),
    ("key", "key", _key),
    ("max_attempts", "max_attempts", _whole("max_attempts", 1, MAX_ATTEMPTS)),
    ("ttl", "ttl_ms", _duration("ttl", 1)),
    ("headers", "headers", _headers),
    ("group", "group", _group),
)


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _targets(
    given: dict[str, pa.Array], default: QueueName | None, rejects: _Rejects
) -> list[tuple[QueueName, np.ndarray[Any, Any] | None]]:
    """The queues of a batch, each with the rows that go there; None: all of them."""
    if default is not None and "tenant" not in given and "queue" not in given:
        return [(default, None)]
    columns = []
    for kind in ("tenant", "queue"):
        column = given.get(kind)
        said = None if default is None else getattr(default, kind)
        if column is None or column.null_count == len(column):
            column = pa.repeat(pa.scalar(said, pa.string()), len(rejects.out))
        elif said is not None:
            column = pc.fill_null(column.cast(pa.string()), said)
        elif kind == "tenant":
            column = pc.fill_null(column.cast(pa.string()), "default")
        columns.append(column)
    if columns[1].null_count:
        rejects.add(_bools(pc.is_null(columns[1])), lambda row: "no queue is named, by the row or by the write")
    if columns[0].null_count:
        columns[0] = pc.fill_null(columns[0], "default")
    if "tenant" not in given and "queue" not in given:
        return []
    for kind, column in zip(("tenant", "queue"), columns, strict=True):
        wrong = _bools(pc.invert(pc.match_substring_regex(column, _NAMES[kind])))
        rejects.add(wrong, lambda row, kind=kind, column=column: _name_reason(kind, column[row].as_py()))  # type: ignore[misc]
    return _grouped(*columns)


def _grouped(tenants: pa.Array, queues: pa.Array) -> list[tuple[QueueName, np.ndarray[Any, Any] | None]]:
    pairs = pa.table({"tenant": tenants, "queue": queues, "row": np.arange(len(queues))})
    found = pairs.group_by(["tenant", "queue"], use_threads=False).aggregate([("row", "list")])
    return [
        (QueueName(row["tenant"], row["queue"] or ""), np.asarray(row["row_list"]))
        for row in found.sort_by([("tenant", "ascending"), ("queue", "ascending")]).to_pylist()
    ]


def _name_reason(kind: str, name: object) -> str:
    try:
        checked(kind, name)
    except InvalidArgument as exc:
        return str(exc)
    return f"{kind} {name!r} is not a name"


# ── small things ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _bools(mask: pa.Array) -> Mask:
    found: Mask = np.asarray(pc.fill_null(mask, False).to_numpy(zero_copy_only=False), dtype=bool)
    return found


def _blanked(column: pa.Array, bad: Mask) -> pa.Array:
    """Null where `bad`: those rows are set aside, and their values may not fit the type of the cast."""
    return pc.if_else(pa.array(~bad), column, pa.scalar(None, column.type)) if bad.any() else column


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_null(kind: pa.DataType) -> bool:
    return bool(pa.types.is_null(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


_TYPES: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "payload": (
        lambda kind: _is_bytes(kind) or _is_text(kind) or bool(pa.types.is_struct(kind)),
        "binary, a string, a struct or a variant",
    ),
    **{
        name: (lambda kind: _is_text(kind) or _is_null(kind), "a string")
        for name in ("queue", "tenant", "key", "group", "flow", "name", "on_parent_dead")
    },
    "after": (
        lambda kind: _is_null(kind) or (_is_list(kind) and (_is_text(kind.value_type) or _is_null(kind.value_type))),
        "an array of strings",
    ),
    **{
        name: (lambda kind: bool(pa.types.is_integer(kind)) or _is_null(kind), "a whole number")
        for name in ("priority", "max_attempts")
    },
    **{
        name: (
            lambda kind: _is_number(kind) or bool(pa.types.is_duration(kind)) or _is_null(kind),
            "seconds, or an interval of days to seconds",
        )
        for name in ("delay", "ttl")
    },
    "at": (
        lambda kind: _is_number(kind) or bool(pa.types.is_timestamp(kind)) or _is_null(kind),
        "a timestamp, or seconds since 1970",
    ),
    "headers": (
        lambda kind: bool(pa.types.is_map(kind)) or _is_null(kind),
        "a map of strings",
    ),
}
