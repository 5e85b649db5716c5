"""Scans with the driver's iterators that report damage instead of ending at it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from typing import Any

from rocksdict import ReadOptions

from tenure.storage.engine import Row
from tenure.storage.engines.rocksdb.opening import translated
from tenure.storage.keyspace import LAST
from tenure.storage.scan_heads import Front


def until(end: bytes) -> ReadOptions:
    """Read options with an upper bound."""
    options = ReadOptions()
    options.set_iterate_upper_bound(end)
    return options


def forward(iterator: Any, begin: bytes, end: bytes, limit: int) -> list[Row]:
    """Up to `limit` rows with begin <= key < end, in ascending order. Raises Corrupt."""
    rows: list[Row] = []
    key, value, step, valid = iterator.key, iterator.value, iterator.next, iterator.valid
    iterator.seek(begin)
    while valid():
        at = key()
        if at >= end or len(rows) >= limit:
            return rows
        rows.append((at, value()))
        step()
    check_status(iterator)
    return rows


#: From this limit on the driver's own iteration is used: one call for each key instead of three.
_MANY = 16


def first_keys(table: Any, begin: bytes, end: bytes, bound: bytes, limit: int) -> list[bytes] | None:
    """As `forward_keys`, in a third of the calls. None: use `forward_keys`, which can tell damage from the end."""
    if limit < _MANY:
        return None
    keys: list[bytes] = list(islice(table.keys(from_key=begin, read_opt=until(bound)), limit))
    if len(keys) < limit:
        return None  # it ended at the last key, or at damage
    return keys if keys[-1] < end else keys[: bisect_left(keys, end)]


def forward_keys(iterator: Any, begin: bytes, end: bytes, limit: int) -> list[bytes]:
    """Up to `limit` keys with begin <= key < end, in ascending order. Raises Corrupt."""
    keys: list[bytes] = []
    key, step, valid, add = iterator.key, iterator.next, iterator.valid, keys.append
    iterator.seek(begin)
    for _ in range(limit):
        if not valid():
            check_status(iterator)
            return keys
        at = key()
        if at >= end:
            return keys
        add(at)
        step()
    return keys


def at_keys(iterator: Any, keys: Sequence[bytes]) -> list[bytes | None]:
    """The values of these keys, in their order; fast if successive keys are neighbours. Raises Corrupt."""
    key, value, step, valid = iterator.key, iterator.value, iterator.next, iterator.valid
    values: list[bytes | None] = []
    at = None
    for wanted in keys:
        if at is None or at != wanted:
            iterator.seek(wanted)
            if not valid():
                check_status(iterator)
                values.append(None)
                at = None
                continue
            at = key()
        if at != wanted:
            values.append(None)
            continue
        values.append(value())
        step()
        if valid():
            at = key()
        else:
            check_status(iterator)
            at = None
    return values


def backward(iterator: Any, begin: bytes, end: bytes, limit: int) -> list[Row]:
    """Up to `limit` rows with begin <= key < end, in descending order. Raises Corrupt."""
    rows: list[Row] = []
    if end >= LAST:
        iterator.seek_to_last()
    else:
        iterator.seek_for_prev(end)
    while iterator.valid():
        at = iterator.key()
        if at < begin or len(rows) >= limit:
            return rows
        if at < end:
            rows.append((at, iterator.value()))
        iterator.prev()
    check_status(iterator)
    return rows


def next_head(iterator: Any, front: Front) -> bytes:
    """The new head of a front after a scan found nothing: the iterator's key, or the end of an empty front."""
    if iterator.valid():
        key: bytes = iterator.key()
        return key
    return front.emptied


def check_status(iterator: Any) -> None:
    """Raise Corrupt if an iterator became invalid at damage. Only `status` tells that from the end."""
    try:
        iterator.status()
    except Exception as exc:
        raise translated(exc) from exc
