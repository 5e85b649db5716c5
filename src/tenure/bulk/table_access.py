"""Whole tables of a store as Arrow, from wherever the store can be reached.

    an open Store           read in this process
    "rocksdb:/data"         also while another process owns it: the owner takes a snapshot, this process reads its files
    "http://host:port"      page by page from the server

One `Tables` is one moment: what is read through it agrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Protocol, TypedDict, Unpack

import pyarrow as pa

from tenure.api.opening import already_open
from tenure.api.store import Store
from tenure.backends.embedded import EmbeddedBackend
from tenure.bulk import snapshot_locations
from tenure.bulk.plan import plan
from tenure.bulk.plan import read as read_part
from tenure.bulk.query import Query, StoreView
from tenure.bulk.schemas import TABLES
from tenure.bulk.snapshots import view_of
from tenure.errors import InvalidArgument
from tenure.extras import needs
from tenure.model.durations import Moment as Time
from tenure.model.durations import moment_ms

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars

#: How long a snapshot outlives a reader that was killed.
_TTL_MS = 3_600_000
_ALL_ROWS = 2**40


class _Source(Protocol):
    def batches(self, query: Query) -> Iterator[pa.RecordBatch]: ...


class Rows(TypedDict, total=False):
    """Which rows and columns of a table are read; all, if nothing is said."""

    columns: Sequence[str] | None
    tenant: str | None
    queue: str | None
    #: Of jobs: a state, or several.
    state: str | Sequence[str] | None
    #: Jobs made, events that happened, from a moment on, and before another.
    since: Time | None
    until: Time | None


class Tables:
    """The tables of one moment, by name (`docs/tables.md`): as Arrow, pandas, polars, or for DuckDB."""

    def __init__(self, source: _Source) -> None:
        self._source = source

    def batches(self, table: str, **rows: Unpack[Rows]) -> Iterator[pa.RecordBatch]:
        """A table, or the rows and columns of it that are asked for, batch by batch."""
        yield from self._source.batches(_query(table, rows))

    def read(self, table: str, **rows: Unpack[Rows]) -> pa.Table:
        """The same, whole."""
        query = _query(table, rows)
        return pa.Table.from_batches(list(self._source.batches(query)), schema=query.schema)

    def pandas(self, table: str, **rows: Unpack[Rows]) -> pandas.DataFrame:
        """The same as a DataFrame of pandas, which has to be installed."""
        return self.read(table, **rows).to_pandas()

    def polars(self, table: str, **rows: Unpack[Rows]) -> polars.DataFrame:
        """The same as a DataFrame of polars, which has to be installed. Headers are lists of (name, value)."""
        import polars

        made = polars.from_arrow(self.read(table, **rows))
        assert isinstance(made, polars.DataFrame)  # of a table, not of a column
        return made

    def duckdb(self, *, tenant: str | None = None, queue: str | None = None) -> duckdb.DuckDBPyConnection:
        """A connection of DuckDB in which every table has its name: `.sql("SELECT queue, count(*) FROM jobs GROUP BY 1")`.

        The tables are read now; of one tenant or queue only, if it is named. Use the connection by `with`, which closes it.
        """
        with needs("analysis", "store.tables().duckdb()"):
            import duckdb
        connection = duckdb.connect(":memory:")
        for table in TABLES:
            connection.register(table, self.read(table, tenant=tenant, queue=queue))
        return connection


class _InProcess:
    def __init__(self, moment: StoreView) -> None:
        self._moment = moment

    def batches(self, query: Query) -> Iterator[pa.RecordBatch]:
        for part in plan(self._moment, query, _ALL_ROWS):
            yield from read_part(self._moment, query, part)


class _AtPlace:
    def __init__(self, place: snapshot_locations.Place) -> None:
        self._place = place

    def batches(self, query: Query) -> Iterator[pa.RecordBatch]:
        for part in self._place.plan(query, _ALL_ROWS):
            for batch in self._place.read(query, part):
                yield batch.replace_schema_metadata()  # a page's says where the next one begins


@contextmanager
def tables(source: Store | str, *, snapshot: str | None = None, token: str | None = None) -> Iterator[Tables]:
    """One moment of a store, open to be read: a snapshot taken before, or one taken now and dropped at the end.

    `source` is an open store or a store's address; `token` is for a server that asks for one.
    """
    if isinstance(source, str):
        source = already_open(source) or source
    if isinstance(source, Store) and isinstance(source.backend, EmbeddedBackend):
        with view_of(source, snapshot) as moment:
            yield Tables(_InProcess(moment))
        return
    url = source if isinstance(source, str) else source.url
    if snapshot is not None:
        yield Tables(_AtPlace(snapshot_locations.find(url, snapshot, token)))
        return
    place = snapshot_locations.take(url, _TTL_MS, "read", token)
    try:
        yield Tables(_AtPlace(place))
    finally:
        snapshot_locations.drop(url, place.id, token)


def batches(
    source: Store | str, table: str, *, snapshot: str | None = None, token: str | None = None, **rows: Unpack[Rows]
) -> Iterator[pa.RecordBatch]:
    """A table of a store, batch by batch, all of one moment; `source` is an open store or a store's address."""
    with tables(source, snapshot=snapshot, token=token) as found:
        yield from found.batches(table, **rows)


def read(
    source: Store | str, table: str, *, snapshot: str | None = None, token: str | None = None, **rows: Unpack[Rows]
) -> pa.Table:
    """A table of a store, whole; `source` is an open store or a store's address."""
    with tables(source, snapshot=snapshot, token=token) as found:
        return found.read(table, **rows)


def _query(table: str, rows: Rows) -> Query:
    """Raises InvalidArgument; TypeError for a selection that does not exist: without it, all rows would be read."""
    for name in rows:
        if name not in Rows.__annotations__:
            near = get_close_matches(name, Rows.__annotations__, 1)
            meant = f": did you mean {near[0]!r}?" if near else f": there are {', '.join(Rows.__annotations__)}"
            raise TypeError(f"tables are not selected by {name!r}{meant}")
    if isinstance(rows.get("columns"), str):
        raise InvalidArgument("columns is a list of names")
    state, since, until = rows.get("state"), rows.get("since"), rows.get("until")
    return Query(
        table,
        tuple(rows.get("columns") or ()),
        rows.get("tenant"),
        rows.get("queue"),
        (state,) if isinstance(state, str) else tuple(state or ()),
        None if since is None else moment_ms("since", since),
        None if until is None else moment_ms("until", until),
    )
