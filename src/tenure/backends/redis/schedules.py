"""Schedules made at run time: one hash for each tenant, in the registry's slot (`lua/88_schedules.lua`)."""

from __future__ import annotations

from tenure.backends.redis.core import Core
from tenure.backends.redis.records import decode_schedule, encode_schedule
from tenure.errors import TooLarge
from tenure.model.schedule import MAX_SCHEDULES, Schedule, ScheduleChange, name_taken


def change_schedule(core: Core, tenant: str, name: str, change: ScheduleChange) -> bool:
    """Apply a change; False if there is no schedule of that name to pause, resume or remove.

    Raises InvalidArgument (the name is taken, and replace is not set), TooLarge (too many).
    """
    registry = core.shards.registry
    if change.put is not None:
        put = change.put
        reply = core.call_once(
            registry, "put_schedule", tenant, name, int(change.replace), put.created_at_ms, int(put.paused),
            put.resumed_at_ms, encode_schedule(put),
        )  # fmt: skip
        if reply[0] == b"E":
            if reply[1] == b"there":
                raise name_taken(name)
            raise TooLarge(f"the number of schedules of tenant {tenant}", reply[2], MAX_SCHEDULES)
    elif change.remove:
        reply = core.call_once(registry, "remove_schedule", tenant, name)
    else:
        reply = core.call_once(registry, "pause_schedule", tenant, name, int(bool(change.pause)))
    return bool(reply[0] == 1)


def schedules(core: Core, tenant: str | None) -> list[Schedule]:
    """Return the schedules of one tenant, or of all, ordered by tenant and name. Raises Corrupt."""
    rows = core.commands.call(core.shards.registry, "schedules", tenant or "")
    found = sorted(zip(rows[::3], rows[1::3], rows[2::3], strict=True))
    return [decode_schedule(name, row) for _, name, row in found]
