"""Columns are held to the same rules as single jobs, value by value."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tenure.bulk import input_rows, staging
from tenure.bulk.json_payloads import JsonStyle
from tenure.errors import InvalidArgument, TenureError
from tenure.model.job import NewJob
from tenure.model.names import QueueName
from tenure.model.request import JobRequest, job_request

WORK = QueueName("default", "work")


def through_columns(**columns: pa.Array) -> tuple[list[JobRequest | str], int]:
    """What becomes of each row: a request, or the reason why not."""
    rows = len(next(iter(columns.values())))
    columns.setdefault("payload", pa.array([b"x"] * rows, pa.binary()))
    batch = pa.RecordBatch.from_pydict(columns)
    input_rows.check_schema(batch.schema)
    found = input_rows.check(batch, WORK)
    good = [r for _, chunk in found.good for r in staging.requests(staging.complete(chunk))]
    return [*good, *found.reasons], len(good)


def one_by_one(**fields: Any) -> JobRequest | None:
    try:
        return job_request(NewJob(b"x", **fields))
    except TenureError:
        return None


DURATIONS = [0, 0.0, 1, 0.001, 0.0001, 1.5, 0.0015, 1e-9, 30.0, 86_400, 3e9, 3.2e9, 1e18, -0.001, -1, math.nan, math.inf,
             -math.inf, 0.1 + 0.2, 1.001, 2.003, None]  # fmt: skip


@pytest.mark.parametrize("column", ["delay", "ttl"])
def test_durations(column: str) -> None:
    for value in DURATIONS:
        expected = one_by_one(**{column: value})
        found, good = through_columns(**{column: pa.array([value], pa.float64())})
        assert (found[0] if good else None) == expected, f"{column}={value}: {found}"


@pytest.mark.parametrize(
    "span", [timedelta(0), timedelta(microseconds=1), timedelta(days=2, milliseconds=1), timedelta(-1)]
)
def test_intervals(span: timedelta) -> None:
    found, good = through_columns(delay=pa.array([span], pa.duration("us")))
    assert (found[0] if good else None) == one_by_one(delay=span)


def test_numbers_of_other_types() -> None:
    for values in (pa.array([3], pa.int32()), pa.array([3], pa.int64()), pa.array([Decimal("3.00")])):
        found, good = through_columns(delay=values)
        assert good == 1
        assert found[0] == job_request(NewJob(b"x", delay=3))


MOMENTS = [
    datetime(2026, 11, 15, tzinfo=UTC), datetime(2026, 11, 15, 1, 2, 3, 4, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), datetime(2169, 1, 1, tzinfo=UTC),
    datetime(2400, 1, 1, tzinfo=UTC),
]  # fmt: skip


@pytest.mark.parametrize("moment", MOMENTS)
def test_moments(moment: datetime) -> None:
    expected = one_by_one(at=moment)
    found, good = through_columns(at=pa.array([moment], pa.timestamp("us", tz="UTC")))
    assert (found[0] if good else None) == expected
    found, good = through_columns(at=pa.array([moment.timestamp()], pa.float64()))
    expected = one_by_one(at=moment.timestamp())
    assert (found[0] if good else None) == expected


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("priority", [0, 9, 5, 10, -1, 255, None]),
        ("max_attempts", [1, 5, 0, -1, 10**6, 10**12, None]),
    ],
)
def test_whole_numbers(column: str, values: list[int | None]) -> None:
    for value in values:
        expected = one_by_one(**{column: value if value is not None or column != "priority" else 0})
        found, good = through_columns(**{column: pa.array([value], pa.int64())})
        assert (found[0] if good else None) == expected, f"{column}={value}: {found}"


def test_keys_and_headers() -> None:
    keys = ["k", "", "ä" * 256, "ä" * 257, None]
    for key in keys:
        found, good = through_columns(key=pa.array([key], pa.string()))
        assert (found[0] if good else None) == one_by_one(key=key), key
    for headers in ({"a": "b"}, {}, None, {"a": "x" * 16_383}, {"a": "x" * 16_384}):
        found, good = through_columns(
            headers=pa.array([headers and list(headers.items())], input_rows.STAGED["headers"])
        )
        assert (found[0] if good else None) == one_by_one(headers=headers), str(headers)[:40]
    found, good = through_columns(headers=pa.array([[("a", None)]], input_rows.STAGED["headers"]))
    assert not good


def test_headers_of_a_slice() -> None:
    """Arrow's slices keep the whole column's offsets."""
    whole = pa.RecordBatch.from_pydict(
        {
            "payload": [b"0", b"1", b"2"],
            "headers": pa.array([[("a", "x" * 20_000)], [("a", "1")], [("b", None)]], input_rows.STAGED["headers"]),
        }
    )
    found = input_rows.check(whole.slice(1), WORK)
    assert [r.headers for _, chunk in found.good for r in staging.requests(staging.complete(chunk))] == [{"a": "1"}]
    assert found.reasons == ["headers map strings to strings, not to null"]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([b"a", None]), [b"a"]),
        (pa.array(["ä", None]), ["ä".encode()]),
        (pa.array([{"n": 1, "t": "x"}, None]), [b'{"n":1,"t":"x"}']),
        (pa.array([b"a", b"\0" * (8 * 1024 * 1024 + 1)]), [b"a"]),
    ],
)
def test_payloads(column: pa.Array, expected: list[bytes]) -> None:
    found = input_rows.check(pa.RecordBatch.from_pydict({"payload": column}), WORK)
    assert [r.payload for _, chunk in found.good for r in staging.requests(staging.complete(chunk))] == expected
    assert len(found.reasons) == 1


@pytest.mark.parametrize(
    ("zone", "hours"),
    [("UTC", 0), ("Z", 0), ("+02:00", 2), ("GMT+2", 2), ("-3", -3), ("PST", -8), ("CST", -6), ("JST", 9), ("EST", -5),
     ("Asia/Kathmandu", 5.75)],
)  # fmt: skip
def test_a_local_time_in_any_zone_that_spark_takes(zone: str, hours: float) -> None:
    noon = datetime(2040, 1, 1, 12, tzinfo=UTC)
    local = pa.array([noon.replace(tzinfo=None)], pa.timestamp("us"))
    batch = pa.RecordBatch.from_pydict({"payload": pa.array([b"x"]), "at": local})
    ((_, rows),) = input_rows.check(batch, WORK, JsonStyle(zone)).good
    moment = noon - timedelta(hours=hours)
    assert rows.column("at_ms").to_pylist() == [round(moment.timestamp() * 1000)]


def test_rows_go_to_the_queues_they_name() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "payload": [b"0", b"1", b"2", b"3", b"4"],
            "queue": ["a", None, "b", "a", "No"],
            "tenant": ["t", None, None, "t", None],
        }
    )
    found = input_rows.check(batch, WORK)
    went = {name: [r.payload for r in staging.requests(staging.complete(rows))] for name, rows in found.good}
    assert went == {QueueName("t", "a"): [b"0", b"3"], WORK: [b"1"], QueueName("default", "b"): [b"2"]}
    assert found.bad is not None
    assert found.bad.column("payload").to_pylist() == [b"4"]
    assert "'No'" in found.reasons[0]


def test_a_row_without_a_queue_is_set_aside() -> None:
    found = input_rows.check(pa.RecordBatch.from_pydict({"payload": [b"0", b"1"], "queue": ["a", None]}), None)
    assert [str(name) for name, _ in found.good] == ["a"]
    assert len(found.reasons) == 1


def test_a_row_has_the_first_reason() -> None:
    batch = pa.RecordBatch.from_pydict({"payload": pa.array([None], pa.binary()), "priority": [11]})
    assert input_rows.check(batch, WORK).reasons == ["payload is null"]


def test_delay_or_at() -> None:
    moment = pa.array([MOMENTS[0], None], pa.timestamp("us", tz="UTC"))
    batch = pa.RecordBatch.from_pydict({"payload": [b"0", b"1"], "delay": [1, 1], "at": moment})
    found = input_rows.check(batch, WORK)
    assert found.reasons == ["give delay or at, not both"]
    assert sum([rows.num_rows for _, rows in found.good]) == 1


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("queue", pa.string())]),
        pa.schema([("payload", pa.int64())]),
        pa.schema([("payload", pa.binary()), ("colour", pa.string())]),
        pa.schema([("payload", pa.binary()), ("priority", pa.string())]),
        pa.schema([("payload", pa.binary()), ("delay", pa.bool_())]),
        pa.schema([("payload", pa.binary()), ("headers", pa.string())]),
    ],
)
def test_columns_that_cannot_be_enqueued(schema: pa.Schema) -> None:
    with pytest.raises(InvalidArgument):
        input_rows.check_schema(schema)
