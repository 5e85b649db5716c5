"""A history's tables as Iceberg tables, through `pyiceberg`: no jar of Spark's and no catalog server is needed.

    ROOT/iceberg/catalog.db      the catalog: an SQLite file, for this program's own use
    ROOT/iceberg/history/…       the tables; any reader of Iceberg opens one by its newest metadata file

Run by run, from the logged Parquet files. Each snapshot carries the run's number as a property, so a run is added once,
even if processes were killed; what is open is replaced.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds

from tenure.analysis.history_folder import OPEN, Entry, HistoryFolder
from tenure.analysis.root import LocalRoot
from tenure.analysis.summary import Told, quietly
from tenure.errors import InvalidArgument
from tenure.extras import needs

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

NAMESPACE = "history"
_RUN = "tenure-run"


def publish(root: str, *, told: Told = quietly) -> dict[str, str]:
    """Bring the Iceberg tables in ROOT/iceberg up to the log; table → its newest metadata file."""
    folder = HistoryFolder(root)
    entries = folder.entries()
    catalog = _catalog(folder)
    newest: dict[str, str] = {}
    for table in entries[-1].tables if entries else ():
        made = _table(catalog, table, folder, entries[-1])
        done = _last_run(made)
        later = [entry for entry in entries if entry.number > done]
        for entry in later[-1:] if table in OPEN else later:  # the open tables of earlier runs were removed
            told(f"iceberg: {table}, run {entry.number}")
            rows = _rows(folder, table, entry).to_table()
            write = made.overwrite if table in OPEN else made.append
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Delete operation did not match")  # there was nothing open before
                write(rows.cast(_schema(rows.schema)), snapshot_properties={_RUN: str(entry.number)})
        newest[table] = made.metadata_location
    return newest


def _catalog(folder: HistoryFolder) -> Catalog:
    with needs("iceberg", "Iceberg tables"):
        from pyiceberg.catalog.sql import SqlCatalog
    if not isinstance(folder.root, LocalRoot):
        raise InvalidArgument(
            f"{folder.root.address}: Iceberg tables need a catalog, which is a file on a disk here; on an object store take"
            " Delta tables, or add the history's files to your own catalog"
        )
    home = folder.root.path / "iceberg"
    home.mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog("tenure", uri=f"sqlite:///{home / 'catalog.db'}", warehouse=home.as_uri())
    catalog.create_namespace_if_not_exists(NAMESPACE)
    return catalog


def _table(catalog: Catalog, table: str, folder: HistoryFolder, entry: Entry) -> Table:
    schema = _schema(_rows(folder, table, entry).schema)
    return catalog.create_table_if_not_exists(f"{NAMESPACE}.{table.replace('/', '_')}", schema)


def _rows(folder: HistoryFolder, table: str, entry: Entry) -> ds.Dataset:
    return folder.root.dataset([entry.tables[table]])


def _schema(found: pa.Schema) -> pa.Schema:
    """Times in microseconds, which is what the store's milliseconds need: Spark's files are read as nanoseconds."""
    fields = [
        pa.field(field.name, pa.timestamp("us", tz="UTC") if pa.types.is_timestamp(field.type) else field.type)
        for field in found
    ]
    return pa.schema(fields)


def _last_run(table: Table) -> int:
    runs = [snapshot.summary.additional_properties.get(_RUN) for snapshot in table.snapshots() if snapshot.summary]
    return max([int(run) for run in runs if run], default=0)
