"""Rows of any table as jobs: which column, or what expression, gives what."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tenure.errors import InvalidArgument

#: What a job may be given, beside `headers.NAME`.
FIELDS = (
    "payload", "queue", "tenant", "priority", "delay", "at", "key", "max_attempts", "ttl", "headers", "group",
)  # fmt: skip
BAD = "_bad_record"


def as_jobs(rows: DataFrame, mapping: Mapping[str, str]) -> DataFrame:
    """The columns a write takes: each field of `mapping` by its SQL expression over the rows.

    With no `payload`, it is the whole row as JSON. `headers.NAME` gives one header; nulls are left out.
    """
    known = [*FIELDS, "headers.NAME"]
    for field in mapping:
        if field not in FIELDS and not (field.startswith("headers.") and len(field) > 8):
            raise InvalidArgument(f"a job has no {field!r}: it has {', '.join(known)}")
    if "headers" in mapping and any(field.startswith("headers.") for field in mapping):
        raise InvalidArgument("give headers as one map, or each by its name, not both")
    columns = [F.expr(said).alias(field) for field, said in mapping.items() if field in FIELDS]
    if "payload" not in mapping:
        used = [name for name in rows.columns if name != BAD]
        columns.append(F.to_json(F.struct(*[F.col(f"`{name}`") for name in used])).alias("payload"))
    named = {field[8:]: said for field, said in mapping.items() if field.startswith("headers.")}
    if named:
        pairs = [
            F.struct(F.lit(name).alias("key"), F.expr(said).cast("string").alias("value"))
            for name, said in named.items()
        ]
        given = F.filter(F.array(*pairs), lambda pair: pair["value"].isNotNull())
        columns.append(F.map_from_entries(given).alias("headers"))
    return rows.select(*columns)


def parse_mapping(pairs: tuple[str, ...]) -> dict[str, str]:
    """`field=expression` of a command line."""
    found: dict[str, str] = {}
    for pair in pairs:
        field, equals, said = pair.partition("=")
        if not equals or not field.strip() or not said.strip():
            raise InvalidArgument(
                f"{pair!r}: a mapping is FIELD=EXPRESSION, as in priority=urgency or key=concat('o-', id)"
            )
        if field.strip() in found:
            raise InvalidArgument(f"{field.strip()!r} is mapped twice")
        found[field.strip()] = said.strip()
    return found
