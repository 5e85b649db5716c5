"""Every job of a store into another: same ids, states, attempts and tokens.

Both stores should be at rest: source queues that claim or enqueue meanwhile make the two differ, and the checksums say
so. The queues of the target are paused until the end, so that nobody works on half a store; then each is as it was at
the source. A migration that was stopped is run again: jobs that are there already are left, by their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.errors import InvalidArgument
from tenure.model.job import Job, QueueInfo
from tenure.model.job_checksum import Checksum
from tenure.model.lifecycle import SHOWN
from tenure.model.retry import Policy

#: Jobs a transaction, and what it may weigh.
BATCH = 500
BATCH_BYTES = 16 * 1024 * 1024
Progress = Callable[[int, int | None], None]


class Moved(msgspec.Struct, kw_only=True):
    """What a migration did: `source` and `target` are checksums of all jobs of the queues that were moved."""

    queues: int
    jobs: int
    added: int
    there: int
    refused: dict[str, str]
    source: str
    target: str

    @property
    def verified(self) -> bool:
        return self.source == self.target and not self.refused


def migrate(
    source: Store,
    target: Store,
    *,
    tenant: str | None = None,
    queue: str | None = None,
    verify: bool = True,
    progress: Progress | None = None,
) -> Moved:
    """Copy jobs and policies; nothing is removed from the source. Raises nothing for a difference: `verified` tells."""
    chosen = [info for info in source.queues(tenant) if queue is None or info.queue == queue]
    total = sum(_kept(info) for info in chosen)
    prepare(target, chosen)
    done = added = there = 0
    refused: dict[str, str] = {}
    for info in chosen:
        here, into = source.queue(info.queue, info.tenant), target.queue(info.queue, info.tenant)
        for batch in batches(jobs_of(here)):
            answer = into.restore(batch)
            added += len(answer.added)
            there += len(answer.there)
            refused |= answer.refused
            done += len(batch)
            if progress is not None:
                progress(done, total)
    sums = (Checksum(), Checksum())
    if verify:
        names = [(info.queue, info.tenant) for info in chosen]
        sums = (checksum(source, names), checksum(target, names))
    if not refused and sums[0] == sums[1]:
        finish(target, chosen)
    return Moved(
        queues=len(chosen),
        jobs=done,
        added=added,
        there=there,
        refused=refused,
        source=str(sums[0]),
        target=str(sums[1]),
    )


def prepare(target: Store, queues: list[QueueInfo]) -> None:
    """Make the queues with their policies, paused."""
    policies: dict[str, dict[str | Queue, Policy]] = {}
    for info in queues:
        if not isinstance(info.policy, Policy):
            raise InvalidArgument(f"queue {info.tenant}/{info.queue} has no policy that can be read")
        policies.setdefault(info.tenant, {})[info.queue] = info.policy
    for tenant, named in policies.items():
        target.apply(named, tenant)
    for info in queues:
        target.queue(info.queue, info.tenant).pause()


def finish(target: Store, queues: list[QueueInfo]) -> None:
    """Let go of the queues that were open at the source."""
    for info in queues:
        if not info.paused:
            target.queue(info.queue, info.tenant).resume()


def jobs_of(queue: Queue) -> Iterator[Job]:
    """Every job of a queue, page by page; one that moves between states meanwhile is given once."""
    given: set[str] = set()
    for state in SHOWN:
        cursor = None
        while True:
            page = queue.list(state, limit=BATCH, cursor=cursor)
            for job in page.jobs:
                if job.id not in given:
                    given.add(job.id)
                    yield job
            cursor = page.cursor
            if cursor is None:
                break


def batches(jobs: Iterator[Job]) -> Iterator[list[Job]]:
    batch: list[Job] = []
    size = 0
    for job in jobs:
        weight = len(job.payload) + len(job.result or b"")
        if batch and (len(batch) >= BATCH or size + weight > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(job)
        size += weight
    if batch:
        yield batch


def checksum(store: Store, names: list[tuple[str, str]]) -> Checksum:
    found = Checksum()
    for queue, tenant in names:
        for job in jobs_of(store.queue(queue, tenant)):
            found = found.with_job(job)
    return found


def _kept(info: QueueInfo) -> int:
    counts = info.counts
    return counts.waiting + counts.leased + counts.done + counts.dead
