"""The reference model of the queue, in plain lists and dictionaries: slow, small and easy to verify.

It has no bytes, no index and no ids. Jobs are numbered in the order of their enqueues, a lease is an object, times are
milliseconds. A verb returns the store's expected answer, or raises its expected error.

    blocked ──all parents ended──▶ waiting         (for a dead or removed parent: by on_parent_dead)
    waiting ──claim──▶ leased ──ack──▶ done ──retention──▶ gone
       ▲                 │ └─fail, last attempt─▶ dead ──replay──▶ waiting
       └─nack, release, expiry                                         (cancel, purge, ttl: gone)
         snooze: later, or at a signal

A job's steps and signals are stored under it, each once by its name, and are removed with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from tenure.errors import AlreadySettled, InvalidArgument, KeyConflict, LeaseLost, NotFound, QueueFull
from tenure.model.rate import Rate
from tenure.model.retry import Policy

DAY = 86_400_000
#: How long a done job is kept for children that may read its result, until the next check.
KEPT_FOR_CHILDREN = 600_000
EXPIRED = "(the lease expired)"
"""Stands for whatever a store says of a job that died by expiry."""


@dataclass(eq=False)
class Lease:
    until: int
    open: list[Job] = field(default_factory=list)
    #: Jobs that were cancelled while leased.
    lost: list[Job] = field(default_factory=list)
    #: When its last job left it, or it expired.
    ended: int = 0

    def close(self, job: Job, now: int) -> None:
        self.open.remove(job)
        if not self.open:
            self.ended = min(now, self.until)


@dataclass(eq=False)
class Job:
    number: int
    payload: bytes
    key: str | None
    priority: int
    max_attempts: int
    visible: int
    #: The end of its ttl, until its first claim.
    ttl_ends: int | None
    state: str = "waiting"
    attempt: int = 0
    deliveries: int = 0
    replays: int = 0
    #: The lease that holds it, or that settled it last; None if that lease expired.
    lease: Lease | None = None
    ended: int = 0
    retires: int = 0
    reason: str | None = None
    error: str | None = None
    result: bytes | None = None
    group: str | None = None
    #: Its parents, and those of them that have not ended for it.
    parents: list[Job] = field(default_factory=list)
    open: list[Job] = field(default_factory=list)
    on_parent_dead: str = "cancel"
    #: Its children that its end, or the end of its retention, concerns; and whether it ever had any.
    children: list[Job] = field(default_factory=list)
    is_parent: bool = False
    #: Its steps and signals, by kind and name, in order; and the awaited signal, with the delivery that waits.
    steps: dict[tuple[str, str], bytes] = field(default_factory=dict)
    awaited: tuple[str, int] | None = None
    #: Its events, by type.
    told: list[str] = field(default_factory=lambda: ["enqueued"])
    #: The store's id for it, once it is known.
    id: str = ""

    @property
    def place(self) -> tuple[int, int, int]:
        return -self.priority, self.visible, self.number


@dataclass(frozen=True)
class Delivery:
    job: Job
    lease: Lease
    #: The number of this delivery among all deliveries of the job.
    serial: int


@dataclass
class Wish:
    """A job to enqueue; times in milliseconds, `at` by the calendar."""

    payload: bytes = b""
    delay: int = 0
    at: int | None = None
    priority: int = 0
    key: str | None = None
    max_attempts: int | None = None
    ttl: int | None = None
    group: str | None = None
    #: Its parents: stored jobs, and indexes in the call.
    after: list[Job | int] = field(default_factory=list)
    on_parent_dead: str = "cancel"


@dataclass
class KeyHold:
    job: Job
    until: int


@dataclass
class Claimed:
    """A stored claim with an id."""

    asked: tuple[int, int | None]
    deliveries: list[Delivery]
    expired: bool = False
    #: It may have been deleted after a day: it is not repeated any more.
    doubtful: bool = False


@dataclass
class Queue:
    policy: Policy
    paused: bool = False
    jobs: list[Job] = field(default_factory=list)
    gone: list[Job] = field(default_factory=list)
    keys: dict[str, KeyHold] = field(default_factory=dict)
    claims: dict[str, Claimed] = field(default_factory=dict)
    #: The tokens in its rate's bucket, and the time of that count.
    tokens: Fraction | None = None
    counted: int = 0

    def of(self, *states: str) -> list[Job]:
        return [job for job in self.jobs if job.state in states]


class Reference:
    """All queues and their clock: the store's time is `steady + offset`; the calendar is separate."""

    def __init__(self, wall: int, steady: int, policies: dict[str, Policy]) -> None:
        self.wall = wall
        self.steady = steady
        self.offset = wall - steady
        self.queues = {name: Queue(policy) for name, policy in policies.items()}
        self.numbers = 0
        #: The time of the last event.
        self.last_event = self.now if policies else 0
        #: Every delivery ever made.
        self.deliveries: list[Delivery] = []
        #: Jobs that ended, and whose children are not updated yet.
        self.ended: list[tuple[Job, str]] = []

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def now(self) -> int:
        return self.steady + self.offset

    def advance(self, ms: int) -> None:
        self.wall += ms
        self.steady += ms

    def step(self, ms: int) -> None:
        self.wall += ms

    def reopen(self) -> None:
        """The store is opened again: its time is the latest of the calendar, its own time, and its last stored time."""
        self.offset = max(self.offset, max(self.wall, self.last_event + 1) - self.steady)

    def reboot(self, steady: int) -> None:
        """The machine restarts, and the store is opened: its own time is lost, its stored times are not."""
        self.steady = steady
        self.offset = max(self.wall, self.last_event + 1) - steady

    # ── produce ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, name: str, wishes: Sequence[Wish]) -> list[tuple[Job, bool]]:
        """(job, whether it is a duplicate) of each; atomically."""
        return self._enqueue(name, wishes, None)

    def _enqueue(self, name: str, wishes: Sequence[Wish], settled: Job | None) -> list[tuple[Job, bool]]:
        """As `enqueue`. `settled`: the job that the same call acks."""
        queue = self.queues[name]
        answers: list[tuple[Job, bool]] = []
        fresh: dict[str, Job] = {}
        for index, wish in enumerate(wishes):
            first = None
            if wish.key is not None:
                first = fresh.get(wish.key) or self._holder(queue, wish.key)
            if first is None:
                job = self._new(queue, wish, self.numbers + 1 + len(answers))
                if wish.key is not None:
                    fresh[wish.key] = job
                answers.append((job, False))
            elif first.payload != wish.payload:
                raise KeyConflict(index, str(wish.key), first.id)
            else:
                answers.append((first, True))
        added = [job for job, duplicate in answers if not duplicate]
        for wish, (job, duplicate) in zip(wishes, answers, strict=True):
            if not duplicate:
                self._plan_links(wish, job, answers, settled)
        waiting, limit = len(queue.of("waiting", "blocked")), queue.policy.max_waiting
        if limit is not None and added and waiting + len(added) > limit:
            raise QueueFull(name, waiting, limit)
        self.numbers += len(answers)
        for job in added:
            queue.jobs.append(job)
            self._event()
            self._hold(queue, job)
        for job in added:
            for parent in job.parents:
                parent.is_parent = True
                if not (parent.state == "dead" and job.on_parent_dead == "run"):
                    parent.children.append(job)
            job.state = "blocked" if job.open else "waiting"
        return answers

    def _plan_links(self, wish: Wish, job: Job, answers: list[tuple[Job, bool]], settled: Job | None) -> None:
        job.on_parent_dead = wish.on_parent_dead
        for given in wish.after:
            parent = answers[given][0] if isinstance(given, int) else given
            if parent.state == "gone" or (parent.state == "dead" and wish.on_parent_dead == "cancel"):
                raise InvalidArgument("a parent that cannot be")
            if parent in job.parents:
                continue
            job.parents.append(parent)
            ended = parent.state == "done" or parent is settled
            if not ended and not (parent.state == "dead" and wish.on_parent_dead == "run"):
                job.open.append(parent)

    def _new(self, queue: Queue, wish: Wish, number: int) -> Job:
        visible = self.now + wish.delay if wish.at is None else max(self.now, self.now + wish.at - self.wall)
        return Job(
            number,
            wish.payload,
            wish.key,
            wish.priority,
            wish.max_attempts or queue.policy.max_attempts,
            visible,
            None if wish.ttl is None else self.now + wish.ttl,
            group=wish.group,
        )

    def _hold(self, queue: Queue, job: Job) -> None:
        if job.key is not None:
            queue.keys[job.key] = KeyHold(job, self.now + _ms(queue.policy.dedup_window))

    def _holder(self, queue: Queue, key: str) -> Job | None:
        """The job that holds a key: within its window, and until the job has ended."""
        hold = queue.keys.get(key)
        if hold is not None and (hold.until > self.now or hold.job.state in ("blocked", "waiting", "leased")):
            return hold.job
        return None

    # ── consume ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def claim(self, name: str, limit: int, lease: int | None = None, claim_id: str | None = None) -> list[Delivery]:
        queue = self.queues[name]
        asked = (limit, lease)
        if claim_id is not None and claim_id in queue.claims:
            return self._repeat(queue.claims[claim_id], asked)
        if queue.paused:
            return []
        self.expire(name)
        room = self._room(queue, limit)
        granted = Lease(self.now + (lease or _ms(queue.policy.lease)))
        taken: list[Delivery] = []
        for job in self.in_order(queue, room):
            if len(taken) == room:
                break
            if job.visible > self.now:
                continue
            if job.ttl_ends is not None and job.ttl_ends <= self.now:
                self._remove(queue, job, "ttl_passed")
                continue
            job.state, job.lease, job.ttl_ends = "leased", granted, None
            job.attempt += 1
            job.deliveries += 1
            granted.open.append(job)
            taken.append(Delivery(job, granted, job.deliveries))
            self._event(job, "claimed")
        if queue.tokens is not None:
            queue.tokens -= len(taken)
        if taken and claim_id is not None:
            queue.claims[claim_id] = Claimed(asked, taken)
        self.deliveries += taken
        self._tell_children()
        return taken

    def in_order(self, queue: Queue, room: int) -> Iterable[Job]:
        """Waiting jobs, in the order in which claims take them."""
        return sorted(queue.of("waiting"), key=lambda job: job.place)

    def _room(self, queue: Queue, limit: int) -> int:
        """How many jobs a claim may take, by max_leased and by the tokens in the rate's bucket."""
        policy = queue.policy
        if policy.max_leased is not None:
            limit = min(limit, policy.max_leased - len(queue.of("leased")))
        if isinstance(policy.rate, Rate):
            if queue.tokens is None:
                queue.tokens = Fraction(policy.rate.capacity)
            else:
                dropped = Fraction((self.now - queue.counted) * 1_000_000, policy.rate.interval_ns)
                queue.tokens = min(Fraction(policy.rate.capacity), queue.tokens + dropped)
            queue.counted = self.now
            limit = min(limit, int(queue.tokens))
        return max(limit, 0)

    def _repeat(self, claim: Claimed, asked: tuple[int, int | None]) -> list[Delivery]:
        if claim.asked != asked:
            raise InvalidArgument("it asked for something else")
        lease = claim.deliveries[0].lease
        if claim.expired or (lease.open and lease.until <= self.now):
            raise LeaseLost
        return [delivery for delivery in claim.deliveries if self.holds(delivery)]

    def holds(self, delivery: Delivery) -> bool:
        """The invariant: a job is settled only by the holder of its live lease."""
        job = delivery.job
        return (
            job.state == "leased"
            and job.lease is delivery.lease
            and job.deliveries == delivery.serial
            and delivery.lease.until > self.now
        )

    def _prove(self, delivery: Delivery) -> tuple[Queue, Job]:
        job = delivery.job
        queue = self.queue_of(job)
        if self.holds(delivery):
            return queue, job
        same = job.lease is delivery.lease and job.deliveries == delivery.serial
        if job.state in ("waiting", "done", "dead") and same:
            raise AlreadySettled
        raise LeaseLost

    def ack(self, delivery: Delivery, result: bytes | None = None, then: tuple[str, Wish] | None = None) -> None:
        """`then`: a follow-up job for a queue, which may have this job as its parent."""
        queue, job = self._prove(delivery)
        if then is not None:
            self._enqueue(then[0], [then[1]], job)
        delivery.lease.close(job, self.now)
        keep = max(_ms(queue.policy.retention), 0 if result is None else _ms(queue.policy.result_retention))
        if not keep and result is not None and job.is_parent:
            keep = KEPT_FOR_CHILDREN
        if keep:
            job.state, job.result, job.ended, job.retires = "done", result, self.now, self.now + keep
            self._event(job, "done")
            self.ended.append((job, "done"))
        else:
            self._remove(queue, job, "done")
        self._tell_children()

    def nack(self, delivery: Delivery, error: str | None = None, delay: int | None = None) -> None:
        queue, job = self._prove(delivery)
        delivery.lease.close(job, self.now)
        if error is not None:
            job.error = error
        if job.attempt >= job.max_attempts:
            self._die(job, "max_attempts")
            self._tell_children()
        else:
            self._wait(job, queue.policy.backoff.delay_ms(job.attempt, 0) if delay is None else delay, "retried")

    def fail(self, delivery: Delivery, error: str | None = None) -> None:
        _, job = self._prove(delivery)
        delivery.lease.close(job, self.now)
        if error is not None:
            job.error = error
        self._die(job, "failed")
        self._tell_children()

    def release(self, delivery: Delivery) -> None:
        _, job = self._prove(delivery)
        delivery.lease.close(job, self.now)
        job.state = "waiting"
        job.attempt -= 1
        self._event(job, "released")

    def snooze(self, delivery: Delivery, delay: int, signal: str | None = None) -> None:
        """Release until the delay has passed or the job has the signal, perhaps already."""
        _, job = self._prove(delivery)
        delivery.lease.close(job, self.now)
        job.attempt -= 1
        if signal is not None and ("signal", signal) in job.steps:
            delay = 0
        elif signal is not None:
            job.awaited = signal, job.deliveries
        self._wait(job, delay, "released")

    def record_step(self, delivery: Delivery, name: str, value: bytes) -> bytes:
        """The stored value, which is the first one."""
        _, job = self._prove(delivery)
        return job.steps.setdefault(("step", name), value)

    def signal(self, name: str, job: Job, signal: str, payload: bytes) -> bool:
        """Whether it is the first signal of that name. A job that waits for it becomes ready."""
        if job not in self.queues[name].jobs or job.state == "done":
            raise NotFound("there is no such job, or it is done")
        if ("signal", signal) in job.steps:
            return False
        job.steps["signal", signal] = payload
        if job.state == "waiting" and job.awaited == (signal, job.deliveries) and job.visible > self.now:
            self._wait(job, 0, "signalled")
        return True

    def progress(self, delivery: Delivery) -> None:
        self._prove(delivery)

    def extend(self, lease: Lease, ms: int) -> tuple[int, set[str]]:
        """The new end of the lease, and its jobs that were cancelled."""
        if not lease.open or lease.until <= self.now:
            raise LeaseLost
        if self.now + ms > lease.until:
            lease.until = self.now + ms
            self._event()
        return lease.until, {job.id for job in lease.lost}

    def repaired(self, claimed: str | None) -> Iterable[Queue]:
        """The queues whose expired leases a claim of that queue, or (None) a sweep, takes over."""
        return self.queues.values()

    # ── time passes ──────────────────────────────────────────────────────────────────────────────────────────────────

    def expire(self, claimed: str | None = None) -> tuple[int, int]:
        """Expire leases. Returns how many of their jobs wait again, and how many died."""
        back = dead = 0
        for queue in self.repaired(claimed):
            for job in queue.of("leased"):
                lease = job.lease
                if lease is None or lease.until > self.now:
                    continue
                for claim in queue.claims.values():
                    claim.expired = claim.expired or claim.deliveries[0].lease is lease
                lease.close(job, self.now)
                job.lease = None
                if job.attempt >= job.max_attempts:
                    job.error = EXPIRED
                    self._die(job, "max_attempts")
                    dead += 1
                else:
                    patient = queue.policy.backoff_on_expiry
                    self._wait(job, queue.policy.backoff.delay_ms(job.attempt, 0) if patient else 0, "expired")
                    back += 1
        self._tell_children()
        return back, dead

    def sweep(self) -> dict[str, int]:
        back, dead = self.expire()
        late = 0
        for queue in self.queues.values():
            for job in queue.of("waiting", "blocked"):
                if job.ttl_ends is not None and job.ttl_ends <= self.now:
                    self._remove(queue, job, "ttl_passed")
                    late += 1
        self._tell_children()
        retired = self._retire()
        for queue in self.queues.values():
            for claim in queue.claims.values():
                lease = claim.deliveries[0].lease
                claim.doubtful = claim.doubtful or (not lease.open and lease.ended + DAY <= self.now)
        return {"jobs_back": back, "jobs_dead": dead, "ttl_passed": late, "retired": retired}

    def cleanup(self, before: int | None = None) -> int:
        if before is None:
            return self._retire()
        old = [(q, job) for q in self.queues.values() for job in q.of("done", "dead") if job.ended < before]
        for queue, job in old:
            self._remove(queue, job, "purged")
        self._tell_children()
        return len(old)

    def _retire(self) -> int:
        """Remove jobs past their retention, in due order: a removal affects later ones."""
        retired = 0
        due = [(job.retires, number, job.number) for number, job in self._done() if job.retires <= self.now]
        for _, name, number in sorted(due):
            queue = self.queues[name]
            job = next(job for job in queue.jobs if job.number == number)
            if any(child.state not in ("done", "gone") for child in job.children):
                job.retires = self.now + KEPT_FOR_CHILDREN
            else:
                self._remove(queue, job, "retired")
                retired += 1
        self._tell_children()
        return retired

    def _done(self) -> list[tuple[str, Job]]:
        return [(name, job) for name, queue in self.queues.items() for job in queue.of("done")]

    # ── mend ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def cancel(self, name: str, job: Job) -> bool:
        queue = self.queues[name]
        if job not in queue.of("blocked", "waiting", "leased"):
            return False
        if job.state == "leased" and job.lease is not None:
            job.lease.close(job, self.now)
            job.lease.lost.append(job)
        self._remove(queue, job, "cancelled")
        self._tell_children()
        return True

    def purge(self, name: str, state: str) -> int:
        queue = self.queues[name]
        found = self.shown(name, state)
        for job in found:
            self._remove(queue, job, "purged")
        self._tell_children()
        return len(found)

    def replay(
        self,
        name: str,
        jobs: Iterable[Job] | None = None,
        reason: str | None = None,
        error: str | None = None,
        limit: int | None = None,
        spacing: float = 0,
        dry_run: bool = False,
    ) -> list[Job]:
        queue = self.queues[name]
        wanted = self.shown(name, "dead") if jobs is None else list(dict.fromkeys(jobs))
        chosen = [job for job in wanted if job in queue.of("dead") and reason in (None, job.reason)]
        chosen = [job for job in chosen if error is None or error in (job.error or "")][:limit]
        for index, job in enumerate(() if dry_run else chosen):
            job.state, job.attempt, job.reason, job.ended = "waiting", 0, None, 0
            job.visible = self.now + round(index * spacing)
            job.replays += 1
            self._event(job, "replayed")
            if job.key is not None and self._holder(queue, job.key) in (None, job):
                self._hold(queue, job)
        return chosen

    def pause(self, name: str, paused: bool) -> None:
        if self.queues[name].paused != paused:
            self.queues[name].paused = paused
            self._event()

    def configure(self, name: str, policy: Policy) -> None:
        if self.queues[name].policy != policy:
            if self.queues[name].policy.rate != policy.rate:
                self.queues[name].tokens = None
            self.queues[name].policy = policy
            self._event()

    # ── look ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def shown(self, name: str, state: str) -> list[Job]:
        """The jobs in a public state, in the order of lists."""
        queue = self.queues[name]
        if state in ("ready", "scheduled"):
            due = [job for job in queue.of("waiting") if (job.visible <= self.now) == (state == "ready")]
            return sorted(due, key=lambda job: job.place)
        return sorted(queue.of(state), key=lambda job: (job.ended, job.number))

    def queue_of(self, job: Job) -> Queue:
        return next(queue for queue in self.queues.values() if job in queue.jobs or job in queue.gone)

    # ── every change of a job ────────────────────────────────────────────────────────────────────────────────────────

    def _wait(self, job: Job, delay: int, told: str) -> None:
        job.state, job.visible = "waiting", self.now + delay
        self._event(job, told)

    def _die(self, job: Job, reason: str) -> None:
        job.state, job.reason, job.ended = "dead", reason, self.now
        self._event(job, "died")
        self.ended.append((job, "dead"))

    def _remove(self, queue: Queue, job: Job, told: str) -> None:
        if job.state != "done":
            self.ended.append((job, "done" if told == "done" else "gone"))
        job.state = "gone"
        queue.jobs.remove(job)
        queue.gone.append(job)
        self._event(job, told)

    def _tell_children(self) -> None:
        """Update the children of the jobs that ended in this call."""
        freed: list[Job] = []
        for parent, how in self.ended:  # removed children are appended
            for child in [child for child in parent.children if child.state == "blocked"]:
                if how == "done" or child.on_parent_dead == "run":
                    child.open.remove(parent)
                    freed.append(child)
                    if how == "dead":
                        parent.children.remove(child)
                elif how == "gone" or child.on_parent_dead == "cancel":
                    self._remove(self.queue_of(child), child, "cancelled")
        self.ended = []
        for child in freed:
            if child.state == "blocked" and not child.open:
                child.state, child.visible = "waiting", max(self.now, child.visible)
                self._event(child, "unblocked")

    def _event(self, job: Job | None = None, told: str = "") -> None:
        self.last_event = self.now
        if job is not None:
            job.told.append(told)


class ApartReference(Reference):
    """Independent queues on a server with its own clock: a claim expires leases of its own queue only."""

    def repaired(self, claimed: str | None) -> Iterable[Queue]:
        return super().repaired(None) if claimed is None else [self.queues[claimed]]

    def reopen(self) -> None:
        """Nothing: only the client is opened again."""

    def reboot(self, steady: int) -> None:
        """Nothing: only the client's machine restarts."""
        self.offset += self.steady - steady
        self.steady = steady


class GroupReference(Reference):
    """Queues whose jobs have groups. Any group may be next: the test passes the jobs that the store took (`chosen`),
    and the model checks that it may have taken each. Fairness is tested elsewhere.
    """

    chosen: Sequence[str] = ()

    def in_order(self, queue: Queue, room: int) -> Iterable[Job]:
        taken = 0
        for job_id in self.chosen:
            could = self._could(queue)
            job = next((job for job in could if job.id == job_id), None)
            assert job is not None, "a claim took a job that was not ready"
            assert job.priority == max(other.priority for other in could), "a job of a higher priority was skipped"
            first = min((other for other in could if other.group == job.group), key=lambda other: other.place)
            assert job is first, "an earlier job of its group was skipped"
            taken += 1
            yield job
        assert taken == room or not self._could(queue), "a claim took fewer jobs than it could have"

    def _could(self, queue: Queue) -> list[Job]:
        """Jobs that a claim may take now."""
        ready = [job for job in queue.of("waiting") if job.visible <= self.now]
        return [job for job in ready if job.group is None or self._has_room(queue, job.group)]

    def _has_room(self, queue: Queue, group: str) -> bool:
        limit = queue.policy.of_group(group).max_leased
        return limit is None or sum(job.group == group for job in queue.of("leased")) < limit


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


class ApartGroupReference(ApartReference, GroupReference):
    """Both."""
