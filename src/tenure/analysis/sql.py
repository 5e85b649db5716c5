"""SQL over Arrow tables in this process, by DuckDB.

Every statement of `tenure.analysis` is written in the part of SQL that Spark and DuckDB share, with Spark's names for
functions. Here DuckDB is taught those names. A table is written `{events}`, as `SparkSession.sql` takes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from string import Formatter
from typing import Any, Protocol

import pyarrow as pa

from tenure.extras import needs

#: Spark's functions, by DuckDB's own.
_MACROS = (
    "unix_millis(t) AS epoch_ms(t)",
    "timestamp_millis(n) AS make_timestamp(CAST(n AS BIGINT) * 1000)",
    # The one format that the statements use.
    "date_format(t, format) AS strftime(t, '%Y-%m-%d %H:%M:%S.%g')",
    r"regexp_replace(s, pattern, put) AS system.main.regexp_replace(s, pattern, replace(put, '$', '\'), 'g')",
    "split(s, pattern) AS regexp_split_to_array(s, pattern)",
    "element_at(items, place) AS items[place]",
    "sequence(first, last) AS generate_series(first, last)",
    "explode(items) AS unnest(items)",
    # Keeps every value instead of a sketch: up to a million events, percentiles are exact.
    "kll_sketch_agg_bigint(x, k) AS list(x) FILTER (x IS NOT NULL)",
    "kll_merge_agg_bigint(sketch) AS flatten(list(sketch))",
    "kll_sketch_get_n_bigint(sketch) AS coalesce(len(sketch), 0)",
    "kll_sketch_get_quantile_bigint(sketch, p) AS list_aggregate(sketch, 'quantile_disc', p)",
)


class Engine(Protocol):
    """What runs statements: `Sql` here, `tenure.spark.statements.SparkEngine` on Spark.

    A table is what `keep` returned, or what the engine's caller made for this engine (Arrow tables, DataFrames).
    """

    def rows(self, text: str, **tables: Any) -> list[dict[str, Any]]: ...

    def keep(self, name: str, text: str, **tables: Any) -> Any:
        """Work a table out once, for statements that follow."""


class Sql:
    """One DuckDB, in memory. Tables given to `query` are read where they are, without a copy."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def query(self, text: str, **tables: pa.Table | str) -> pa.Table:
        """The answer as an Arrow table; a table is Arrow, or the name of one that was kept."""
        return self._connection.sql(self._prepared(text, tables)).to_arrow_table()

    def rows(self, text: str, **tables: pa.Table | str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.query(text, **tables).to_pylist()
        return found

    def keep(self, name: str, text: str, **tables: pa.Table | str) -> str:
        """Work a table out once, for statements that follow; returns its name."""
        self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {self._prepared(text, tables)}")
        return name

    def _prepared(self, text: str, tables: Mapping[str, pa.Table | str]) -> str:
        names = {}
        for name, table in tables.items():
            names[name] = table if isinstance(table, str) else f"given_{name}"
            if not isinstance(table, str):
                self._connection.register(names[name], _without_zone(table))
        return formatted(text, names)


def _without_zone(table: pa.Table) -> pa.Table:
    """Times as plain UTC: DuckDB does zones by an extension that it would have to download."""
    fields = [
        field.with_type(pa.timestamp(field.type.unit)) if pa.types.is_timestamp(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def formatted(text: str, names: Mapping[str, str]) -> str:
    """The statement for DuckDB: tables by their names there, its quotes around identifiers; all its texts are raw."""
    wanted = {name for _, name, _, _ in Formatter().parse(text) if name}
    return text.format(**{name: names[name] for name in wanted}).replace("`", '"').replace(" r'", " '")


@contextmanager
def local_sql() -> Iterator[Sql]:
    """A DuckDB for the length of a block. Raises SettingsError where it is not installed."""
    with needs("analysis", "audits and reports without Spark"):
        import duckdb
    connection = duckdb.connect(":memory:")
    try:
        connection.execute("SET enable_progress_bar = false")
        for macro in _MACROS:
            connection.execute(f"CREATE TEMP MACRO {macro}")
        yield Sql(connection)
    finally:
        connection.close()
