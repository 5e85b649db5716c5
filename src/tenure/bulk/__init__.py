"""The keyspace as Arrow tables. Needs pyarrow and numpy (`pip install 'tenure[spark]'`); nothing below imports it.

store ── take_snapshot ──▶ a moment ── plan ──▶ parts (key ranges) ── read ──▶ record batches

query.py   what is asked           plan.py     parts, and who reads them     arrays.py  checks and columns at once
jobs.py events.py small.py         the tables  schemas.py                    layouts.py the records as numpy sees them
moments.py opening a moment, by folder or in the process                     sums.py    CRC-32 of many values at once
extents.py cutting a space by what is known of it without reading it
"""

from __future__ import annotations

try:
    import numpy as _numpy
    import pyarrow as _pyarrow
except ImportError as exc:  # pragma: no cover - where the extra is not installed
    from tenure.extras import missing

    raise ImportError(missing("tenure.bulk", str(exc.name), "spark")) from exc

from tenure.bulk.query import Query
from tenure.bulk.schemas import TABLES, schema
from tenure.bulk.snapshots import batches, read

del _numpy, _pyarrow

__all__ = ["TABLES", "Query", "batches", "read", "schema"]
