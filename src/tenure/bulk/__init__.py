"""The keyspace as Arrow tables. Needs pyarrow and numpy (`pip install 'tenure[analysis]'`); nothing below imports it.

store ── take_snapshot ──▶ a moment ── plan ──▶ parts (key ranges) ── read ──▶ record batches

table_access.py  whole tables: read(), batches(), tables()    schemas.py    the tables, column by column
query.py         what is asked                                plan.py       parts, and which module reads them
jobs.py events.py index_tables.py flow_tables.py   the tables   layouts.py    the records as numpy sees them
arrays.py        values checked and made columns at once      checksums.py  CRC-32 of many values at once
snapshots.py     opening a moment, in this process or by its folder; snapshot_locations.py finds it by the store's address
extents.py       cutting a space by what is known of it without reading it
"""

from __future__ import annotations

try:
    import numpy as _numpy
    import pyarrow as _pyarrow
except (
    ModuleNotFoundError
) as exc:  # where the extra is not installed; `extras.needs` words it for its caller by the name
    from tenure.extras import missing

    raise ModuleNotFoundError(missing("tenure.bulk", str(exc.name), "analysis"), name=exc.name) from exc

from tenure.bulk.query import Query
from tenure.bulk.schemas import TABLES, schema
from tenure.bulk.table_access import Tables, batches, read, tables

del _numpy, _pyarrow

__all__ = ["TABLES", "Query", "Tables", "batches", "read", "schema", "tables"]
