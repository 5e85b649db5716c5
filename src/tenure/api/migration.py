"""Copy every job of a store to another: ids, states, attempts, tokens, steps, signals, parents; also schedules.

Stop producers and workers of both stores first: changes made meanwhile make the stores differ, and the checksums show
it. The target's queues are paused until the end, so that no worker claims from an incomplete store; then each is paused
or open as at the source. An interrupted migration can be run again: it skips jobs whose ids exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.errors import InvalidArgument
from tenure.model.attachments import Attached
from tenure.model.job import Job, QueueInfo, Restored
from tenure.model.job_checksum import Checksum, parent_sum, step_sum
from tenure.model.lifecycle import SHOWN
from tenure.model.retry import Policy

#: The limits of one transaction: jobs, and bytes.
BATCH = 500
BATCH_BYTES = 16 * 1024 * 1024
#: The size counted for a link between a job and a parent.
_LINK_BYTES = 100
#: Parents come before the jobs that keep their results; blocked jobs come last.
PHASES = (("done",), ("dead",), ("scheduled", "ready", "leased"))
Progress = Callable[[int, int | None], None]
Batch = list[tuple[Job, Attached | None]]


class Moved(msgspec.Struct, kw_only=True):
    """The outcome of a migration. `source` and `target` are checksums over all jobs of the migrated queues."""

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
    """Copy jobs and policies. Removes nothing from the source, and does not raise on a difference: see `verified`."""
    chosen = [info for info in source.queues(tenant) if queue is None or info.queue == queue]
    total = sum(_job_count(info) for info in chosen)
    prepare(target, chosen)
    copied = copy(source, target, chosen, report=lambda done: progress(done, total) if progress is not None else None)
    refused = copied.refused
    sums = (Checksum(), Checksum())
    if verify:
        names = [(info.queue, info.tenant) for info in chosen]
        sums = (checksum(source, names), checksum(target, names))
    if not refused and sums[0] == sums[1]:
        copy_schedules(source, target, chosen)
        finish(target, chosen)
    return Moved(
        queues=len(chosen),
        jobs=copied.jobs,
        added=copied.added,
        there=copied.there,
        refused=refused,
        source=str(sums[0]),
        target=str(sums[1]),
    )


Listing = Callable[[Queue, Sequence[str]], Iterable[Job]]
"""The jobs of a queue that are in one of these states."""


def copy(
    source: Store,
    target: Store,
    queues: list[QueueInfo],
    *,
    jobs: Listing | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> Copied:
    """Copy the jobs that `jobs` lists (default: all) with their steps and parents. Parents come first."""
    copied = Copied(source, target, queues, jobs or jobs_of, report)
    for states in PHASES:
        copied.add(states)
    copied.add_blocked()
    return copied


class Copied:
    """A copy in progress, and its counts."""

    def __init__(
        self, source: Store, target: Store, queues: list[QueueInfo], jobs: Listing, report: Callable[[int], None]
    ) -> None:
        self._pairs = [(source.queue(i.queue, i.tenant), target.queue(i.queue, i.tenant)) for i in queues]
        self._list_jobs, self._report = jobs, report
        self.jobs = self.added = self.there = 0
        self.refused: dict[str, str] = {}

    def add(self, states: Sequence[str]) -> None:
        """Copy the jobs that are in one of these states."""
        for here, into in self._pairs:
            for batch in batches(with_attached(here, self._list_jobs(here, states))):
                self.jobs += len(batch)
                self.refused |= self._put(into, batch).refused
                self._report(self.jobs)

    def add_blocked(self) -> None:
        """Copy the blocked jobs. One whose parent is not there yet is refused, and tried again after the others."""
        self.add(("blocked",))
        while self.refused:
            before = self.added
            for here, into in self._pairs:
                left = [job for id in self.refused if (job := here.get(id)) is not None and job.state == "blocked"]
                for batch in batches(with_attached(here, left)):
                    for job, _ in batch:
                        del self.refused[job.id]
                    self.refused |= self._put(into, batch).refused
            if self.added == before:
                return

    def _put(self, into: Queue, batch: Batch) -> Restored:
        answer = restore(into, batch)
        self.added += len(answer.added)
        self.there += len(answer.there)
        return answer


def restore(queue: Queue, batch: Batch) -> Restored:
    """Restore jobs with their steps and parents."""
    attached = {job.id: found for job, found in batch if found is not None}
    return queue.restore([job for job, _ in batch], attached)


def copy_schedules(source: Store, target: Store, queues: list[QueueInfo]) -> None:
    """Copy the schedules of these queues. A schedule whose name exists in the target is left as it is."""
    chosen = {(info.tenant, info.queue) for info in queues}
    for tenant in {tenant for tenant, _ in chosen}:
        known = {schedule.name for schedule in target.schedules(tenant)}
        for schedule in source.schedules(tenant):
            if (tenant, schedule.queue) in chosen and schedule.name not in known:
                target.add_schedule(schedule)


def prepare(target: Store, queues: list[QueueInfo]) -> None:
    """Create the queues with their policies, paused."""
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
    """Resume the queues that were not paused at the source."""
    for info in queues:
        if not info.paused:
            target.queue(info.queue, info.tenant).resume()


def jobs_of(queue: Queue, states: Sequence[str] = SHOWN) -> Iterator[Job]:
    """Yield the jobs of a queue in these states, page by page; a job that changes state meanwhile is yielded once."""
    given: set[str] = set()
    for state in states:
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


def with_attached(queue: Queue, jobs: Iterable[Job]) -> Iterator[tuple[Job, Attached | None]]:
    """Yield each job with its steps and parents, or None if it has none."""
    for job in jobs:
        steps = queue.steps(job.id) if job.has_steps else []
        parents = queue.parents(job.id) if job.has_parents else []
        yield job, Attached(steps=steps, parents=parents) if steps or parents else None


def batches(jobs: Iterable[tuple[Job, Attached | None]]) -> Iterator[Batch]:
    batch: Batch = []
    size = 0
    for job, attached in jobs:
        weight = len(job.payload) + len(job.result or b"") + (0 if attached is None else _weight(attached))
        if batch and (len(batch) >= BATCH or size + weight > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((job, attached))
        size += weight
    if batch:
        yield batch


def _weight(attached: Attached) -> int:
    return sum([len(step.value) for step in attached.steps]) + _LINK_BYTES * len(attached.parents)


def checksum(store: Store, names: list[tuple[str, str]]) -> Checksum:
    """Return a checksum over the jobs of these queues (name, tenant), their steps, and their parents within these
    queues.
    """
    found, chosen = Checksum(), set(names)
    for queue, tenant in names:
        here = store.queue(queue, tenant)
        for job, attached in with_attached(here, jobs_of(here)):
            found = found.with_job(job)
            for number, step in enumerate(attached.steps if attached else ()):
                found = found.with_part(step_sum(job, number, step))
            for parent in attached.parents if attached else ():
                if parent.state != "gone" and (parent.queue, tenant) in chosen:
                    found = found.with_part(parent_sum(job, parent.id))
    return found


def _job_count(info: QueueInfo) -> int:
    counts = info.counts
    return counts.blocked + counts.waiting + counts.leased + counts.done + counts.dead
