"""Tables over a wire: a query and a part as text, and pages of Arrow that say where to go on.

A page is an Arrow stream of some rows; `tenure.next` in its schema's metadata is the key to go on from, absent on the
last one. So whoever lost a connection goes on from the last page that came whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from tenure.bulk.plan import Part
from tenure.bulk.plan import read as read_part
from tenure.bulk.query import Moment, Query, Range
from tenure.errors import InvalidArgument
from tenure.storage.engine import Row, Walk

NEXT = b"tenure.next"
PAGE_BYTES = 8 * 1024 * 1024
_PAGE_ROWS = 100_000


class Ask(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a reader process is asked for: the parts of a table, or a page of one."""

    folder: str
    table: str
    columns: str = ""
    tenant: str | None = None
    queue: str | None = None
    state: str = ""
    since_ms: int | None = None
    until_ms: int | None = None
    #: For parts: of how many rows, and of events from which commit to which.
    rows: int = 0
    first_commit: int | None = None
    end_commit: int | None = None
    #: For a page: which keys of which space.
    space: int = -1
    begin: str = ""
    end: str = ""

    def query(self) -> Query:
        return Query(
            self.table, _words(self.columns), self.tenant, self.queue, _words(self.state), self.since_ms, self.until_ms
        )

    def range(self) -> Range:
        try:
            return bytes.fromhex(self.begin), bytes.fromhex(self.end)
        except ValueError:
            raise InvalidArgument("begin and end are keys in hex digits, as the table's parts have them") from None


def asked(query: Query) -> dict[str, Any]:
    """A query as the parameters of a request."""
    found = {
        "columns": ",".join(query.columns),
        "tenant": query.tenant,
        "queue": query.queue,
        "state": ",".join(query.states) or None,
        "since_ms": query.since_ms,
        "until_ms": query.until_ms,
    }
    return {name: value for name, value in found.items() if value is not None}


def packed_parts(parts: list[Part]) -> list[tuple[int, list[tuple[str, str]]]]:
    return [(part.space, [(begin.hex(), end.hex()) for begin, end in part.ranges]) for part in parts]


def parts_of(packed: list[tuple[int, list[tuple[str, str]]]]) -> list[Part]:
    return [
        Part(space, tuple((bytes.fromhex(begin), bytes.fromhex(end)) for begin, end in ranges))
        for space, ranges in packed
    ]


def page(moment: Moment, query: Query, space: int, keys: Range) -> bytes:
    """The first rows of a range, and where the next page begins."""
    tracked = _Tracked(moment, keys)
    batches: list[pa.RecordBatch] = []
    size = rows = 0
    ended = True
    for batch in read_part(tracked.moment, query, Part(space, (keys,))):
        batches.append(batch)
        size += batch.nbytes
        rows += batch.num_rows
        if (size >= PAGE_BYTES or rows >= _PAGE_ROWS) and query.table != "queues":  # which is read whole
            ended = False
            break
    schema = query.schema
    if not ended:
        schema = schema.with_metadata({NEXT: tracked.next.hex().encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    made: bytes = sink.getvalue().to_pybytes()
    return made


class _Tracked:
    """A moment that notes how far a table's own space was scanned: a batch ends where its last scan of it did."""

    def __init__(self, moment: Moment, keys: Range) -> None:
        self.next = keys[0]
        self.moment = Moment(_Noting(moment.reader, self), moment.now_ms, moment.queues())


class _Noting:
    def __init__(self, reader: Any, tracked: _Tracked) -> None:
        self._reader = reader
        self._tracked = tracked
        self._space: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def scan(self, space: int, begin: bytes, end: bytes, limit: int, **how: Any) -> Any:
        rows = self._reader.scan(space, begin, end, limit, **how)
        self._note(space, rows[-1][0] if rows else None)
        return rows

    def walk(self, space: int, begin: bytes, end: bytes) -> _NotingWalk:
        return _NotingWalk(self._reader.walk(space, begin, end), lambda last: self._note(space, last))

    def keys(self, space: int, begin: bytes, end: bytes, limit: int, **how: Any) -> Any:
        keys = self._reader.keys(space, begin, end, limit, **how)
        self._note(space, keys[-1] if keys else None)
        return keys

    def _note(self, space: int, last: bytes | None) -> None:
        if self._space is None:
            self._space = space  # the first scan of a read is of the space its table is cut by
        if space == self._space and last is not None:
            self._tracked.next = last + b"\0"


class _NotingWalk:
    def __init__(self, walk: Walk, note: Callable[[bytes | None], None]) -> None:
        self._walk, self._note = walk, note

    def take(self, limit: int) -> list[Row]:
        rows = self._walk.take(limit)
        self._note(rows[-1][0] if rows else None)
        return rows


def unpacked(body: bytes) -> tuple[list[pa.RecordBatch], bytes | None]:
    """A page's batches, and the key of the next."""
    with pa.ipc.open_stream(body) as stream:
        following = (stream.schema.metadata or {}).get(NEXT)
        return list(stream), None if following is None else bytes.fromhex(following.decode())


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",")) if text else ()
