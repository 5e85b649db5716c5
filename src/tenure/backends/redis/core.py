"""`Core`: what every verb needs: commands, shards, lease ids, the clock, notifications."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

from tenure.backends.redis.commands import Commands
from tenure.backends.redis.cursor_seal import KEY_BYTES, CursorSeal
from tenure.backends.redis.filters import Filters
from tenure.backends.redis.notifications import Notifications
from tenure.backends.redis.packer import Arg
from tenure.backends.redis.shards import Shard, Shards
from tenure.clock import Clock, ManualClock, SystemClock
from tenure.errors import InvalidArgument
from tenure.model.ids import IdSource
from tenure.model.names import ANY_QUEUE, QueueName
from tenure.storage.keyspace import digest

#: How many expired leases and unusable rows one claim inspects (`storage.inspect_limit`).
INSPECT_LIMIT = 200


class Core:
    def __init__(
        self,
        commands: Commands,
        prefix: str,
        partitions: int,
        clock: Clock,
        inspect_limit: int = INSPECT_LIMIT,
        grace_ms: int = 0,
        one_slot: bool = False,
    ) -> None:
        self.commands = commands
        self.inspect_limit = inspect_limit
        #: Milliseconds after its expiry before a lease is taken over (`storage.redis.grace`).
        self.grace_ms = grace_ms
        self.clock = clock
        self.shards = Shards(commands, prefix, partitions, one_slot)
        self.notifications = Notifications(commands, clock)
        self.ids = IdSource()
        self.filters = Filters()
        self._seal: CursorSeal | None = None
        if isinstance(clock, ManualClock):
            commands.time = clock.unset_ms  # the server's clock is not affected by `ManualClock.step`
        elif not isinstance(clock, SystemClock):
            raise InvalidArgument("a Redis store uses its server's clock: open it without clock=")

    def call_once(self, base: bytes, verb: str, *args: Arg) -> list[Any]:
        """Run a verb that writes. It takes effect once."""
        return self.commands.call_once(base, verb, *args)

    def choose_shard(self, shards: Sequence[Shard]) -> Shard:
        """Return the shard for jobs that may go to any: round robin."""
        return self.shards.rotated(shards)[0]

    def decide_once(self, decide: Callable[[], bytes]) -> bytes:
        """Return the decision that a chunked verb makes at its beginning."""
        return decide()

    def cursor_seal(self, *, anew: bool = False) -> CursorSeal:
        """Return the seal of the journal's cursors; its key is created on first use. `anew`: read the key again."""
        if self._seal is None or anew:
            key = self.shards.registry + b":cursorkey"
            raw = self.commands.plain(key, "GET", key)
            if raw is None:
                self.commands.plain(key, "SET", key, os.urandom(KEY_BYTES), "NX")
                raw = self.commands.plain(key, "GET", key)
            self._seal = CursorSeal(raw)
        return self._seal

    def listen(self, name: QueueName) -> None:
        """Subscribe to the changes of a queue; ANY_QUEUE: to those of the turns of queues."""
        if name == ANY_QUEUE:
            self.notifications.subscribe(self.shards.registry + b":turns", name)
            return
        for shard in self.shards.find_or_register(name).shards:
            self.notifications.subscribe(shard.base, name)

    def now_ms(self) -> int:
        return int(self.commands.call(self.shards.registry, "now")[0])

    def drift_ms(self) -> int:
        return self.clock.wall_ms() - self.now_ms()

    def server_time_of(self, wall_ms: int | None) -> int | None:
        """Convert a time of the caller's calendar to the server's, by the current difference of the two clocks."""
        return None if wall_ms is None else max(0, wall_ms - self.drift_ms())


class RememberingCore(Core):
    """The core for one request that is remembered by its id: repeated steps get their first answers."""

    def __init__(self, core: Core, request: bytes, arguments: bytes) -> None:
        vars(self).update(vars(core))
        self._request = digest(request)
        self._steps = itertools.count()
        if not self.commands.call(self.shards.registry, "bind_request", self._request, arguments)[0]:
            raise InvalidArgument("a request with this id asked for something else: use another id")

    def call_once(self, base: bytes, verb: str, *args: Arg) -> list[Any]:
        step = digest(self._request + base + b"%d" % next(self._steps))
        return self.commands.call_remembered(base, verb, step, *args)

    def choose_shard(self, shards: Sequence[Shard]) -> Shard:
        """Return the same shard for the same request, so that a repeat finds what it did before."""
        return shards[self._request[0] % len(shards)]

    def decide_once(self, decide: Callable[[], bytes]) -> bytes:
        found: bytes = self.call_once(self.shards.registry, "remember", decide())[0]
        return found
