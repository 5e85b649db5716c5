"""The relay: takes rows from an outbox, enqueues jobs for them, deletes the rows.

Each row is sent exactly once, wherever the relay is killed. A row is deleted after its job is stored, so a row whose
relay was killed in between is sent again, and its key finds the first job. A queue remembers keys for its policy's
`dedup_window` (a day). So a row that a relay began to send longer ago than that, and never finished, is not sent again:
whether its job exists is unknown, and the row is refused with that reason, for a person to decide.

Two relays on one outbox are safe, and no faster than one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from tenure.api.store import Store
from tenure.clock import Clock, SystemClock
from tenure.contract.queue_infos import queue_info
from tenure.errors import (
    InvalidArgument,
    KeyConflict,
    OpenError,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    TooLarge,
    Unavailable,
)
from tenure.model.durations import Duration, duration_ms
from tenure.model.job import NewJob
from tenure.model.names import QueueName, queue_name
from tenure.model.request import checked_on_conflict, job_request
from tenure.model.retry import Policy, whole_number
from tenure.outbox.table import OutboxRow, OutboxTable, payload_bytes
from tenure.telemetry import Telemetry

#: Seconds that a key's window must still have: enqueueing a batch takes less, even on a slow store.
_MARGIN_SECONDS = 60.0
#: Seconds before rows of a full queue are tried again, if the error does not say.
_FULL_SECONDS = 5.0
_LONGEST_PAUSE = 30.0
#: Bytes of one transaction; a batch of larger rows is split.
_BATCH_BYTES = 4 * 1024 * 1024

_headers = msgspec.json.Decoder(dict[str, str])
#: Temporary refusals: the store wrote nothing.
_FULL = (QueueFull, QuotaExceeded, RateLimited)


class Sent(NamedTuple):
    """Counts of rows: enqueued, already enqueued before, refused for good, refused for now."""

    enqueued: int = 0
    duplicates: int = 0
    refused: int = 0
    held_back: int = 0

    def plus(self, other: Sent) -> Sent:
        return Sent(*(mine + its for mine, its in zip(self, other, strict=True)))

    @property
    def ended(self) -> int:
        """Rows that are finished."""
        return self.enqueued + self.duplicates + self.refused


class Relay:
    """Sends the rows of one outbox to one store. Use it in one thread."""

    def __init__(
        self,
        outbox: OutboxTable,
        store: Store,
        *,
        batch: int = 500,
        poll: Duration = 0.5,
        clock: Clock | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._outbox = outbox
        self._store = store
        self._batch = whole_number("batch", batch, 1, 10_000)
        self._poll = duration_ms("poll", poll, minimum_ms=1) / 1000
        self._clock = SystemClock() if clock is None else clock
        self._progress = progress
        self._telemetry = Telemetry(store.url)
        #: Queues that were full, and when to try them again.
        self._held_back: dict[QueueName, int] = {}
        self.total = Sent()

    def step(self) -> Sent:
        """Send one batch. Raises Unavailable if the database or the store cannot be reached."""
        now = self._clock.steady_ms()
        self._held_back = {name: until for name, until in self._held_back.items() if until > now}
        rows = self._outbox.take(self._batch, self._held_back)
        sent = Sent()
        for (tenant, queue), group in _by_queue(rows).items():
            sent = sent.plus(self._send_group(tenant, queue, group))
        self.total = self.total.plus(sent)
        if self._progress is not None and rows:
            self._progress(self.total.ended)
        return sent

    def drain(self) -> Sent:
        """Send until no row can be sent now; return the counts."""
        before = self.total
        while self.step().ended:
            pass
        return Sent(*(now - then for now, then in zip(self.total, before, strict=True)))

    def run(self, stop: threading.Event) -> None:
        """Send rows as they are committed, until `stop`.

        Retries unreachable databases and stores, with growing pauses.
        """
        pause = self._poll
        while not stop.is_set():
            try:
                if self.step().ended:
                    pause = self._poll
                    continue
                pause = self._poll
            except (Unavailable, OpenError) as exc:
                self._telemetry.warning("outbox_interrupted", outbox=self._outbox.where, error=str(exc), again_in=pause)
                stop.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            stop.wait(pause)

    # ── one queue's rows ─────────────────────────────────────────────────────────────────────────────────────────────

    def _send_group(self, tenant: str, queue: str, rows: Sequence[OutboxRow]) -> Sent:
        try:
            name = queue_name(queue, tenant)
        except InvalidArgument as exc:
            return self._refuse([(row, str(exc)) for row in rows])
        known, sent = self._without_doubtful(name, rows)
        jobs: list[tuple[OutboxRow, NewJob]] = []
        for row in known:
            try:
                job = _job_of(row)
                job_request(job)
            except (InvalidArgument, TooLarge) as exc:
                sent = sent.plus(self._refuse([(row, str(exc))]))
            else:
                jobs.append((row, job))
        for piece in _pieces(jobs):
            if name in self._held_back:  # an earlier piece found it full
                self._outbox.unmark([row.id for row, _ in piece])
                sent = sent.plus(Sent(held_back=len(piece)))
            else:
                sent = sent.plus(self._send_piece(name, piece))
        return sent

    def _without_doubtful(self, name: QueueName, rows: Sequence[OutboxRow]) -> tuple[list[OutboxRow], Sent]:
        """Return the rows that may be sent: of those that were sent before, only those whose keys the queue still
        remembers.
        """
        if all(row.age is None for row in rows):
            return list(rows), Sent()
        window = self._dedup_seconds(name)
        doubtful = [row for row in rows if row.age is not None and row.age > window - _MARGIN_SECONDS]
        reason = (
            f"in doubt: a relay began to send this row and never finished, longer ago than the queue remembers keys "
            f"(dedup_window, {window:g} s). If no job has its key, 'tenure outbox retry' sends it; else delete the row"
        )
        sent = self._refuse([(row, reason) for row in doubtful])
        refused = {row.id for row in doubtful}
        return [row for row in rows if row.id not in refused], sent

    def _dedup_seconds(self, name: QueueName) -> float:
        info = queue_info(self._store.backend, name)
        if info is not None and isinstance(info.policy, Policy):
            return duration_ms("dedup_window", info.policy.dedup_window) / 1000
        return float("inf")  # there is no such queue, so none of its jobs was ever made

    def _send_piece(self, name: QueueName, piece: Sequence[tuple[OutboxRow, NewJob]]) -> Sent:
        """Enqueue the rows in one transaction, then delete them."""
        if not piece:
            return Sent()
        queue = self._store.queue(name.queue, name.tenant)
        try:
            added = queue.enqueue_many([job for _, job in piece])
        except KeyConflict as exc:
            conflicts = dict(exc.conflicts)
            refusals = [(piece[at][0], f"key {piece[at][1].key!r} belongs to job {job}, which has another payload") for at, job in conflicts.items()]  # fmt: skip
            rest = [one for at, one in enumerate(piece) if at not in conflicts]
            return self._refuse(refusals).plus(self._send_piece(name, rest))
        except _FULL as exc:
            if len(piece) > 1 and not isinstance(exc, RateLimited):  # there may be room for some of them
                half = len(piece) // 2
                first, second = self._send_piece(name, piece[:half]), piece[half:]
                return first.plus(
                    self._hold_back(name, second, exc) if first.held_back else self._send_piece(name, second)
                )
            return self._hold_back(name, piece, exc)
        except (InvalidArgument, TooLarge) as exc:
            if len(piece) > 1:  # each job was checked: the batch as a whole is too large
                half = len(piece) // 2
                return self._send_piece(name, piece[:half]).plus(self._send_piece(name, piece[half:]))
            return self._refuse([(piece[0][0], str(exc))])
        self._outbox.remove([row.id for row, _ in piece])
        duplicates = sum(one.duplicate for one in added)
        return Sent(enqueued=len(added) - duplicates, duplicates=duplicates)

    def _hold_back(self, name: QueueName, piece: Sequence[tuple[OutboxRow, NewJob]], error: QueueFull | QuotaExceeded | RateLimited) -> Sent:  # fmt: skip
        pause = error.retry_after or _FULL_SECONDS
        self._held_back[name] = self._clock.steady_ms() + round(pause * 1000)
        self._outbox.unmark([row.id for row, _ in piece])
        self._telemetry.warning("outbox_held_back", queue=str(name), rows=len(piece), error=str(error), again_in=pause)
        return Sent(held_back=len(piece))

    def _refuse(self, refusals: Sequence[tuple[OutboxRow, str]]) -> Sent:
        for row, error in refusals:
            self._outbox.refuse(row.id, error)
            self._telemetry.warning("outbox_refused", row=row.id, queue=row.queue, tenant=row.tenant, error=error)
        return Sent(refused=len(refusals))


def _by_queue(rows: Sequence[OutboxRow]) -> dict[tuple[str, str], list[OutboxRow]]:
    groups: dict[tuple[str, str], list[OutboxRow]] = {}
    for row in rows:
        groups.setdefault((row.tenant, row.queue), []).append(row)
    return groups


def _pieces(jobs: Sequence[tuple[OutboxRow, NewJob]]) -> list[list[tuple[OutboxRow, NewJob]]]:
    """Split the jobs into pieces that fit one transaction."""
    pieces: list[list[tuple[OutboxRow, NewJob]]] = []
    size = _BATCH_BYTES
    for row, job in jobs:
        size += len(job.payload)
        if size > _BATCH_BYTES:
            pieces.append([])
            size = len(job.payload)
        pieces[-1].append((row, job))
    return pieces


def _job_of(row: OutboxRow) -> NewJob:
    """Convert a row to a job. Raises InvalidArgument for invalid values, which any program may have written."""
    try:
        headers = None if row.headers is None else _headers.decode(row.headers)
    except (msgspec.DecodeError, TypeError) as exc:
        raise InvalidArgument(f"headers: {exc}") from None
    return NewJob(
        payload_bytes(row.payload), at=row.visible_at, priority=row.priority, key=row.key, max_attempts=row.max_attempts, ttl=row.ttl,
        headers=headers, on_conflict=checked_on_conflict(row.on_conflict), group=row.group,
    )  # fmt: skip
