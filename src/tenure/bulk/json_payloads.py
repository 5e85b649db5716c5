"""Structs and variants as JSON text, byte for byte what Spark's `to_json` writes wherever a reader could tell.

null fields of a struct are left out (`JsonStyle.nulls`: written); null values of maps and arrays are written
timestamp        "2026-01-31T12:00:00.000Z", in the session's time zone     without a zone: no offset
date             "2026-01-31"          binary    base64                     NaN, Infinity   as strings
decimal          a number              interval  "INTERVAL '1 02:03:04' DAY TO SECOND"
variant          its own JSON
keys of maps     as text; of times, microseconds since 1970; of dates, days
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
import numpy as np
import pyarrow as pa

from tenure.errors import InvalidArgument

Variant = Callable[[bytes, bytes], str]
"""A variant's value and metadata as JSON text."""
_Convert = Callable[[Any], object]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_encode = msgspec.json.Encoder(decimal_format="number").encode


class JsonStyle(NamedTuple):
    """What the text depends on besides the values: the session's time zone, the reader of variants (None: there is
    none), and whether null fields of structs are written.
    """

    zone: str = "UTC"
    variant: Variant | None = None
    nulls: bool = False


#: Names of time zones that Java knows and Python does not.
_SHORT_NAMES = {
    "Z": "UTC", "UT": "UTC", "ACT": "Australia/Darwin", "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires", "ART": "Africa/Cairo", "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka", "CAT": "Africa/Harare", "CNT": "America/St_Johns",
    "CST": "America/Chicago", "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan", "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?\Z")


def zone_of(name: str) -> tzinfo:
    """A time zone by its name, or by its offset as Spark also takes it (`+02:00`, `GMT+2`). Raises InvalidArgument."""
    offset = _OFFSET.match(name)
    if offset is not None:
        sign, hours, minutes = offset.groups()
        found = timedelta(hours=int(hours), minutes=int(minutes or 0))
        return timezone(-found if sign == "-" else found)
    try:
        return ZoneInfo(_SHORT_NAMES.get(name, name))
    except (ValueError, ZoneInfoNotFoundError):
        raise InvalidArgument(f"time zone {name!r} is not known here") from None


def as_json(column: pa.Array, style: JsonStyle) -> pa.Array:
    """A column of structs or variants as JSON text, in bytes; null where it is null."""
    convert = _converter(column.type, style)
    texts = [None if value is None else _encode(convert(value)) for value in column.to_pylist()]
    return pa.array(texts, pa.large_binary())


def _converter(kind: pa.DataType, style: JsonStyle) -> _Convert:
    """From a value as pyarrow gives it to one that the JSON encoder writes as Spark does."""
    if _is_variant(kind) and style.variant is not None:
        return partial(_of_variant, style.variant)
    if pa.types.is_struct(kind):
        fields = [(field.name, _converter(field.type, style)) for field in kind]
        return partial(_struct, fields, style.nulls)
    if pa.types.is_map(kind):
        return partial(_map, _key_converter(kind.key_type), _converter(kind.item_type, style))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return partial(_list, _converter(kind.value_type, style))
    if pa.types.is_timestamp(kind):
        return _local_time if kind.tz is None else partial(_time, zone_of(style.zone))
    if pa.types.is_float32(kind):
        return _single
    for matches, convert in _PLAIN:
        if matches(kind):
            return convert
    return _same


def _is_variant(kind: pa.DataType) -> bool:
    """As PySpark sends it: a struct of two binaries, the second of which says that it belongs to a variant."""
    if not pa.types.is_struct(kind) or [field.name for field in kind] != ["value", "metadata"]:
        return False
    return (kind.field("metadata").metadata or {}).get(b"variant") == b"true"


def _of_variant(read: Variant, value: dict[str, bytes]) -> object:
    return msgspec.Raw(read(value["value"], value["metadata"]).encode())


def _struct(fields: list[tuple[str, _Convert]], nulls: bool, value: dict[str, Any]) -> object:
    there = [(name, convert, value[name]) for name, convert in fields]
    return {name: None if item is None else convert(item) for name, convert, item in there if nulls or item is not None}


def _map(name: Callable[[Any], str], convert: _Convert, value: list[tuple[Any, Any]]) -> object:
    return {name(key): None if item is None else convert(item) for key, item in value}


def _key_converter(kind: pa.DataType) -> Callable[[Any], str]:
    """From a key of a map to its name: Spark writes that of a time or a date as the number that it stores."""
    if pa.types.is_timestamp(kind):
        return _micros
    return _days if pa.types.is_date(kind) else _key


def _micros(key: datetime) -> str:
    since = key.replace(tzinfo=UTC) if key.tzinfo is None else key
    return str((since - _EPOCH) // timedelta(microseconds=1))


def _days(key: date) -> str:
    return str((key - _EPOCH.date()).days)


def _key(key: Any) -> str:
    return ("true" if key else "false") if isinstance(key, bool) else str(key)


def _list(convert: _Convert, value: list[Any]) -> object:
    return [None if item is None else convert(item) for item in value]


def _time(zone: tzinfo, value: datetime) -> str:
    local = value.astimezone(zone)
    offset = local.utcoffset() or timedelta(0)
    minutes = round(offset.total_seconds() / 60)
    sign = "-" if minutes < 0 else "+"
    return _local_time(local) + (f"{sign}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}" if minutes else "Z")


def _local_time(value: datetime) -> str:
    return f"{_date(value)}T{value:%H:%M:%S}.{value.microsecond // 1000:03}"


def _date(value: date) -> str:
    return f"{value.year:04}-{value.month:02}-{value.day:02}"


def _interval(value: timedelta) -> str:
    micros = round(value / timedelta(microseconds=1))
    seconds, fraction = divmod(abs(micros), 1_000_000)
    rest = f".{fraction:06}".rstrip("0") if fraction else ""
    hours, minutes = seconds // 3600, seconds // 60 % 60
    sign = "-" if micros < 0 else ""
    return f"INTERVAL '{sign}{hours // 24} {hours % 24:02}:{minutes:02}:{seconds % 60:02}{rest}' DAY TO SECOND"


def _double(value: float) -> object:
    if value != value:
        return "NaN"
    return value if abs(value) != float("inf") else "Infinity" if value > 0 else "-Infinity"


def _single(value: float) -> object:
    """The shortest number that is this one in single precision: 0.1, not 0.10000000149011612."""
    found = _double(value)
    return found if isinstance(found, str) else float(str(np.float32(value)))


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _decimal(value: Decimal) -> object:
    return msgspec.Raw(f"{value:f}".encode())


def _same(value: object) -> object:
    return value


_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], _Convert], ...] = (
    (pa.types.is_floating, _double),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_date, _date),
    (pa.types.is_duration, _interval),
    (pa.types.is_binary, _base64),
    (pa.types.is_large_binary, _base64),
)
