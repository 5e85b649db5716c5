"""Tables over a connection: a query and a part as text, and pages of Arrow.

A page is an Arrow stream of some rows. `tenure.next` in its schema's metadata is the key that the next page begins at;
the last page has none. A reader that lost its connection asks again from the last whole page.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from tenure.bulk.plan import Part
from tenure.bulk.plan import read as read_part
from tenure.bulk.query import Query, Range, StoreView
from tenure.errors import InvalidArgument
from tenure.storage.engine import Row, Run, Snapshot, Space, Walk

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


def asked(query: Query) -> dict[str, str | int]:
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


def page(moment: StoreView, query: Query, space: int, keys: Range) -> bytes:
    """The first rows of a range, and where the next page begins."""
    tracked = _Tracked(moment, keys)
    batches: list[pa.RecordBatch] = []
    size = rows = 0
    ended = True
    for batch in read_part(tracked, query, Part(space, (keys,))):
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


class _Tracked(StoreView):
    """A moment that notes the key that follows a batch: a batch ends where the last scan of the table's own space did,
    unless its reader says where (`covered`).
    """

    def __init__(self, moment: StoreView, keys: Range) -> None:
        super().__init__(_NotingSnapshot(moment.reader, self), moment.now_ms, moment.queues())
        self.next = keys[0]

    def covered(self, key: bytes) -> None:
        self.next = key + b"\0"


class _NotingSnapshot(Snapshot):
    """Reads another snapshot, and notes the last key of each scan."""

    def __init__(self, inner: Snapshot, tracked: _Tracked) -> None:
        self._inner = inner
        self._tracked = tracked
        self._space: Space | None = None

    def get(self, space: Space, key: bytes) -> bytes | None:
        return self._inner.get(space, key)

    def get_many(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._inner.get_many(space, keys)

    def scan(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[Row]:
        rows = self._inner.scan(space, begin, end, limit, reverse=reverse, snapshot=snapshot)
        self.note(space, rows[-1][0] if rows else None)
        return rows

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        keys = self._inner.keys(space, begin, end, limit, reverse=reverse, snapshot=snapshot)
        self.note(space, keys[-1] if keys else None)
        return keys

    def walk(self, space: Space, begin: bytes, end: bytes) -> Walk:
        return _NotingWalk(self._inner.walk(space, begin, end), self, space)

    def note(self, space: Space, last: bytes | None) -> None:
        if self._space is None:
            self._space = space  # the first scan of a read is of the space its table is cut by
        if space == self._space and last is not None:
            self._tracked.covered(last)

    def close(self) -> None:
        """The inner snapshot is its opener's to close."""


class _NotingWalk(Walk):
    def __init__(self, inner: Walk, snapshot: _NotingSnapshot, space: Space) -> None:
        self._inner, self._snapshot, self._space = inner, snapshot, space

    def take(self, limit: int) -> list[Row]:
        rows = self._inner.take(limit)
        self._snapshot.note(self._space, rows[-1][0] if rows else None)
        return rows

    def runs(self, limit: int) -> list[Run]:
        runs = self._inner.runs(limit)
        last = runs[-1] if runs else None
        key = None if last is None else last[-1][0] if isinstance(last, list) else last.key(-1)
        self._snapshot.note(self._space, key)
        return runs


def unpacked(body: bytes) -> tuple[list[pa.RecordBatch], bytes | None]:
    """A page's batches, and the key of the next."""
    with pa.ipc.open_stream(body) as stream:
        following = (stream.schema.metadata or {}).get(NEXT)
        return list(stream), None if following is None else bytes.fromhex(following.decode())


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",")) if text else ()
