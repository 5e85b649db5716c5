"""Upgrades the rows of an older format, in chunks of one transaction each.

Each chunk's transaction stores the upgrade's progress in `meta`: an interrupted upgrade continues from there.
"""

from __future__ import annotations

from collections.abc import Callable

from tenure.queueing.core import Core
from tenure.queueing.locations import note_foreign
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.keyspace import Counter

Progress = Callable[[int, int | None], None]
_CHUNK = 1000
_AT = b"upgrade"


def to_format_2(core: Core, progress: Progress) -> None:
    """Add rows in `job_queues` for jobs whose ids do not hold their queue, and turns for queues with waiting jobs."""
    with core.engine.snapshot((keyspace.STATE, keyspace.JOBS, keyspace.COUNTERS, keyspace.META)) as moment:
        total = sum(
            records.decode_count(raw)
            for key, raw in moment.scan(keyspace.COUNTERS, b"", keyspace.LAST, 1 << 40)
            if key[4] <= Counter.DEAD
        )
        raw = moment.get(keyspace.META, _AT)
        at = b"" if raw is None else records.decode_struct(records.UpgradeRecord, raw, "the upgrade's place").key
        done = 0
        while True:
            keys = moment.keys(keyspace.STATE, at, keyspace.LAST, _CHUNK)
            if not keys:
                break
            at = keys[-1] + b"\0"
            core.write(lambda unit, keys=keys, at=at: _note(unit, keys, at))  # type: ignore[misc]
            done += len(keys)
            progress(done, max(total, done))
    queues = core.read(core.registry.all)
    for begin in range(0, len(queues), _CHUNK):
        core.write(lambda unit, some=queues[begin : begin + _CHUNK]: _offer(unit, some))  # type: ignore[misc]
    core.write(lambda unit: unit.tx.delete(keyspace.META, _AT))


def _offer(unit: UnitOfWork, queues: list[RegisteredQueue]) -> None:
    for queue in queues:
        if records.decode_count(unit.tx.get(keyspace.COUNTERS, queue.counters[Counter.WAITING])):
            unit.has_work(queue, unit.now)


def _note(unit: UnitOfWork, keys: list[bytes], at: bytes) -> None:
    for key in keys:
        queue, job = keyspace.split_of_queue(key)
        note_foreign(unit.tx, queue, (job,))
    unit.tx.put(keyspace.META, _AT, records.encode_struct(records.UpgradeRecord(at)))
