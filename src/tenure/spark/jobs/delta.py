"""A history's tables as Delta tables, through `deltalake`: no jar of Spark's is needed, and any reader of Delta can
read them.

Run by run, from the logged Parquet files. Each Delta commit carries the run's number as an application transaction, so
a run is added once, even if processes were killed; what is open is replaced.
"""

from __future__ import annotations

from tenure.extras import needs
from tenure.spark.jobs.lake import OPEN, Entry, Lake
from tenure.spark.jobs.summary import Told, quietly

APP = "tenure-history"


def publish(root: str, *, told: Told = quietly) -> dict[str, int]:
    """Bring the Delta tables in ROOT/delta up to the log; table → its version."""
    with needs("delta", "Delta tables"):
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
    lake = Lake(root)
    entries = lake.entries()
    versions: dict[str, int] = {}
    for table in entries[-1].tables if entries else ():
        path = f"{lake.root.address}/delta/{table}"
        done = -1
        if DeltaTable.is_deltatable(path):
            done = DeltaTable(path).transaction_version(APP) or -1
        for entry in _missing(entries, table, done):
            told(f"delta: {table}, run {entry.number}")
            data = lake.root.dataset([entry.tables[table]])
            write_deltalake(
                path,
                data.scanner().to_reader(),
                mode="overwrite" if table in OPEN else "append",
                commit_properties=CommitProperties(app_transactions=[Transaction(APP, entry.number)]),
            )
        versions[table] = DeltaTable(path).version()
    return versions


def _missing(entries: list[Entry], table: str, done: int) -> list[Entry]:
    later = [entry for entry in entries if entry.number > done]
    # Only the last run's open tables count; the files of earlier ones were removed.
    return later[-1:] if table in OPEN else later
