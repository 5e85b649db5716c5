"""What an attendant (`queueing.watches`) has to know of a store on Redis: its channels wake the lines, its servers tell what is due."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.backends.redis.core import Core
from tenure.backends.redis.journal import hear_all
from tenure.backends.redis.notifications import LOOK_AGAIN, NEVER
from tenure.model.names import JobName, QueueName


class OfServers:
    def __init__(self, core: Core) -> None:
        self._core = core
        self.clock = core.clock
        self.waiters = core.listening.waiters
        #: The server's time is a round trip away; what is due is so many milliseconds from now.
        self.now_ms = core.clock.steady_ms

    def listen(self, topics: Sequence[object]) -> None:
        core = self._core
        for topic in topics:
            if isinstance(topic, QueueName):
                for shard in core.shards.made(topic).shards:
                    core.listening.hear(shard.base, topic)
            elif isinstance(topic, JobName):
                core.listening.hear(core.shards.made(topic.queue).of(topic.job).base, topic.queue)
            else:
                hear_all(core)

    def next_due(self, names: Sequence[object]) -> int | None:
        core, first = self._core, None
        for name in names:
            if not isinstance(name, QueueName):
                continue
            plan = NEVER
            core.listening.plans.pop(name, None)  # whatever becomes due while we ask wakes who leads
            for shard in core.shards.made(name).shards:
                due, now = core.wire.ask(shard.base, "due")
                if due >= 0:
                    plan = min(plan, due)
                    left = self.now_ms() + due - now
                    first = left if first is None else min(first, left)
            # A step that brings something due sooner than this wakes who leads the line.
            core.listening.plans[name] = plan
        return first

    def poll_s(self, journal: bool) -> float | None:
        return LOOK_AGAIN

    def version(self) -> int:
        """A message may have been missed: another one after every so long."""
        return self.now_ms() // round(LOOK_AGAIN * 1000)
