"""The rows of schedules, in `meta`. Workers read them and enqueue the jobs that are due (`worker/periodic.py`)."""

from __future__ import annotations

import msgspec

from tenure.errors import TooLarge
from tenure.model.schedule import MAX_SCHEDULES, Schedule, ScheduleChange, name_taken
from tenure.queueing.core import Core
from tenure.queueing.outcomes import YES_OR_NO
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader
from tenure.storage.records import ScheduleRecord


def change_schedule(core: Core, tenant: str, name: str, change: ScheduleChange) -> bool:
    """Apply a change; False if there is no schedule of that name to pause, resume or remove.

    Raises InvalidArgument (the name is taken, and `replace` is not set), TooLarge (too many schedules).
    """

    def run(unit: UnitOfWork) -> bool:
        tx, key = unit.tx, keyspace.schedule_row(tenant, name)
        raw = tx.get(keyspace.META, key)
        before = None if raw is None else records.decode_struct(ScheduleRecord, raw, f"the schedule {name}").schedule
        after = change.put
        if after is not None:
            if before is not None and not change.replace:
                raise name_taken(name)
            if before is None:
                _check_room(tx, tenant)
            if not after.created_at_ms:
                after = msgspec.structs.replace(after, created_at_ms=unit.now)
        elif before is None:
            return False
        elif change.remove:
            tx.delete(keyspace.META, key)
            return True
        elif before.paused == bool(change.pause):
            return True
        elif before.paused:
            after = msgspec.structs.replace(before, paused=False, resumed_at_ms=unit.now)
        else:
            after = msgspec.structs.replace(before, paused=True)
        tx.put(keyspace.META, key, records.encode_struct(ScheduleRecord(after)))
        return True

    return core.write(run, answer=YES_OR_NO)


def _check_room(reader: Reader, tenant: str) -> None:
    count = len(reader.keys(keyspace.META, *keyspace.schedule_range(tenant), MAX_SCHEDULES))
    if count >= MAX_SCHEDULES:
        raise TooLarge(f"the number of schedules of tenant {tenant}", count + 1, MAX_SCHEDULES)


def schedules(core: Core, tenant: str | None) -> list[Schedule]:
    """The schedules of one tenant, or of all, ordered by tenant and name."""

    def run(reader: Reader) -> list[Schedule]:
        rows = reader.scan(keyspace.META, *keyspace.schedule_range(tenant), 1_000_000)
        return [records.decode_struct(ScheduleRecord, raw, "a schedule").schedule for _, raw in rows]

    return core.read(run)
