"""What every verb works with: commands, shards, ids for leases, the clock, notifications."""

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
    ) -> None:
        self.commands = commands
        self.inspect_limit = inspect_limit
        #: How long past its end an expired lease is left alone (`storage.redis.grace`).
        self.grace_ms = grace_ms
        self.clock = clock
        self.shards = Shards(commands, prefix, partitions)
        self.notifications = Notifications(commands, clock)
        self.ids = IdSource()
        self.filters = Filters()
        self._seal: CursorSeal | None = None
        if isinstance(clock, ManualClock):
            commands.time = clock.unset_ms  # the server's clock is not the one that tests set
        elif not isinstance(clock, SystemClock):
            raise InvalidArgument("a Redis store goes by its server's clock: open it without clock=")

    def call_once(self, base: bytes, verb: str, *args: Arg) -> list[Any]:
        """Run a verb that writes; it acts once."""
        return self.commands.call_once(base, verb, *args)

    def choose_shard(self, shards: Sequence[Shard]) -> Shard:
        """The shard for jobs that may go to any: the shards are taken in turn."""
        return self.shards.rotated(shards)[0]

    def decide_once(self, decide: Callable[[], bytes]) -> bytes:
        """The decision that a verb which works in chunks makes at its beginning."""
        return decide()

    def cursor_seal(self, *, anew: bool = False) -> CursorSeal:
        """What seals the journal's cursors; its key is made with the first one. `anew`: read the key again."""
        if self._seal is None or anew:
            key = self.shards.registry + b":cursorkey"
            raw = self.commands.plain(key, "GET", key)
            if raw is None:
                self.commands.plain(key, "SET", key, os.urandom(KEY_BYTES), "NX")
                raw = self.commands.plain(key, "GET", key)
            self._seal = CursorSeal(raw)
        return self._seal

    def now_ms(self) -> int:
        return int(self.commands.call(self.shards.registry, "now")[0])

    def drift_ms(self) -> int:
        return self.clock.wall_ms() - self.now_ms()

    def server_time_of(self, wall_ms: int | None) -> int | None:
        """A moment of the caller's calendar in the server's time: shifted by how far the two clocks are apart now."""
        return None if wall_ms is None else max(0, wall_ms - self.drift_ms())


class RememberingCore(Core):
    """The core for one request that is remembered by its id: repeated, its steps are answered as the first time."""

    def __init__(self, core: Core, request: bytes, asked: bytes) -> None:
        vars(self).update(vars(core))
        self._request = digest(request)
        self._steps = itertools.count()
        if not self.commands.call(self.shards.registry, "bind_request", self._request, asked)[0]:
            raise InvalidArgument("a request with this id asked for something else: use another id")

    def call_once(self, base: bytes, verb: str, *args: Arg) -> list[Any]:
        step = digest(self._request + base + b"%d" % next(self._steps))
        return self.commands.call_remembered(base, verb, step, *args)

    def choose_shard(self, shards: Sequence[Shard]) -> Shard:
        """The same shard for the same request, so that a repeated request finds what it did before."""
        return shards[self._request[0] % len(shards)]

    def decide_once(self, decide: Callable[[], bytes]) -> bytes:
        found: bytes = self.call_once(self.shards.registry, "remember", decide())[0]
        return found
