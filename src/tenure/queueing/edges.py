"""Edges from parents to children: the rows of `children`, which are read when a parent ends.

    one parent, one child          a row of its own
    many parents that were         one row for a hundred of them (a block), with a bit for each parent that is open. The
    enqueued together, one child   ids are evenly spaced: the row has the last one and the stride.

An edge is 40 bytes: the parent's and the child's key of `keyspace.of_queue`. That is the key of its row, if it has one
of its own.

Blocks of one queue do not overlap, unless they cover exactly the same jobs: a call cuts its jobs at the same positions
for every child, and makes no block where one exists. So only the first blocks at or after a job can contain it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice

from tenure.errors import Corrupt
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, Transaction
from tenure.storage.keyspace import CHILDREN, child_block, split_child_block
from tenure.storage.records import BlockRecord

#: The most jobs of a block; and the fewest parents of a child for which a block is made.
BLOCK = 100
_LEAST = 8
#: Rows that one scan for the children of a parent reads.
_LINKS = 1000
#: Blocks that one scan reads: those of a batch are neighbours.
_BLOCKS = 16
#: Prefix lengths of a job's key of `of_queue`: shared by all jobs of a block, and by all jobs of one millisecond.
_COMMON, _MILLISECOND = 13, 10
_AFTER = b"\xff" * 35
_from_bytes = int.from_bytes


class Run:
    """The jobs of one queue that a call enqueues, in order, and the blocks that they are cut into."""

    def __init__(self, reader: Reader, prefix: bytes, jobs: Sequence[bytes]) -> None:
        """`prefix`: the queue's number, with which every key begins."""
        self._reader, self.prefix, self._jobs = reader, prefix, jobs
        self._cuts: list[tuple[bytes, bytes, int, int]] | None = None

    def _blocks(self) -> list[tuple[bytes, bytes, int, int]]:
        """Each block's first and last job, its stride and its number of jobs."""
        if self._cuts is None:
            cuts = []
            for begin in range(0, len(self._jobs), BLOCK):
                part = self._jobs[begin : begin + BLOCK]
                stride = _stride(part) if len(part) >= _LEAST else 0
                if stride:
                    cuts.append((self.prefix + part[0], self.prefix + part[-1], stride, len(part)))
            self._cuts = cuts if cuts and self._vacant(cuts[0][0], cuts[-1][1]) else []
        return self._cuts

    def _vacant(self, first: bytes, last: bytes) -> bool:
        """Whether no block overlaps these jobs. Another process may have made ids in the same millisecond."""
        keys = self._reader.keys(CHILDREN, child_block(first), child_block(first[:_MILLISECOND] + _AFTER), 1)
        if not keys:
            return True
        raw = self._reader.get(CHILDREN, keys[0])
        try:
            return raw is not None and _Block(keys[0], raw).first > last
        except Corrupt:
            return False

    def join(self, tx: Transaction, parents: list[bytes], child: bytes) -> list[bytes]:
        """Write blocks for the parents, which are sorted, that fill one. Returns the others."""
        if len(parents) < _LEAST:
            return parents
        others: list[bytes] = []
        at = 0
        for first, last, stride, count in self._blocks():
            begin = bisect_left(parents, first, at)
            end = bisect_right(parents, last, begin)
            if end - begin < _LEAST:
                continue
            others += parents[at:begin]
            at = end
            block = BlockRecord(records.V1, stride, count, 0)
            whole = end - begin == count  # all are jobs of this call, so these are all jobs of the block
            members = (1 << count) - 1 if whole else _members(block, last, parents[begin:end])
            tx.put(CHILDREN, child_block(last) + child, records.encode_block(block._replace(members=members)))
        return others + parents[at:]


def _stride(jobs: Sequence[bytes]) -> int:
    """The difference between two ids; 0: they are not evenly spaced."""
    lows = [_from_bytes(job[9:], "big") for job in jobs]
    stride = lows[1] - lows[0]
    even = stride > 0 and lows == list(range(lows[0], lows[-1] + 1, stride)) and jobs[0][:9] == jobs[-1][:9]
    return stride if even else 0


def _members(block: BlockRecord, last: bytes, parents: Sequence[bytes]) -> int:
    """A bit for each of these jobs, which are sorted, that is one of the block's jobs, set in the block or not."""
    common, end = last[:_COMMON], _from_bytes(last[_COMMON:], "big")
    if parents[0][:_COMMON] != common or parents[-1][:_COMMON] != common:
        parents = [parent for parent in parents if parent[:_COMMON] == common]
    lows = [_from_bytes(parent[_COMMON:], "big") for parent in parents]
    places = range(end, end - block.stride * block.jobs, -block.stride)
    if lows == list(reversed(places)):
        return (1 << block.jobs) - 1
    return sum([1 << places.index(low) for low in lows if low in places])


class _Block:
    """A stored block; `members` may be changed."""

    __slots__ = ("child", "key", "last", "members", "record")

    def __init__(self, key: bytes, raw: bytes) -> None:
        """Raises Corrupt."""
        self.key = key
        self.last, self.child = split_child_block(key)
        self.record = records.decode_block(raw, self.child[4:])
        self.members = self.record.members

    @property
    def first(self) -> bytes:
        return self._job(self.record.jobs - 1)

    def _job(self, place: int) -> bytes:
        low = _from_bytes(self.last[_COMMON:], "big") - place * self.record.stride
        return self.last[:_COMMON] + low.to_bytes(7, "big")

    def places_of(self, parents: Sequence[bytes]) -> int:
        """A bit for each of these jobs, which are sorted, whose bit is set in the block."""
        return _members(self.record, self.last, parents) & self.members

    def jobs(self) -> list[bytes]:
        """The jobs whose bits are set, as keys of `keyspace.of_queue`."""
        return [self._job(place) for place in range(self.record.jobs) if self.members >> place & 1]


def members(key: bytes, raw: bytes) -> list[bytes]:
    """The parents whose bits are set in a block. Raises Corrupt."""
    return _Block(key, raw).jobs()


def _blocks_near(reader: Reader, parents: Sequence[bytes]) -> Iterator[tuple[bytes, Sequence[bytes]]]:
    """Keys of the blocks that may contain some of these jobs, which are sorted; with each block, those jobs.

    The scan adds no read conflict: see `_own_rows`.
    """
    at = 0
    while at < len(parents):
        begin, last, stop = parents[at], b"", at
        after = begin[:_MILLISECOND] + _AFTER
        # Those that lie side by side, and the first that ends behind them.
        near = min((len(parents) - at) // BLOCK + 2, _BLOCKS)
        for key in _keys(reader, child_block(begin), child_block(after), near):
            if key[4:24] != last:
                at = stop
                last = key[4:24]
                if at == len(parents) or last < parents[at]:
                    break  # no job is in this block: scan again from the next job
                stop = bisect_right(parents, last, at)
            yield key, parents[at:stop]
        else:
            at = max(stop, bisect_left(parents, after, at))


def _keys(reader: Reader, begin: bytes, end: bytes, limit: int) -> Iterator[bytes]:
    while keys := reader.keys(CHILDREN, begin, end, limit, snapshot=True):
        yield from keys
        if len(keys) < limit:
            break
        begin = keys[-1] + b"\0"


def _own_rows(reader: Reader, parents: Sequence[bytes]) -> list[bytes]:
    """The rows of `children` of these parents (sorted) that are not blocks; perhaps also rows of parents between them.

    Most parents have one child, and parents that end together were enqueued together: one scan finds their rows.
    The scans add no read conflict: a transaction that adds a child writes its parent's state, which the transaction
    that ends the parent has read.
    """
    if len(parents) > 1:
        limit = 2 * len(parents) + 20
        near = reader.keys(CHILDREN, parents[0], parents[-1] + b"\xff" * 25, limit, snapshot=True)
        if len(near) < limit:
            return near
    return [key for first in parents for key in _keys(reader, first, first + b"\xff" * 25, _LINKS)]


class Edges:
    """The edges that a transaction reads and cuts. A block with several of its parents is written once."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._blocks: dict[bytes, _Block] = {}
        #: By edge: the block that contains it.
        self._block_of: dict[bytes, _Block] = {}
        self._cut: list[bytes] = []

    def _block(self, key: bytes) -> _Block | None:
        """Raises Corrupt."""
        found = self._blocks.get(key)
        if found is None:
            raw = self._reader.get(CHILDREN, key)
            if raw is None:
                return None
            found = self._blocks[key] = _Block(key, raw)
        return found

    def of_one(self, parent: bytes, limit: int) -> list[bytes]:
        """The first edges of a parent."""
        found = list(islice(_keys(self._reader, parent, parent + b"\xff" * 25, limit), limit))
        return found if len(found) == limit else self._in_blocks((parent,), found)

    def of(self, parents: Iterable[bytes]) -> list[bytes]:
        """All edges of these parents."""
        wanted = set(parents)
        ordered = sorted(wanted)
        found = [edge for edge in _own_rows(self._reader, ordered) if edge[:20] in wanted]
        return self._in_blocks(ordered, found)

    def _in_blocks(self, parents: Sequence[bytes], found: list[bytes]) -> list[bytes]:
        """`found`, and the edges of these parents, which are sorted, that are in blocks."""
        for key, near in _blocks_near(self._reader, parents):
            block = self._block(key)
            if block is None:
                continue
            for parent in near:
                if block.places_of((parent,)):
                    edge = parent + block.child
                    self._block_of[edge] = block
                    found.append(edge)
        return found

    def cut(self, edge: bytes) -> None:
        """Remove an edge that was read here."""
        block = self._block_of.get(edge)
        if block is None:
            self._cut.append(edge)
        else:
            block.members &= ~block.places_of((edge[:20],))

    def cut_all(self, parents: Iterable[bytes]) -> Counter[bytes]:
        """Cut all edges of these parents; returns how many each child had."""
        wanted = sorted(set(parents))
        rows = _own_rows(self._reader, wanted)
        found: Counter[bytes] = Counter()
        if rows:
            of_these = set(wanted)
            own = [edge for edge in rows if edge[:20] in of_these]
            self._cut += own
            found.update([edge[20:] for edge in own])
        for key, near in _blocks_near(self._reader, wanted):
            block = self._block(key)
            ended = 0 if block is None else block.places_of(near)
            if block is not None and ended:
                block.members ^= ended
                found[block.child] += ended.bit_count()
        return found

    def write(self, tx: Transaction) -> None:
        tx.delete_many(CHILDREN, self._cut)
        for key, block in self._blocks.items():
            if not block.members:
                tx.delete(CHILDREN, key)
            elif block.members != block.record.members:
                tx.put(CHILDREN, key, records.encode_block(block.record._replace(members=block.members)))


def joined(reader: Reader, parents: Sequence[bytes], child: bytes, without: bytes = b"") -> set[bytes]:
    """The parents that still have an edge to the child. The block `without` is left out. Raises Corrupt."""
    rows = reader.get_many(CHILDREN, [parent + child for parent in parents])
    found = {parent for parent, row in zip(parents, rows, strict=True) if row is not None}
    for key, near in _blocks_near(reader, sorted(parents)):
        if key[24:] == child and key != without and (raw := reader.get(CHILDREN, key)) is not None:
            found.update(set(near).intersection(members(key, raw)))
    return found


def children_of(reader: Reader, parent: bytes, limit: int) -> list[bytes]:
    """Up to `limit` children of a parent. Raises Corrupt."""
    found = [edge[20:] for edge in reader.keys(CHILDREN, parent, parent + b"\xff" * 25, limit)]
    if len(found) < limit:
        for key, near in _blocks_near(reader, (parent,)):
            raw = reader.get(CHILDREN, key)
            if raw is not None and (block := _Block(key, raw)).places_of(near):
                found.append(block.child)
                if len(found) >= limit:
                    break
    return found


def may_be_in_block(parent: bytes, last: bytes) -> bool:
    """Whether a block with that last job may contain the parent."""
    return parent[:_COMMON] == last[:_COMMON] and parent <= last


def parents_by_children(reader: Reader, child: bytes) -> list[bytes]:
    """The parents with an edge to this child, found by a scan of all rows. Unreadable blocks are skipped."""
    found: list[bytes] = []
    for key in _keys(reader, b"", keyspace.LAST, _LINKS):
        if key[-20:] != child:
            continue
        if keyspace.is_child_block(key):
            with suppress(Corrupt):
                found += members(key, reader.get(CHILDREN, key) or b"")
        else:
            found.append(key[:20])
    return sorted(found)


def has_children(reader: Reader, parent: bytes) -> bool:
    """Whether a job has children; True if an unreadable block may contain it."""
    try:
        return bool(children_of(reader, parent, 1))
    except Corrupt:
        return True
