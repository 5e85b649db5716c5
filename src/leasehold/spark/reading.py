"""Reading a store's tables: options to partitions to record batches."""

from __future__ import annotations

from collections.abc import Mapping

from leasehold.bulk.schemas import ddl
from leasehold.spark.options import checked, url_of

OPTIONS = frozenset(
    {"url", "table", "tenant", "queue", "state", "since", "until", "columns", "rowsPerPartition", "snapshot",
     "pushdown", "startingOffsets", "maxEventsPerTrigger"}
)  # fmt: skip


def schema(options: Mapping[str, str]) -> str:
    found = checked(options, OPTIONS, "a read")
    url_of(found)
    columns = [name.strip() for name in found["columns"].split(",")] if found.get("columns") else None
    return ddl(found.get("table", "jobs"), columns)
