"""`audit` without Spark: the laws over one snapshot, by DuckDB in this process."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tenure.analysis import laws
from tenure.analysis.sql import local_sql
from tenure.analysis.summary import Summary, Told, quietly
from tenure.api.store import Store
from tenure.bulk import Tables, tables
from tenure.errors import InvalidArgument

SHOWN = 1000


def audit(
    source: Store | str,
    *,
    output: str | None = None,
    shown: int = SHOWN,
    token: str | None = None,
    told: Told = quietly,
) -> Summary:
    """Look for what breaks a law; `tenure.spark.jobs.audit` is the same for stores beyond a million events.

    `source` is an open store or a store's address. Up to `shown` violations are in `facts["violations"]`; all of them
    are written as Parquet into the new folder `output`.
    """
    began = time.monotonic()
    check_output(output)
    told("reading one snapshot")
    with tables(source, token=token) as moment:
        found = arrow_tables(moment)
    counted = {"jobs": found["jobs"].num_rows, "events": found["events"].num_rows}
    told(f"{counted['jobs']:,} jobs and {counted['events']:,} events: looking for what breaks a law")
    with local_sql() as sql:
        marked = sql.keep("marked", laws.MARKED, **found)
        grouped = sql.keep("grouped", laws.GROUPED, **found)
        violations = sql.keep("violations", laws.VIOLATIONS, marked=marked, grouped=grouped, **found)
        broken = sql.query(laws.ORDERED, violations=violations)
    if output is not None:
        told(f"writing {broken.num_rows:,} violations")
        Path(output).expanduser().mkdir(parents=True)
        pq.write_table(broken, Path(output).expanduser() / "violations.parquet")
    return summary(counted, broken.slice(0, shown).to_pylist(), broken.num_rows, output, time.monotonic() - began)


def arrow_tables(moment: Tables) -> dict[str, pa.Table]:
    """What the laws are judged by: every table they need, and the views of them."""
    asked = {table: list(columns) for table, columns in laws.NEEDED.items()}
    for table, columns in laws.VIEWS.values():
        asked[table] += [name for name in columns if name not in asked[table]]
    found = {table: moment.read(table, columns=columns) for table, columns in asked.items()}
    return found | {view: found[table].select(list(columns)) for view, (table, columns) in laws.VIEWS.items()}


def check_output(output: str | None) -> None:
    """Refuse a folder that is there before anything is read."""
    if output is not None and Path(output).expanduser().exists():
        raise InvalidArgument(f"{output} is there already: violations are written into a new folder")


def summary(
    counted: dict[str, int], violations: list[dict[str, object]], total: int, output: str | None, seconds: float
) -> Summary:
    return Summary(
        job="audit",
        read=sum(counted.values()),
        written=total if output is not None else 0,
        rejected=total,
        seconds=seconds,
        facts={**counted, "rules": len(laws.RULES), "violations": violations, "output": output},
    )
