"""What a check notes down, and how it reads on past damage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from leasehold.errors import Corrupt
from leasehold.storage import keyspace
from leasehold.storage.engine import Reader, Row, Space


class Fault(NamedTuple):
    """Something that is not as it must be; `mend` names what repair may do about it (see `repair.MENDERS`)."""

    rule: str
    detail: str
    mend: str = ""
    queue: int = 0
    job: bytes = b""
    space: Space = -1
    key: bytes = b""
    number: int = 0


class Faults:
    """Faults found so far; past a bound they are only counted, so that a ruined store does not fill the memory."""

    LISTED = 10_000

    def __init__(self) -> None:
        self.found: list[Fault] = []
        self.truncated = False
        #: Spaces that could not be read whole: what is counted from them proves nothing.
        self.unreadable: set[Space] = set()
        #: How many rows of each space were read, the last time it was.
        self.read: dict[Space, int] = {}

    def add(self, fault: Fault) -> None:
        if len(self.found) < self.LISTED:
            self.found.append(fault)
        else:
            self.truncated = True

    def rows(self, reader: Reader, space: Space, chunk: int = 1000) -> Iterator[list[Row]]:
        """Every row of a space that can be read; each that cannot is a fault, and where the engine can tell its key, is passed."""
        begin = b""
        limit = chunk
        self.read[space] = 0
        while True:
            try:
                rows = reader.scan(space, begin, keyspace.LAST, limit)
            except Corrupt as exc:
                if limit > 1 and exc.key is not None:
                    limit = 1  # come to the damaged row one by one, so that its neighbours are seen
                    continue
                self.unreadable.add(space)
                mend = "delete_row" if exc.key is not None and space in _EXPENDABLE else ""
                self.add(
                    Fault("damaged", f"{keyspace.NAMES[space]}: {exc.detail}", mend, space=space, key=exc.key or b"",
                          job=exc.key[4:20] if exc.key and space in _JOB_SPACES else b"")
                )  # fmt: skip
                if exc.key is None or exc.key < begin:
                    return
                begin, limit = exc.key + b"\0", chunk
                continue
            if rows:
                self.read[space] += len(rows)
                yield rows
                begin = rows[-1][0] + b"\0"
            if len(rows) < limit:
                return
            if limit == 1 and rows:
                continue


_JOB_SPACES = (keyspace.JOBS, keyspace.STATE, keyspace.NOTES, keyspace.PAYLOAD)
#: Spaces whose rows can be made again from others, or forgotten, once a damaged one is out of the way.
_EXPENDABLE = (
    keyspace.STATE, keyspace.NOTES, keyspace.READY, keyspace.LEASES, keyspace.LEASE_JOBS, keyspace.CLAIMS, keyspace.DUE,
    keyspace.DONE, keyspace.DEAD, keyspace.DEDUP, keyspace.COUNTERS,
)  # fmt: skip
