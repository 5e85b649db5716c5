"""Job and lease ids: UUIDv7, made in an order that never goes back within a process.

A store shows an id as 32 hex digits (any UUID library reads it) and keeps it as 16 bytes.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, repeat
from struct import Struct

from tenure.errors import InvalidArgument
from tenure.locks import under_lock

_QQ = Struct(">QQ")
_pack = _QQ.pack
_VARIANT = 1 << 63
#: The low half counts below bit 56: the bits above belong to the variant and to the queue's mark (`queue_mark`).
_FULL = 1 << 55
_strides = Struct(">512I").unpack
_odd = (1).__or__  # never 0
_LOW_START = (1 << 54) - 1
#: How many ids are got ready for those who ask one by one, and what they may be apart at most.
_AHEAD = 64
_STRIDE = 1 << 32

_NONE_AHEAD: tuple[int, Iterator[bytes]] = (-1, iter(()))

NO_ID = bytes(16)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-?)[0-9a-fA-F]{4}(\1[0-9a-fA-F]{4}){2}\1[0-9a-fA-F]{12}\Z")


class IdSource:
    """Hands out ids that grow strictly, whatever the clock does.

    48 bits of milliseconds, then random bits; within a millisecond, and when the clock stands still or steps
    back, the low half counts on from the last id by a random stride.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a signal handler may run a verb at any point
        self._pool = b""
        self._at = 0
        self._high = 0
        self._low = 0
        self._strides: Iterator[int] = iter(())
        #: For those who ask one by one: the ids that follow, and the millisecond they serve for. Taking the next is one
        #: step of the interpreter, so that it needs no lock.
        self._ahead: tuple[int, Iterator[bytes]] = _NONE_AHEAD

    def take(self, now_ms: int, count: int) -> Sequence[bytes]:
        if count == 1:
            return (self.one(now_ms),)
        high, lows = self._take(now_ms, count)
        return list(map(_pack, repeat(high), lows))

    @under_lock
    def _take(self, now_ms: int, count: int) -> tuple[int, range]:
        """The high half of so many ids, and their low halves."""
        stride = self._begin(now_ms)
        first = self._low + stride
        self._low += stride * count
        self._ahead = _NONE_AHEAD
        return self._high, range(first, first + stride * count, stride)

    def _begin(self, now_ms: int) -> int:
        """Where the next ids begin; returns a stride."""
        bits = self._bits()
        high = now_ms << 16 | 0x7000 | bits & 0xFFF
        if high >> 16 > self._high >> 16:
            self._high = high
            self._low = _VARIANT | bits >> 12 & _LOW_START
        elif self._low & _FULL:  # the clock has stood still for millions of ids: borrow the next millisecond
            self._high += 1 << 16
            self._low = _VARIANT | bits >> 12 & _LOW_START
        return (bits >> 73) + 1

    def renew(self) -> None:
        """In a forked child: the lock may be held by a thread that is not there, and the parent has the same pool."""
        self._lock = threading.RLock()  # reentrant: a signal handler may run a verb at any point
        self._pool = b""
        self._strides = iter(())
        self._ahead = _NONE_AHEAD

    def _bits(self) -> int:
        """105 bits from the system, which is asked for many at a time: a call costs more than making an id."""
        if self._at >= len(self._pool):
            self._pool, self._at = os.urandom(14 * 256), 0
        self._at += 14
        return int.from_bytes(self._pool[self._at - 14 : self._at], "big") >> 7

    def one(self, now_ms: int) -> bytes:
        """As `take` of one, in fewer steps while the millisecond lasts."""
        until, ahead = self._ahead
        if now_ms <= until:
            found = next(ahead, None)
            if found is not None:
                return found
        return self._refill(now_ms)

    @under_lock
    def _refill(self, now_ms: int) -> bytes:
        """Make the ids of the next calls of `one`; the first of them."""
        stride = self._begin(now_ms)
        first = self._low + stride
        self._low = first + _AHEAD * _STRIDE  # all that they can come to
        if next(self._strides, None) is None:
            self._strides = map(_odd, _strides(os.urandom(4 * 512)))
        lows = accumulate(islice(self._strides, _AHEAD), initial=first)
        ahead = map(_pack, repeat(self._high), lows)
        self._ahead = self._high >> 16, ahead
        return next(ahead)


#: Where a job's id names its queue: 18 bits, in the three bytes that also hold the UUID's version and variant.
MARK = slice(6, 9)
MARKS = 1 << 18


def queue_mark(queue: int) -> bytes:
    """What stands at `MARK` in the ids of a queue's jobs: the low bits of its number, so that an id leads to its queue."""
    bits = queue % MARKS
    return bytes((0x70 | bits >> 14, bits >> 6 & 0xFF, 0x80 | bits & 0x3F))


def marked_queue(job: bytes) -> int:
    """The low bits of the queue's number that an id names; meaningless in an id that was made without a mark."""
    return (job[6] & 0x0F) << 14 | job[7] << 6 | job[8] & 0x3F


def job_id_bytes(job_id: object) -> bytes:
    """The 16 bytes of an id as users write it: 32 hex digits, with or without dashes."""
    if isinstance(job_id, str) and _UUID.match(job_id):
        return bytes.fromhex(job_id.replace("-", ""))
    raise InvalidArgument(f"{job_id!r} is not a job id (32 hex digits)")


def created_ms(raw: bytes) -> int:
    """The millisecond an id was made in, as the store counted it."""
    return int.from_bytes(raw[:6], "big")
