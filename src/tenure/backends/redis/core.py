"""What every verb works with: the wire, the shards, ids for leases, the clock, and those who wait."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

from tenure.backends.redis.commands import Wire
from tenure.backends.redis.cursor_seal import KEY_BYTES, CursorSeal
from tenure.backends.redis.filters import Filters
from tenure.backends.redis.notifications import Listening
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
        self, wire: Wire, prefix: str, partitions: int, clock: Clock, inspect_limit: int = INSPECT_LIMIT
    ) -> None:
        self.wire = wire
        self.inspect_limit = inspect_limit
        self.clock = clock
        self.shards = Shards(wire, prefix, partitions)
        self.listening = Listening(wire, clock)
        self.ids = IdSource()
        self.filters = Filters()
        self._seal: CursorSeal | None = None
        if isinstance(clock, ManualClock):
            wire.time = clock.unset_ms  # the server's clock is not the one that tests set
        elif not isinstance(clock, SystemClock):
            raise InvalidArgument("a Redis store goes by its server's clock: open it without clock=")

    def act(self, base: bytes, verb: str, *args: Arg) -> list[Any]:
        """A verb that writes."""
        return self.wire.act(base, verb, *args)

    def any_of(self, shards: Sequence[Shard]) -> Shard:
        """Where jobs go that may go anywhere: in turn."""
        return self.shards.turn(shards)[0]

    def kept(self, decide: Callable[[], bytes]) -> bytes:
        """What a verb that works in chunks decided at its beginning."""
        return decide()

    def cursor_seal(self, *, anew: bool = False) -> CursorSeal:
        """What seals the journal's cursors; its key is made with the first one. `anew`: read the key again."""
        if self._seal is None or anew:
            key = self.shards.registry + b":cursorkey"
            raw = self.wire.command(key, "GET", key)
            if raw is None:
                self.wire.command(key, "SET", key, os.urandom(KEY_BYTES), "NX")
                raw = self.wire.command(key, "GET", key)
            self._seal = CursorSeal(raw)
        return self._seal

    def now_ms(self) -> int:
        return int(self.wire.ask(self.shards.registry, "now")[0])

    def drift_ms(self) -> int:
        return self.clock.wall_ms() - self.now_ms()

    def of_calendar(self, wall_ms: int | None) -> int | None:
        """A moment of the caller's calendar in the server's time, by what both show now."""
        return None if wall_ms is None else max(0, wall_ms - self.drift_ms())


class OnceCore(Core):
    """The same store, for one request: each of its steps acts once, and is answered as the first time."""

    def __init__(self, core: Core, request: bytes, asked: bytes) -> None:
        vars(self).update(vars(core))
        self._request = digest(request)
        self._steps = itertools.count()
        if not self.wire.ask(self.shards.registry, "bind_request", self._request, asked)[0]:
            raise InvalidArgument("a request with this id asked for something else: use another id")

    def act(self, base: bytes, verb: str, *args: Arg) -> list[Any]:
        step = digest(self._request + base + b"%d" % next(self._steps))
        return self.wire.once(base, verb, step, *args)

    def any_of(self, shards: Sequence[Shard]) -> Shard:
        """Always the same: asked again, it must meet what it did the first time."""
        return shards[self._request[0] % len(shards)]

    def kept(self, decide: Callable[[], bytes]) -> bytes:
        found: bytes = self.act(self.shards.registry, "remember", decide())[0]
        return found
