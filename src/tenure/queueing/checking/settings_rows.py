"""Checks the rows of queues, settings, idempotency keys and claims; and compares the engine's own count of rows."""

from __future__ import annotations

from collections.abc import Callable

from tenure.errors import Corrupt
from tenure.queueing.checking.survey import Fault, Survey
from tenure.queueing.registry import NEXT_QUEUE, registered
from tenure.queueing.store_time import CLOCK
from tenure.storage import keyspace, records
from tenure.storage.engine import Space


def check_queues(survey: Survey) -> None:
    for rows in survey.rows(keyspace.QUEUES):
        for key, value in rows:
            try:
                queue = registered(value)
            except Corrupt as exc:
                detail = f"the row of queue {_named(key)}: {exc.detail}"
                survey.add(Fault("damaged", detail, "queue_row", space=keyspace.QUEUES, key=key))
            else:
                survey.queues[queue.number] = queue


def check(survey: Survey) -> None:
    decoders: dict[Space, Callable[[bytes], object]] = {
        keyspace.DEDUP: records.decode_dedup,
        keyspace.CLAIMS: records.decode_claim,
        keyspace.META: lambda value: records.unseal("a setting of the store", value),
        keyspace.COUNTERS: lambda value: None,  # read with their queue; here for the engine's count of rows
    }
    for space, decode in decoders.items():
        for rows in survey.rows(space):
            for key, value in rows:
                if space == keyspace.META and keyspace.is_quota_row(key):
                    continue  # checked by `quota_usage`
                try:
                    if space == keyspace.CLAIMS and not keyspace.queue_of(key):
                        records.decode_number(value)  # the queue that served a `claim_any`
                        continue
                    decode(value)
                except Corrupt as exc:
                    mend = _META.get(key, "") if space == keyspace.META else "delete_row"
                    survey.add(Fault("damaged", exc.detail, mend, space=space, key=key))


def check_entries(survey: Survey) -> None:
    """Compare with the engine's own count of rows, which reveals rows that are lost without other traces."""
    for space in keyspace.EVERYWHERE:
        name = keyspace.NAMES[space]
        try:
            entries = survey.reader.entries(space)
        except Corrupt as exc:
            survey.add(Fault("damaged", f"{name}: {exc.detail}", space=space))
            continue
        read = survey.read.get(space)
        if entries is not None and entries != read and space not in survey.unreadable:
            detail = f"{name} has {entries} rows by the engine's own count, and {read} can be read. Restore a snapshot"
            survey.add(Fault("damaged", detail, space=space))


_META = {CLOCK: "clock", NEXT_QUEUE: "next_queue"}


def _named(key: bytes) -> str:
    try:
        tenant, queue = keyspace.split_queue_row(key)
    except (IndexError, UnicodeDecodeError):
        return key.hex()
    return f"{tenant}/{queue}"
