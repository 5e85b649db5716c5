"""The queues that a worker serves: names and patterns (`host-*`), and warnings about likely mistakes.

    queue_unknown        at the start: a queue was named that neither exists nor is used by a task
    queue_matched        a queue has appeared that matches a pattern; the worker claims from it from now on
    queue_not_served     jobs of this app's tasks wait in a queue, and no worker claims from it

Each is logged once for a queue.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from tenure.errors import Forbidden, InvalidArgument, TenureError, Unauthenticated
from tenure.model.job import QueueInfo
from tenure.model.names import checked, queue_name
from tenure.worker import log
from tenure.worker.background import BackgroundThread
from tenure.worker.codec import open_envelope
from tenure.worker.periodic import QUEUE as SCHEDULE

if TYPE_CHECKING:
    from tenure.worker.app import App

#: Seconds between two reads of the queues: with patterns to match, and only for warnings.
_MATCH_EVERY = 1.0
_WARN_EVERY = 15.0


def is_pattern(name: str) -> bool:
    """Whether a name is a pattern: `*`, `?` and `[…]` are in no queue's name."""
    return any(character in name for character in "*?[")


def serves(names: Iterable[str], queue: str) -> bool:
    """Whether a queue matches one of the names and patterns. Patterns do not match the tick queue."""
    return any(name == queue or (is_pattern(name) and fnmatchcase(queue, name) and queue != SCHEDULE) for name in names)


def check_names(names: Iterable[str], tenant: str) -> None:
    """Raise InvalidArgument for a text that is neither a queue's name nor a pattern."""
    for name in names:
        if is_pattern(name):
            checked("tenant", tenant)
            if not set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-*?[]!"):
                raise InvalidArgument(
                    f"queue pattern {name!r}: a-z, 0-9, '.', '_', '-' and the wildcards *, ? and [...]"
                )
        else:
            queue_name(name, tenant)


class QueueWatch:
    """Reads the store's queues regularly while the worker runs."""

    def __init__(self, app: App, names: list[str], stop: threading.Event, found: Callable[[list[str]], None]) -> None:
        self._app = app
        self._names = names
        self._patterns = [name for name in names if is_pattern(name)]
        self._stop = stop
        self._found = found
        self._served = [name for name in names if not is_pattern(name)]
        self._idle: dict[str, tuple[int, int]] = {}
        self._warned: set[str] = set()
        self._next_warning_ms = 0
        self.every = _MATCH_EVERY if self._patterns else _WARN_EVERY
        self.thread = BackgroundThread("queue-watch", self._step)

    def initial_queues(self) -> list[str]:
        """Return the queues to start with. Warns of names that are probably misspelt."""
        infos = self._infos()
        if infos is not None:
            self._match(infos, log_found=False)
            self._warn_unknown({info.queue for info in infos})
        return list(self._served)

    def _step(self) -> bool:
        if self._stop.wait(self.every):
            return True
        infos = self._infos()
        if infos is None:
            return False
        if self._patterns and self._match(infos, log_found=True):
            self._found(list(self._served))
        now = self._app.clock.steady_ms()
        if now >= self._next_warning_ms:
            self._next_warning_ms = now + round(1000 * max(self.every, _WARN_EVERY if self._patterns else 0))
            self._warn_not_served(infos)
        return False

    def _infos(self) -> list[QueueInfo] | None:
        try:
            return self._app.store.queues(self._app.tenant)
        except (Forbidden, Unauthenticated) as exc:
            if self._patterns and "" not in self._warned:
                self._warned.add("")
                log.error("queues_not_listed", patterns=self._patterns, error=str(exc))
        except TenureError:
            pass  # the claimer gets and reports the same error
        return None

    def _match(self, infos: list[QueueInfo], *, log_found: bool) -> bool:
        """Add the queues that match a pattern; return whether there were new ones."""
        known = set(self._served)
        new = [info.queue for info in infos if info.queue not in known and serves(self._patterns, info.queue)]
        self._served += new
        for queue in new if log_found else ():
            log.info("queue_matched", queue=queue, patterns=self._patterns)
        return bool(new)

    def _warn_unknown(self, existing: set[str]) -> None:
        used = set(self._app.queues())
        for name in self._names:
            if is_pattern(name) or name in existing or name in used:
                continue
            close = difflib.get_close_matches(name, sorted(existing | used), 1)
            hint = (
                f"did you mean {close[0]}?"
                if close
                else f"queues of this app's tasks: {', '.join(sorted(used)) or 'none'}"
            )
            log.warning(
                "queue_unknown",
                queue=name,
                advice=f"no such queue in the store, and no task of this app uses it: {hint}",
            )

    def _warn_not_served(self, infos: list[QueueInfo]) -> None:
        """Warn of queues with our tasks' jobs that have been ready, and none of them claimed, since the last check."""
        idle: dict[str, tuple[int, int]] = {}
        for info in infos:
            counts = info.counts
            limited = info.paused or getattr(info.policy, "rate", None) is not None
            if counts.ready and not counts.leased and not limited and not serves(self._names, info.queue):
                idle[info.queue] = (counts.enqueued - counts.waiting, counts.done + counts.dead + counts.removed)
        for queue, progress in idle.items():
            if queue != SCHEDULE and queue not in self._warned and self._idle.get(queue) == progress:
                self._warn_if_ours(queue)
        self._idle = idle

    def _warn_if_ours(self, queue: str) -> None:
        jobs = self._app.store.queue(queue, self._app.tenant).list("ready", 1).jobs
        try:
            task = open_envelope(jobs[0].payload).task if jobs else ""
        except InvalidArgument:
            return
        if task in self._app.tasks:
            self._warned.add(queue)
            log.warning(
                "queue_not_served", queue=queue, task=task,
                advice=f"jobs of this app's tasks wait there, and no worker claims them: "
                f"start one with --queues {queue}, or give the task queue={queue!r}",
            )  # fmt: skip
