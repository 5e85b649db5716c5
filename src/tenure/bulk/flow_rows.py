"""Rows of a DataFrame that are jobs of a flow: kept together, so that one transaction enqueues them.

    flow            which rows belong together: names are known among these only
    name            what other rows of the flow call it
    after           its parents: ids of jobs in the store, and #names of rows of the same flow
    on_parent_dead  cancel, run or wait

A chunk is a transaction, so the rows of a flow go into one chunk: they are of one queue, at most 1,000, and side by side
in one partition (`repartition("flow").sortWithinPartitions("flow")`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tenure.errors import InvalidArgument
from tenure.model.names import MAX_KEY_BYTES, QueueName, short_text
from tenure.model.request import FlowPart, flow_part
from tenure.model.write import CHUNK

#: As they are staged.
FLOW_COLUMNS: dict[str, pa.DataType] = {
    "flow": pa.large_string(),
    "name": pa.large_string(),
    "after": pa.large_list(pa.large_string()),
    "on_parent_dead": pa.large_string(),
}
#: Names of a chunk's flows are told apart by the flow's number before them.
_MAX_NAME_BYTES = MAX_KEY_BYTES - 8


def check_flows(given: Mapping[str, pa.Array], out: Callable[[int, str], None]) -> dict[str, pa.Array]:
    """The columns of flows as they are staged. Calls `out` with each row that breaks a rule of `NewJob`, and the rule."""
    there = {name: given[name] for name in FLOW_COLUMNS if name in given and given[name].null_count < len(given[name])}
    if not there:
        return {}
    rows = len(next(iter(there.values())))
    values = {name: there[name].to_pylist() if name in there else [None] * rows for name in FLOW_COLUMNS}
    for row, (flow, name, after, policy) in enumerate(zip(*values.values(), strict=True)):
        try:
            _check(flow, name, after, policy)
        except InvalidArgument as exc:
            out(row, str(exc))
    return {name: column.cast(FLOW_COLUMNS[name]) for name, column in there.items()}


def _check(flow: str | None, name: str | None, after: Sequence[str] | None, policy: str | None) -> None:
    if name is not None:
        short_text("name", name, _MAX_NAME_BYTES)
    found = flow_part(None, name, after or [], policy or "cancel")
    if flow is not None:
        short_text("flow", flow, MAX_KEY_BYTES)
    elif found is not None and (name is not None or any(isinstance(parent, str) for parent in found.after)):
        raise InvalidArgument(
            "name, and #names in after, are known among the rows of one flow: name it in a column flow"
        )


def flow_parts(rows: pa.RecordBatch) -> list[FlowPart | None] | None:
    """The places in flows of a chunk's jobs; None: no row has one."""
    columns = {name: rows.column(name) for name in FLOW_COLUMNS if name in rows.schema.names}
    if all(column.null_count == len(column) for column in columns.values()):
        return None
    values = [columns[name].to_pylist() if name in columns else [None] * rows.num_rows for name in FLOW_COLUMNS]
    numbers: dict[str | None, int] = {}
    found = []
    for flow, name, after, policy in zip(*values, strict=True):
        prefix = f"{numbers.setdefault(flow, len(numbers))}."
        parents = [f"#{prefix}{parent[1:]}" if parent.startswith("#") else parent for parent in after or ()]
        found.append(flow_part(None, None if name is None else prefix + name, parents, policy or "cancel"))
    return found


class FlowRuns:
    """Puts the rows of each flow together as they come, batch by batch."""

    def __init__(self) -> None:
        self._held: dict[QueueName, tuple[str, list[pa.RecordBatch]]] = {}
        self._seen: set[tuple[QueueName, str]] = set()

    def add(self, queue: QueueName, rows: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, bool]]:
        """The rows that are complete, and whether they are one flow. Raises InvalidArgument for one that is not whole."""
        for flow, piece in _runs(rows):
            held = self._held.get(queue)
            if held is not None and held[0] == flow:
                held[1].append(piece)
                continue
            yield from self._close(queue)
            if flow is None:
                yield piece, False
            else:
                self._held[queue] = (flow, [piece])

    def close(self) -> Iterator[tuple[QueueName, pa.RecordBatch]]:
        """The last flow of each queue."""
        for queue in list(self._held):
            for rows, _ in self._close(queue):
                yield queue, rows

    def _close(self, queue: QueueName) -> Iterator[tuple[pa.RecordBatch, bool]]:
        held = self._held.pop(queue, None)
        if held is None:
            return
        flow, pieces = held
        if (queue, flow) in self._seen:
            raise _scattered(flow)
        self._seen.add((queue, flow))
        rows = _joined(pieces)
        _check_whole(flow, rows)
        yield rows, True


def _runs(rows: pa.RecordBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """Neighbouring rows of one flow, or of none."""
    if "flow" not in rows.schema.names:
        yield None, rows
        return
    runs = pc.run_end_encode(rows.column("flow"))
    begin = 0
    for end, flow in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        yield flow, rows.slice(begin, end - begin)
        begin = end


def _joined(pieces: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """A column that is null throughout is left out of a batch: batches may differ in their columns."""
    if len(pieces) == 1:
        return pieces[0]
    table = pa.concat_tables([pa.Table.from_batches([piece]) for piece in pieces], promote_options="default")
    (rows,) = table.combine_chunks().to_batches()
    return rows


def _check_whole(flow: str, rows: pa.RecordBatch) -> None:
    if rows.num_rows > CHUNK:
        raise InvalidArgument(f"flow {flow!r} has {rows.num_rows} rows, and at most {CHUNK} are enqueued at once")
    parts = [part for part in flow_parts(rows) or () if part is not None]
    names = [part.name for part in parts if part.name is not None]
    if len(set(names)) < len(names):
        raise InvalidArgument(f"two rows of flow {flow!r} have one name")
    missing = {parent for part in parts for parent in part.after if isinstance(parent, str)}.difference(names)
    if missing:
        raise _scattered(flow, min(missing).partition(".")[2])


def _scattered(flow: str, name: str | None = None) -> InvalidArgument:
    why = "its rows are not side by side" if name is None else f"no row of it here is named {name!r}, which is a parent"
    return InvalidArgument(
        f"flow {flow!r} is not whole: {why}. The rows of a flow are valid, of one queue, and side by side in one "
        'partition: .repartition("flow").sortWithinPartitions("flow")'
    )
