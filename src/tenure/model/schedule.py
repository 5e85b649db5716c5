"""Schedules: jobs that are enqueued repeatedly, by a cron expression in a time zone or by an interval.

Ticks are instants. When clocks change, a task for 02:30 runs at 03:00 on the day without a 02:30, and once on the day
with two (cronsim follows Debian's cron).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from tenure.errors import InvalidArgument
from tenure.model.durations import Duration, duration_ms
from tenure.model.names import checked, short_text
from tenure.model.request import checked_bytes
from tenure.model.retry import MAX_ATTEMPTS, whole_number

Missed = Literal["skip", "catch_up"]
#: A tick that is handled within this time was not missed: the worker was slow, or was restarted.
TOLERANCE_MS = 60_000
#: How many missed ticks one job of the schedule catches up; the next such job is due at once.
BATCH = 500
#: The most schedules of a tenant, and the most bytes of a schedule's payload.
MAX_SCHEDULES = 1_000
MAX_SCHEDULE_BYTES = 64 * 1024
MAX_NAME_BYTES = 128

#: The short names that cron implementations know for common schedules.
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class Ticks:
    """The ticks of a schedule, in milliseconds since 1970. Raises InvalidArgument if the schedule is not valid."""

    def __init__(
        self, cron: str | None, every_ms: int | None, tz: str = "UTC", missed: Missed = "skip", begin_ms: int = 0
    ) -> None:
        """Give `cron` or `every_ms`. The ticks of an interval start at `begin_ms`."""
        if (cron is None) == (every_ms is None):
            raise InvalidArgument("a schedule has a cron expression or an interval (every), one of the two")
        if missed not in get_args(Missed):
            raise InvalidArgument(f"missed={missed!r}: skip or catch_up")
        try:
            self.zone = ZoneInfo(tz)
        except (ZoneInfoNotFoundError, ValueError):
            raise InvalidArgument(f"there is no time zone {tz!r}: write it as in Europe/Berlin") from None
        self.cron = None if cron is None else _checked_cron(cron)
        self.tz = tz
        self.missed = missed
        self._every_ms = every_ms
        self._begin_ms = begin_ms

    def after(self, moment_ms: int) -> Iterator[int]:
        """The ticks after a time, in order."""
        if self._every_ms is not None:
            count = max(0, moment_ms - self._begin_ms) // self._every_ms
            while True:
                count += 1
                yield self._begin_ms + count * self._every_ms
        from cronsim import CronSim

        for tick in CronSim(self.cron or "", datetime.fromtimestamp(moment_ms / 1000, self.zone)):
            yield round(tick.timestamp() * 1000)

    def next(self, moment_ms: int) -> int | None:
        """The first tick after a time; None: the expression has no further date."""
        return next(self.after(moment_ms), None)

    def due(self, tick_ms: int, now_ms: int) -> tuple[list[int], int | None]:
        """The ticks from `tick_ms` to now that have to be enqueued, and the next tick after them."""
        if self.missed == "skip":
            oldest = now_ms - TOLERANCE_MS
            first = [tick_ms] if tick_ms >= oldest else []
            rest = [] if tick_ms > now_ms else self._until(max(tick_ms, oldest - 1), now_ms)
            return first + rest, self.next(now_ms)
        ticks = [tick_ms, *self._until(tick_ms, now_ms, BATCH)]
        return ticks, self.next(ticks[-1])

    def local(self, tick_ms: int) -> str:
        """A tick in the format of RFC 9557: `2026-03-29T03:00:00+02:00[Europe/Berlin]`."""
        return f"{datetime.fromtimestamp(tick_ms / 1000, self.zone).isoformat()}[{self.tz}]"

    def _until(self, after_ms: int, now_ms: int, limit: int | None = None) -> list[int]:
        found: list[int] = []
        for tick in self.after(after_ms):
            if tick > now_ms or (limit is not None and len(found) >= limit):
                break
            found.append(tick)
        return found


def _checked_cron(cron: str) -> str:
    from cronsim import CronSim, CronSimError

    cron = NICKNAMES.get(cron.strip().lower(), cron)
    try:
        CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as exc:
        raise InvalidArgument(f"{cron!r} is not a cron expression: {exc}") from None
    return cron


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A stored schedule: the job that is enqueued at each tick. `checked` validates it."""

    name: str
    tenant: str
    queue: str
    payload: bytes
    #: One of the two is set. The ticks of an interval start at `created_at_ms`.
    cron: str | None = None
    every_ms: int | None = None
    tz: str = "UTC"
    missed: Missed = "skip"
    paused: bool = False
    priority: int = 0
    max_attempts: int | None = None
    created_at_ms: int = 0
    #: When its last pause ended: earlier ticks are not caught up.
    resumed_at_ms: int = 0

    @property
    def ticks(self) -> Ticks:
        return Ticks(self.cron, self.every_ms, self.tz, self.missed, self.created_at_ms)

    def next(self, moment_ms: int) -> int | None:
        """The first tick after a point in calendar time; None: there is none, or the schedule is paused."""
        return None if self.paused else self.ticks.next(moment_ms)

    @property
    def revision(self) -> str:
        """A hash of what it enqueues and when. Ticks of another revision are skipped."""
        when = (self.cron, self.every_ms, self.tz, self.missed, self.created_at_ms, self.resumed_at_ms)
        parts = (self.queue, self.priority, self.max_attempts, *when)
        return blake2b(repr(parts).encode() + self.payload, digest_size=6).hexdigest()

    def checked(self) -> Schedule:
        """Return the schedule with nicknames such as @daily expanded. Raises InvalidArgument, TooLarge."""
        short_text("the name of a schedule", self.name, MAX_NAME_BYTES)
        if "/" in self.name:
            raise InvalidArgument("the name of a schedule has no /")
        checked("tenant", self.tenant)
        checked("queue", self.queue)
        if len(checked_bytes("payload", self.payload)) > MAX_SCHEDULE_BYTES:
            raise InvalidArgument(f"the payload of a schedule has at most {MAX_SCHEDULE_BYTES} bytes")
        if self.every_ms is not None:
            whole_number("every", self.every_ms, 1_000, 2**40)
        whole_number("priority", self.priority, 0, 9)
        if self.max_attempts is not None:
            whole_number("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS)
        return msgspec.structs.replace(self, cron=self.ticks.cron)


def interval_ms(every: Duration | None) -> int | None:
    """An interval in milliseconds, at least one second. Raises InvalidArgument."""
    return None if every is None else duration_ms("every", every, minimum_ms=1_000)


class ScheduleChange(msgspec.Struct, frozen=True):
    """A change of one schedule: exactly one of put, pause and remove."""

    #: Store this schedule; with `replace`, overwrite one of the same name.
    put: Schedule | None = None
    replace: bool = False
    pause: bool | None = None
    remove: bool = False


def name_taken(name: str) -> InvalidArgument:
    """The error when a schedule of that name exists and `replace` is not set."""
    return InvalidArgument(f"there is a schedule named {name!r}: remove it, or replace it")
