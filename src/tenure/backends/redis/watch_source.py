"""The watch source (`queueing.watches`) of a Redis store: channels wake its waiters, servers report due times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tenure.backends.redis.core import Core
from tenure.backends.redis.journal import subscribe_to_all
from tenure.backends.redis.notifications import NEVER, POLL_SECONDS
from tenure.model.names import ANY_QUEUE, JobName, QueueName


class RedisWatchSource:
    def __init__(self, core: Core) -> None:
        self._core = core
        self.clock = core.clock
        self.waiters = core.notifications.waiters
        #: This process's clock: reading the server's costs a round trip, so due times are converted to milliseconds
        #: from now.
        self.now_ms = core.clock.steady_ms

    def listen(self, topics: Sequence[object]) -> None:
        core = self._core
        for topic in topics:
            if isinstance(topic, QueueName):
                core.listen(topic)
            elif isinstance(topic, JobName):
                core.notifications.subscribe(
                    core.shards.find_or_register(topic.queue).shard_of(topic.job).base, topic.queue
                )
            else:
                subscribe_to_all(core)

    def next_due(self, names: Sequence[object]) -> int | None:
        core, first = self._core, None
        for name in names:
            if not isinstance(name, QueueName):
                continue
            plan = NEVER
            # without a planned look, anything that becomes due wakes the first waiter
            core.notifications.plans.pop(name, None)
            for due, now in self._due(name):
                if due >= 0:
                    plan = min(plan, due)
                    left = self.now_ms() + due - now
                    first = left if first is None else min(first, left)
            # A step that makes something due sooner than this wakes the first waiter.
            core.notifications.plans[name] = plan
        return first

    def _due(self, name: QueueName) -> Iterator[tuple[int, int]]:
        """When each shard of a queue has something due (-1: never), and the server's time."""
        commands, shards = self._core.commands, self._core.shards
        if name == ANY_QUEUE:
            yield tuple(commands.call(shards.registry, "any_due"))
            return
        for shard in shards.find_or_register(name).shards:
            yield tuple(commands.call(shard.base, "due", self._core.grace_ms))

    def poll_s(self, journal: bool) -> float | None:
        return POLL_SECONDS

    def version(self) -> int:
        """Grows every `POLL_SECONDS`, to make up for lost messages."""
        return self.now_ms() // round(POLL_SECONDS * 1000)
