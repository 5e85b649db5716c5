"""A store in which one thing of each kind is wrong, each in a queue of its own, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenure import Backoff, Delivery, ManualClock, NewJob, Policy, Queue, Store
from tenure.model.ids import NO_ID, job_id_bytes
from tenure.model.lifecycle import Change
from tenure.queueing.groups import group_id
from tenure.storage import keyspace, records
from tenure.storage.keyspace import Counter, Due
from tenure.testing.harness import engine_of

Edit = Callable[[records.EventRecord], records.EventRecord]


#: Faults that are not called as the rule that finds them.
_RULES = {
    "groups_lost": "groups",
    "groups_misplaced": "groups",
    "index_of_group": "index",
    "stray_of_group": "stray",
    "parents_lost": "parents",
    "parents_uncounted": "parents",
    "parents_of_nobody": "parents",
    "parents_too_late": "parents",
    "steps_lost": "steps",
    "steps_of_nobody": "steps",
}


class Planter:
    """Plants damage below the store, with checksums that fit: what only a look at the whole can find."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store, self.clock, self._engine = store, clock, engine_of(store)
        #: (rule, queue, job)
        self.planted: list[tuple[str, str, str | None]] = []

    def all(self) -> None:
        for fault in (
            "index", "stray", "groups", "groups_lost", "groups_misplaced", "index_of_group", "stray_of_group",
            "parents", "parents_lost", "parents_uncounted", "parents_of_nobody", "parents_too_late", "steps", "steps_lost", "steps_of_nobody",
            "lease", "lease_open", "lease_empty", "counters", "conservation", "journal", "lost", "gap", "chain", "transition", "overlap", "stale_settle", "late_settle", "attempts", "token",
        ):  # fmt: skip
            queue = self.store.queue(f"q-{fault.replace('_', '-')}")
            queue.configure(Policy(retention=0, backoff=Backoff.fixed(0)))
            queue.enqueue_many([b"bystander"] * 3)
            number = next(q.number for q in self.store.queues() if q.queue == queue.name.queue)
            job = getattr(self, f"_{fault}")(queue, number)
            rule = _RULES.get(fault, fault)
            self.planted.append((rule, queue.name.queue, job))

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _put(self, space: int, key: bytes, value: bytes = b"") -> None:
        self._engine.transact(lambda tx: tx.put(space, key, value))

    def _delete(self, space: int, key: bytes) -> None:
        self._engine.transact(lambda tx: tx.delete(space, key))

    def _state(self, number: int, job: str) -> records.StateRecord:
        raw: Any = self._engine.read(lambda r: r.get(keyspace.STATE, keyspace.of_queue(number, job_id_bytes(job))))
        return records.decode_state(raw, job_id_bytes(job))

    def _ready_key(self, number: int, job: str) -> bytes:
        state = self._state(number, job)
        return keyspace.ready(number, state.priority, state.visible_at_ms, job_id_bytes(job))

    def _count(self, number: int, counter: Counter, by: int) -> None:
        self._engine.transact(lambda tx: tx.add(keyspace.counter(number, counter), by))

    def _edit(self, job: str | None, change: Change, edit: Edit | None, *, time_ms: int = 0, last: bool = True) -> None:
        """Change a job's (last) event of a type, or move its row's time."""
        rows: Any = self._engine.read(lambda r: r.scan(keyspace.JOURNAL, b"", keyspace.LAST, 100_000))
        wanted = NO_ID if job is None else job_id_bytes(job)
        for key, value in reversed(rows) if last else rows:
            row = records.decode_journal(value, keyspace.split_commit(key))
            for at, event in enumerate(row.events):
                if event.job == wanted and event.change == change:
                    events = list(row.events)
                    events[at] = event if edit is None else edit(event)
                    packed = [records.journal._EVENT.pack(*each) for each in events]
                    moment = row.header.time_ms + time_ms
                    self._put(
                        keyspace.JOURNAL, key, records.encode_journal(row.header.first_number, moment, packed, row.tail)
                    )
                    return
        raise AssertionError(f"no {change.name} of {job}")

    # ── the tables ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _index(self, queue: Queue, number: int) -> str:
        job = queue.enqueue(b"x").id
        self._delete(keyspace.READY, self._ready_key(number, job))
        return job

    def _stray(self, queue: Queue, number: int) -> str:
        job = queue.enqueue(b"x", priority=9).id
        queue.fail(queue.claim()[0])
        self._put(keyspace.READY, keyspace.ready(number, 9, 1_800_000_000_000, job_id_bytes(job)))
        return job

    def _in_group(self, queue: Queue, number: int) -> tuple[str, bytes, bytes]:
        """A job that waits and one that is leased, of one group: the first job, the keys of its row and of the group's."""
        queue.enqueue(b"x", priority=9, group="acme")
        queue.claim(lease=600)
        job = queue.enqueue(b"x", priority=8, group="acme").id
        return job, self._group_ready_key(number, job, "acme"), keyspace.of_queue(number, group_id(b"acme"))

    def _group_ready_key(self, number: int, job: str, group: str) -> bytes:
        state = self._state(number, job)
        of = group_id(group.encode())
        return keyspace.group_ready(number, of, 9 - state.priority, state.visible_at_ms, job_id_bytes(job))

    def _groups(self, queue: Queue, number: int) -> None:
        _, _, at = self._in_group(queue, number)
        raw: Any = self._engine.read(lambda r: r.get(keyspace.GROUPS, at))
        record = records.decode_group(raw)
        assert (record.waiting, record.leased) == (1, 1)
        self._put(keyspace.GROUPS, at, records.encode_group(record._replace(leased=2)))

    def _groups_lost(self, queue: Queue, number: int) -> None:
        _, _, at = self._in_group(queue, number)
        self._delete(keyspace.GROUPS, at)

    def _groups_misplaced(self, queue: Queue, number: int) -> str:
        job, ready, _ = self._in_group(queue, number)
        self._delete(keyspace.GROUP_READY, ready)
        self._put(keyspace.GROUP_READY, self._group_ready_key(number, job, "another"))
        return job

    def _index_of_group(self, queue: Queue, number: int) -> str:
        job, ready, _ = self._in_group(queue, number)
        self._delete(keyspace.GROUP_READY, ready)
        return job

    def _stray_of_group(self, queue: Queue, number: int) -> str:
        job, ready, _ = self._in_group(queue, number)
        assert queue.cancel(job)
        self._put(keyspace.GROUP_READY, ready)
        return job

    def _flow(self, queue: Queue, number: int) -> tuple[str, bytes, bytes]:
        """A blocked job and its two parents: the job, the key of its row, and its first parent's."""
        jobs = [NewJob(b"a", name="a"), NewJob(b"b", name="b"), NewJob(b"c", after=["#a", "#b"])]
        first, _, job = [each.id for each in queue.enqueue_many(jobs)]
        at = keyspace.of_queue(number, job_id_bytes(job))
        return job, at, keyspace.of_queue(number, job_id_bytes(first))

    def _parents(self, queue: Queue, number: int) -> str:
        job, at, _ = self._flow(queue, number)
        self._put(keyspace.BLOCKED, at, records.encode_blocked(3, 0))
        return job

    def _parents_lost(self, queue: Queue, number: int) -> str:
        job, at, first = self._flow(queue, number)
        self._put(keyspace.PARENTS, keyspace.parents_row(at, 0), records.encode_parents([first]))
        return job

    def _parents_uncounted(self, queue: Queue, number: int) -> str:
        job, at, _ = self._flow(queue, number)
        self._delete(keyspace.BLOCKED, at)
        return job

    def _parents_of_nobody(self, queue: Queue, number: int) -> str:
        job, at, first = self._flow(queue, number)
        assert queue.cancel(job)
        self._put(keyspace.PARENTS, keyspace.parents_row(at, 0), records.encode_parents([first]))
        return job

    def _parents_too_late(self, queue: Queue, number: int) -> str:
        """Both parents are done, and the row that says what it waits for was left behind."""
        job, at, _ = self._flow(queue, number)
        queue.ack_many(queue.claim(limit=5))
        assert queue.get(job).state == "ready"  # type: ignore[union-attr]
        self._put(keyspace.BLOCKED, at, records.encode_blocked(1, 0))
        return job

    def _with_steps(self, queue: Queue, number: int) -> tuple[str, bytes]:
        """A job that has two steps and a signal, and the key of its second step."""
        held = self._held(queue)
        queue.record_step(held, "charge", b"1")
        queue.record_step(held, "ship", b"2")
        assert queue.signal(held.id, "approval", b"yes")
        return held.id, keyspace.step(number, job_id_bytes(held.id), keyspace.StepRow.STEP, "ship")

    def _steps(self, queue: Queue, number: int) -> str:
        job, _ = self._with_steps(queue, number)
        at = keyspace.of_queue(number, job_id_bytes(job))
        self._put(keyspace.STEPS, at, records.encode_struct(records.StepsRecord(2, 2)))
        return job

    def _steps_lost(self, queue: Queue, number: int) -> str:
        job, second = self._with_steps(queue, number)
        self._delete(keyspace.STEPS, second)
        return job

    def _steps_of_nobody(self, queue: Queue, number: int) -> str:
        job, second = self._with_steps(queue, number)
        raw: Any = self._engine.read(lambda r: r.get(keyspace.STEPS, second))
        assert queue.cancel(job)
        self._put(keyspace.STEPS, second, raw)
        return job

    def _held(self, queue: Queue) -> Delivery:
        queue.enqueue(b"x", priority=9)
        return queue.claim(lease=600)[0]

    def _lease_record(self, number: int, lease: bytes) -> records.LeaseRecord:
        raw: Any = self._engine.read(lambda r: r.get(keyspace.LEASES, keyspace.of_queue(number, lease)))
        return records.decode_lease(raw, lease)

    def _lease(self, queue: Queue, number: int) -> str:
        held = self._held(queue)
        at = keyspace.of_queue(number, held.lease)
        record = self._lease_record(number, held.lease)
        self._delete(keyspace.LEASES, at)
        self._delete(keyspace.LEASE_JOBS, at)
        self._delete(keyspace.DUE, keyspace.due(Due.LEASE, record.expires_at_ms, number, held.lease))
        return held.id

    def _lease_open(self, queue: Queue, number: int) -> None:
        held = self._held(queue)
        record = self._lease_record(number, held.lease)
        self._put(keyspace.LEASES, keyspace.of_queue(number, held.lease), records.encode_lease(record._replace(open=7)))

    def _lease_empty(self, queue: Queue, number: int) -> None:
        held = self._held(queue)
        record = self._lease_record(number, held.lease)
        lease = bytes(reversed(held.lease))
        at = keyspace.of_queue(number, lease)
        self._put(keyspace.LEASES, at, records.encode_lease(record._replace(open=0)))
        self._put(keyspace.LEASE_JOBS, at, records.encode_lease_jobs([], []))
        self._put(keyspace.DUE, keyspace.due(Due.LEASE, record.expires_at_ms, number, lease))

    def _counters(self, queue: Queue, number: int) -> None:
        self._count(number, Counter.WAITING, 1)

    def _conservation(self, queue: Queue, number: int) -> None:
        self._count(number, Counter.ENQUEUED, 1)

    def _journal(self, queue: Queue, number: int) -> str:
        job = queue.enqueue(b"x").id
        state = self._state(number, job)._replace(attempt=3)
        self._put(keyspace.STATE, keyspace.of_queue(number, job_id_bytes(job)), records.encode_state(state))
        return job

    def _lost(self, queue: Queue, number: int) -> str:
        job = queue.enqueue(b"x").id
        self._delete(keyspace.READY, self._ready_key(number, job))
        for space in (keyspace.STATE, keyspace.JOBS):
            self._delete(space, keyspace.of_queue(number, job_id_bytes(job)))
        self._count(number, Counter.WAITING, -1)
        self._count(number, Counter.REMOVED, 1)
        return job

    # ── the journal ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _lived(self, queue: Queue, *, retry: bool = False) -> str:
        """A job that is done and gone: only the journal knows of it."""
        job = queue.enqueue(b"x", priority=9).id
        if retry:
            queue.nack(queue.claim()[0], error="again")
        self.clock.advance(1)
        delivery = queue.claim()[0]
        self.clock.advance(1)
        queue.ack(delivery)
        return job

    def _gap(self, queue: Queue, number: int) -> None:
        self.clock.advance(10)
        queue.pause()
        self._edit(None, Change.QUEUE_PAUSED, None, time_ms=-15_000)

    def _chain(self, queue: Queue, number: int) -> str:
        job = self._lived(queue)
        self._edit(job, Change.DONE, lambda event: event._replace(previous=event.previous + 1))
        return job

    def _transition(self, queue: Queue, number: int) -> str:
        job = self._lived(queue)
        self._edit(job, Change.DONE, lambda event: event._replace(change=int(Change.RETIRED)))
        return job

    def _overlap(self, queue: Queue, number: int) -> str:
        job = self._lived(queue, retry=True)
        self._edit(
            job,
            Change.RETRIED,
            lambda event: event._replace(change=int(Change.EXTENDED), job=NO_ID, lease=NO_ID, previous=0),
        )
        return job

    def _stale_settle(self, queue: Queue, number: int) -> str:
        job = self._lived(queue, retry=True)
        self._edit(job, Change.DONE, lambda event: event._replace(token=1))
        return job

    def _late_settle(self, queue: Queue, number: int) -> str:
        job = self._lived(queue)
        self._edit(job, Change.CLAIMED, lambda event: event._replace(at_ms=event.at_ms - 30_000))
        return job

    def _attempts(self, queue: Queue, number: int) -> str:
        job = self._lived(queue)
        self._edit(job, Change.CLAIMED, lambda event: event._replace(attempt=9))
        return job

    def _token(self, queue: Queue, number: int) -> str:
        job = self._lived(queue)
        for change in (Change.CLAIMED, Change.DONE):
            self._edit(job, change, lambda event: event._replace(token=5))
        return job
