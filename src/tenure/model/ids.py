"""Job and lease ids: UUIDv7, strictly increasing within a process.

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
#: The counter in the low half stays below bit 56: the bits above hold the variant and the queue's mark (`queue_mark`).
_FULL = 1 << 55
_strides = Struct(">512I").unpack
_odd = (1).__or__  # never 0
_LOW_START = (1 << 54) - 1
#: How many ids `one` prepares at a time, and the largest difference between two of them.
_AHEAD = 64
_STRIDE = 1 << 32

_NONE_LEFT: Iterator[bytes] = iter(())
_NONE_AHEAD = (-1, _NONE_LEFT)

NO_ID = bytes(16)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-?)[0-9a-fA-F]{4}(\1[0-9a-fA-F]{4}){2}\1[0-9a-fA-F]{12}\Z")


class IdSource:
    """Makes strictly increasing ids, even if the clock stands still or steps back.

    An id is 48 bits of milliseconds, then random bits. While the millisecond does not grow, the low half grows from the
    last id by a random stride.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a signal handler may run a verb at any point
        #: Pairs of random numbers of 64 bits, and strides.
        self._random: Iterator[tuple[int, int]] = iter(())
        self._strides: Iterator[int] = iter(())
        self._high = 0
        self._low = 0
        #: For `one`: the millisecond of the prepared ids, and their iterator. `next` on it is atomic under the
        #: interpreter's lock, so `one` takes no lock of its own.
        self._ahead: tuple[int, Iterator[bytes]] = _NONE_AHEAD

    def take(self, now_ms: int, count: int) -> Sequence[bytes]:
        """Make `count` ids, in increasing order."""
        if count == 1:
            return (self.one(now_ms),)
        high, lows = self._take(now_ms, count)
        return list(map(_pack, repeat(high), lows))

    @under_lock
    def _take(self, now_ms: int, count: int) -> tuple[int, range]:
        """The high half that `count` new ids share, and the range of their low halves."""
        stride = self._begin(now_ms)
        first = self._low + stride
        self._low += stride * count
        self._ahead = _NONE_AHEAD
        return self._high, range(first, first + stride * count, stride)

    def _begin(self, now_ms: int) -> int:
        """Set the high and low halves that the next ids start after; return a random stride. Requires: the lock."""
        first, second = next(self._random, None) or self._more_random()
        if now_ms > self._high >> 16:
            self._high = now_ms << 16 | 0x7000 | first & 0xFFF
            self._low = _VARIANT | second & _LOW_START
        elif self._low & _FULL:  # the clock has stood still for millions of ids: borrow the next millisecond
            self._high += 1 << 16
            self._low = _VARIANT | second & _LOW_START
        return (first >> 32) + 1

    def renew(self) -> None:
        """Reset after a fork: a thread of the parent may hold the lock, and the parent has the same random pool."""
        self._lock = threading.RLock()  # reentrant: a signal handler may run a verb at any point
        self._random = iter(())
        self._strides = iter(())
        self._ahead = _NONE_AHEAD

    def _more_random(self) -> tuple[int, int]:
        """Ask the system for 256 ids' worth: one call costs more than making an id. Returns the first two numbers."""
        self._random = _QQ.iter_unpack(os.urandom(_QQ.size * 256))
        return next(self._random)

    def one(self, now_ms: int) -> bytes:
        """Make one id; faster than `take` while prepared ids of this millisecond are left."""
        until, ahead = self._ahead
        if now_ms <= until:
            found = next(ahead, None)
            if found is not None:
                return found
        return self._refill(now_ms)

    @under_lock
    def _refill(self, now_ms: int) -> bytes:
        """Make one id. If it is not the first of its millisecond, prepare those of the next calls of `one`, too."""
        first = self._low = self._begin(now_ms) + self._low
        until, high = self._ahead[0], self._high
        if high >> 16 != until:
            self._ahead = high >> 16, _NONE_LEFT
            return _pack(high, first)
        self._low = first + _AHEAD * _STRIDE  # no prepared id is larger
        if next(self._strides, None) is None:
            self._strides = map(_odd, _strides(os.urandom(4 * 512)))
        lows = accumulate(islice(self._strides, _AHEAD), initial=first)
        ahead = map(_pack, repeat(high), lows)
        self._ahead = until, ahead
        return next(ahead)


#: The bytes of a job's id that hold its queue's mark: 18 bits, beside the UUID's version and variant.
MARK = slice(6, 9)
MARKS = 1 << 18


def queue_mark(queue: int) -> bytes:
    """The bytes at `MARK` in the ids of a queue's jobs: the low bits of its number, to find the queue by job id."""
    bits = queue % MARKS
    return bytes((0x70 | bits >> 14, bits >> 6 & 0xFF, 0x80 | bits & 0x3F))


def marked_queue(job: bytes) -> int:
    """The low bits of the queue's number in an id; meaningless if the id was made without a mark."""
    return (job[6] & 0x0F) << 14 | job[7] << 6 | job[8] & 0x3F


def job_id_bytes(job_id: object) -> bytes:
    """The 16 bytes of an id that users write as 32 hex digits, with or without dashes. Raises InvalidArgument."""
    if isinstance(job_id, str) and _UUID.match(job_id):
        return bytes.fromhex(job_id.replace("-", ""))
    raise InvalidArgument(f"{job_id!r} is not a job id (32 hex digits)")


def created_ms(raw: bytes) -> int:
    """The millisecond of the store's time in which an id was made."""
    return int.from_bytes(raw[:6], "big")
