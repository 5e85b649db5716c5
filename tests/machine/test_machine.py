"""Compares every engine with the reference model: any verbs in any order, with time, crashes and old deliveries.

After each step both must agree: on claimed jobs and their order, on each verb's answer or error, on the counts, and on
every job in every list. `HYPOTHESIS_PROFILE=deep` runs longer.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tenure.api.queue import Queue
from tenure.clock import ManualClock
from tenure.errors import TenureError
from tenure.model.job import Job as SeenJob
from tenure.model.job import NewJob, Where
from tenure.model.lease import Delivery as RealDelivery
from tenure.model.rate import Rate
from tenure.model.retry import Backoff, Policy
from tenure.storage.engines.memory import MemoryEngine
from tenure.storage.segments import SegmentedTransaction, SegmentUse
from tests.machine.places import ClusterPlace, DiskPlace, MemoryPlace, Place
from tests.machine.profiles import PATIENCE, looking
from tests.machine.reference import EXPIRED, Delivery, Job, Reference, Wish
from tests.machine.rerun import StaleEngine, TwiceEngine

NAMES = ("a", "b")
SHOWN = ("ready", "scheduled", "leased", "done", "dead")

POLICIES = [
    Policy(max_attempts=3, lease=30, backoff=Backoff.fixed(0), retention=0, dedup_window=60),
    Policy(max_attempts=2, lease=5, backoff=Backoff.exponential(base=2, factor=3, cap=60, jitter="none"), retention=40),
    Policy(max_attempts=1, backoff=Backoff.fixed(10), backoff_on_expiry=True, result_retention=0, dedup_window=0),
    Policy(max_attempts=3, backoff=Backoff.linear(5), backoff_on_expiry=True, result_retention=20, max_waiting=6),
    Policy(max_attempts=2, lease=5, backoff=Backoff.fixed(0), max_leased=2, dedup_window=60),
    Policy(max_attempts=3, lease=30, backoff=Backoff.fixed(0), max_leased=3, rate=Rate(3, per=10, burst=2)),
    Policy(max_attempts=3, lease=30, backoff=Backoff.fixed(0), rate="2/s"),
]


def outcome(call: Callable[[], Any]) -> Any:
    """The call's result, or its error."""
    try:
        return call()
    except TenureError as error:
        return error


LARGE = b"(large)"
"""Stands in examples for bytes that are kept in parts."""


def grown(data: bytes | None) -> Any:
    return LARGE * 10_000 if data == LARGE else data


names = st.sampled_from(["a", "a", "a", "b"])
policies = st.sampled_from(POLICIES)
leases = st.sampled_from([None, 1, 1_000, 30_000, 3_600_000])
delays = st.sampled_from([0, 0, 0, 0, 0, 1, 1_500, 30_000, 7_200_000])
errors = st.sampled_from([None, "boom", "Timeout: no answer"])
wishes = st.builds(
    Wish,
    payload=st.sampled_from([b"", b"x", b"x", LARGE]),
    delay=delays,
    at=st.none(),
    priority=st.sampled_from([0, 0, 0, 1, 5, 9]),
    key=st.sampled_from([None, None, None, "k1", "k2"]),
    max_attempts=st.sampled_from([None, None, 1, 2]),
    ttl=st.sampled_from([None] * 7 + [1, 10_000, 40_000]),
)
#: Time steps in milliseconds: around the ends of leases, and far after everything.
passing = st.sampled_from([1, 999, 1_000, 4_999, 5_000, 10_000, 29_999, 30_000, 30_001, 60_000, 3_600_000])
long_passing = st.sampled_from([86_400_000, 90_000_000, 8 * 86_400_000])
steps = st.sampled_from([-3_600_000, -1_000, 1_000, 3_600_000, -30 * 86_400_000])
any_number = st.integers(0, 10_000)
#: Few names, so that steps and signals share them.
step_names = st.sampled_from(["charge", "approval"])


class PlainMachine(RuleBasedStateMachine):
    """One store and the reference model, compared at every step."""

    place: ClassVar[Callable[[], Place]]
    reference: ClassVar[type[Reference]] = Reference
    #: The lists that are compared.
    shown: ClassVar[tuple[str, ...]] = SHOWN
    deliveries: Bundle[tuple[Delivery, RealDelivery]] = Bundle("deliveries")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.home = type(self).place()
        self.store = self.home.open(self.clock)
        self.model = self.reference(self.clock.wall_ms(), self.clock.steady_ms(), {})
        self.ids: set[str] = set()
        #: The store's delivery for each of the model's, and the last token of each job.
        self.real: dict[Delivery, RealDelivery] = {}
        self.tokens: dict[Job, int] = {}
        self.claims = 0

    @initialize(first=policies, second=policies)
    def begin(self, first: Policy, second: Policy) -> None:
        now, first, second = self.clock, self.governed(first), self.governed(second)
        self.model = self.reference(now.wall_ms(), now.steady_ms(), {"a": first, "b": second})
        self.queue("b").configure(second)
        self.queue("a").configure(first)

    def queue(self, name: str) -> Queue:
        return self.store.queue(name)

    def prepare(self, name: str, batch: list[Wish]) -> None:
        """Hook for subclasses: change the jobs to enqueue."""

    def real_job(self, place: int, wish: Wish) -> NewJob:
        """The store's request for the job at this index of a call."""
        return NewJob(
            grown(wish.payload),
            wish.delay / 1000 if wish.at is None else None,
            None if wish.at is None else wish.at / 1000,
            wish.priority,
            wish.key,
            wish.max_attempts,
            None if wish.ttl is None else wish.ttl / 1000,
            group=wish.group,
        )

    def governed(self, policy: Policy) -> Policy:
        """Hook for subclasses: change a queue's policy."""
        return policy

    def real_claim(self, name: str, limit: int, lease: int | None, claim_id: str | None) -> Any:
        return self.queue(name).claim(limit, None if lease is None else lease / 1000, id=claim_id)

    def both(self, expected: Callable[[], Any], actual: Callable[[], Any]) -> tuple[Any, Any] | None:
        """Call both. They must raise the same type of error, or none."""
        answer = outcome(expected)
        given = outcome(actual)
        if isinstance(answer, TenureError) or isinstance(given, TenureError):
            assert type(given) is type(answer), f"{given!r} instead of {answer!r}"
            return None
        return answer, given

    # ── produce ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(name=names, batch=st.lists(wishes, min_size=1, max_size=4), calendar=st.sampled_from([None] * 4 + [-5, 20]))
    def enqueue(self, name: str, batch: list[Wish], calendar: int | None) -> None:
        if calendar is not None:
            batch[0].at = self.model.wall + calendar * 1000
        self.prepare(name, batch)
        jobs = [self.real_job(place, wish) for place, wish in enumerate(batch)]
        answers = self.both(lambda: self.model.enqueue(name, batch), lambda: self.queue(name).enqueue_many(jobs))
        if answers is None:
            return
        for (job, duplicate), told in zip(*answers, strict=True):
            assert told.duplicate == duplicate
            if not job.id:
                assert told.id not in self.ids, "an id was given twice"
                self.ids.add(told.id)
                job.id = told.id
            assert told.id == job.id

    # ── consume ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(target=deliveries, name=names, limit=st.sampled_from([1, 1, 1, 2, 5]), lease=leases, named=st.booleans())
    def claim(self, name: str, limit: int, lease: int | None, named: bool) -> Any:
        self.claims += 1
        return self._claim(name, limit, lease, f"claim {self.claims}" if named else None)

    @rule(target=deliveries, name=names, batch=st.lists(wishes, min_size=1, max_size=3), lease=leases)
    def enqueue_and_claim(self, name: str, batch: list[Wish], lease: int | None) -> Any:
        for wish in batch:
            wish.delay, wish.ttl = 0, None
        self.enqueue(name, batch, None)
        return self.claim(name, len(batch), lease, len(batch) > 1)

    @rule(
        target=deliveries,
        name=names,
        batch=st.lists(wishes, min_size=1, max_size=3),
        verb=st.sampled_from(["fail", "ack"]),
        error=errors,
    )
    def work(self, name: str, batch: list[Wish], verb: str, error: str | None) -> Any:
        """A job's whole life: enqueued, claimed, and done or dead."""
        pairs: Any = self.enqueue_and_claim(name, batch, None)
        for pair in pairs.values:
            self.settle(pair, verb, None, error, None)
        return pairs

    @precondition(lambda self: any(queue.claims for queue in self.model.queues.values()))
    @rule(target=deliveries, which=any_number, otherwise=st.sampled_from([False, False, True]))
    def claim_again(self, which: int, otherwise: bool) -> Any:
        known = [
            (name, claim_id, claim.asked)
            for name, queue in self.model.queues.items()
            for claim_id, claim in queue.claims.items()
            if not claim.doubtful
        ]
        if not known:
            return multiple()
        name, claim_id, (limit, lease) = known[which % len(known)]
        return self._claim(name, limit + otherwise, lease, claim_id)

    def _claim(self, name: str, limit: int, lease: int | None, claim_id: str | None) -> Any:
        answers = self.both(
            lambda: self.model.claim(name, limit, lease, claim_id),
            lambda: self.real_claim(name, limit, lease, claim_id),
        )
        if answers is None:
            return multiple()
        expected, claim = answers
        assert [d.id for d in claim] == [d.job.id for d in expected]
        if not expected:
            assert claim.lease is None
            return multiple()
        until = expected[0].lease.until
        for mine, real in zip(expected, claim, strict=True):
            job = mine.job
            assert (real.payload, real.attempt, real.priority) == (grown(job.payload), job.attempt, job.priority)
            assert (real.max_attempts, real.key) == (job.max_attempts, job.key)
            if mine in self.real:
                assert real == self.real[mine], "a repeated claim gave another delivery"
            else:
                assert real.token > self.tokens.get(job, 0), "a token did not grow"
                assert self.queue(name).get(job.id).lease_until_ms == until  # type: ignore[union-attr]
            self.real[mine] = real
            self.tokens[job] = real.token
        return multiple(*((mine, self.real[mine]) for mine in expected))

    @rule(
        pair=deliveries,
        verb=st.sampled_from(["ack", "nack", "fail", "release", "progress"]),
        result=st.sampled_from([None, None, b"", LARGE]),
        error=errors,
        delay=st.one_of(st.none(), delays),
    )
    def settle(self, pair: Any, verb: str, result: bytes | None, error: str | None, delay: int | None) -> None:
        """Settle any delivery, live or old, by any verb."""
        mine, real = pair
        queue, model = self.queue(real.queue), self.model
        seconds = None if delay is None else delay / 1000
        verbs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            "ack": (lambda: model.ack(mine, result), lambda: queue.ack(real, grown(result))),
            "nack": (lambda: model.nack(mine, error, delay), lambda: queue.nack(real, error, seconds)),
            "fail": (lambda: model.fail(mine, error), lambda: queue.fail(real, error)),
            "release": (lambda: model.release(mine), lambda: queue.release(real)),
            "progress": (lambda: model.progress(mine), lambda: queue.progress(real, 0.5, "half")),
        }
        self.both(*verbs[verb])

    @rule(pair=deliveries, lease=leases.filter(bool))
    def extend(self, pair: Any, lease: int) -> None:
        mine, real = pair
        answers = self.both(
            lambda: self.model.extend(mine.lease, lease), lambda: self.queue(real.queue).extend(real, lease / 1000)
        )
        if answers is not None:
            assert answers[0] == (answers[1].until_ms, set(answers[1].lost))

    def _live(self) -> list[Delivery]:
        return [mine for mine in self.model.deliveries if self.model.holds(mine)]

    @precondition(lambda self: self._live())
    @rule(which=any_number, verb=st.sampled_from(["ack", "nack", "nack", "fail", "release"]), receipt=st.booleans())
    def settle_live(self, which: int, verb: str, receipt: bool) -> None:
        live = self._live()
        mine = live[which % len(live)]
        real = self.real[mine]
        proof = real.receipt if receipt else real
        self.both(lambda: getattr(self.model, verb)(mine), lambda: getattr(self.queue(real.queue), verb)(proof))

    @precondition(lambda self: self.model.deliveries)
    @rule(first=any_number, count=st.integers(1, 6), verb=st.sampled_from(["ack", "release"]))
    def settle_many(self, first: int, count: int, verb: str) -> None:
        """Settle several deliveries of one queue in one call; one of them twice."""
        start = first % len(self.model.deliveries)
        some = self.model.deliveries[start : start + count]
        queue = self.real[some[0]].queue
        some = [mine for mine in some if self.real[mine].queue == queue]
        some.append(some[0])
        done, lost = [], []
        for mine in some:
            try:
                getattr(self.model, verb)(mine)
                done.append(mine.job.id)
            except TenureError:
                lost.append(mine.job.id)
        settled = getattr(self.queue(queue), verb + "_many")([self.real[mine] for mine in some])
        assert (settled.done, settled.lost) == (done, lost)

    # ── mend ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _some_job(self, which: int) -> tuple[str, Job] | None:
        known = [(n, job) for n, queue in self.model.queues.items() for job in queue.jobs + queue.gone[-3:]]
        return known[which % len(known)] if known else None

    @precondition(lambda self: self.ids)
    @rule(which=any_number, elsewhere=st.sampled_from([False, False, False, True]))
    def cancel(self, which: int, elsewhere: bool) -> None:
        found = self._some_job(which)
        if found is None:
            return
        name, job = found
        if elsewhere:  # an id of another queue
            name = NAMES[name == NAMES[0]]
        answers = self.both(lambda: self.model.cancel(name, job), lambda: self.queue(name).cancel(job.id))
        assert answers is not None
        assert answers[0] == answers[1]

    @precondition(lambda self: any(queue.of("dead") for queue in self.model.queues.values()))
    @rule(
        name=names,
        chosen=st.one_of(st.none(), st.lists(any_number, max_size=4)),
        reason=st.sampled_from([None, None, None, "max_attempts", "failed"]),
        error=st.sampled_from([None, None, None, "Timeout"]),
        limit=st.sampled_from([None, None, 1, 2]),
        rate=st.sampled_from([None, None, 1, 3]),
        dry_run=st.sampled_from([False, False, False, True]),
    )
    def replay(
        self,
        name: str,
        chosen: list[int] | None,
        reason: str | None,
        error: str | None,
        limit: int | None,
        rate: int | None,
        dry_run: bool,
    ) -> None:
        jobs = None
        if chosen is not None:
            dead = self.model.queues[name].of("dead")
            jobs = [dead[which % len(dead)] for which in chosen[1:] if dead]
            jobs += [found[1] for found in map(self._some_job, chosen[:1]) if found is not None]
        expected = self.model.replay(name, jobs, reason, error, limit, 0 if rate is None else 1000 / rate, dry_run)
        ids = None if jobs is None else [job.id for job in jobs]
        replayed = self.queue(name).replay(ids, Where(reason=reason, error=error), limit, rate, dry_run)
        assert replayed.ids == [job.id for job in expected]
        assert (replayed.count, replayed.dry_run) == (len(expected), dry_run)
        assert not set(replayed.skipped) & set(replayed.ids)
        if ids is not None and limit is None:
            assert set(replayed.skipped) | set(replayed.ids) == set(ids)

    # ── time, and the ends of processes ──────────────────────────────────────────────────────────────────────────────

    @rule(ms=passing)
    def advance(self, ms: int) -> None:
        self.clock.advance(ms / 1000)
        self.model.advance(ms)

    @precondition(lambda self: self._live())
    @rule(which=any_number, by=st.sampled_from([-1, 0, 0, 1]))
    def until_a_lease_ends(self, which: int, by: int) -> None:
        live = self._live()
        self.advance(max(1, live[which % len(live)].lease.until - self.model.now + by))

    @rule(ms=st.one_of(st.none(), steps, long_passing))
    def sweep(self, ms: int | None) -> None:
        """A sweep, perhaps after the calendar was set or days have passed."""
        if ms is not None and ms >= 86_400_000:
            self.advance(ms)
        elif ms is not None:
            self.clock.step(ms / 1000)
            self.model.step(ms)
        expected = self.model.sweep()
        swept = self.store.sweep()
        assert {name: getattr(swept, name) for name in expected} == expected
        assert not swept.more

    @rule(how=st.sampled_from(["reopen", "crash", "reboot"]))
    def another_process(self, how: str) -> None:
        if how == "reboot":
            self.clock.reboot()
            self.store = self.home.reopen(self.store, self.clock)
            self.model.reboot(self.clock.steady_ms())
        else:
            self.store = getattr(self.home, how)(self.store, self.clock)
            self.model.reopen()

    @rule(
        name=names,
        what=st.one_of(
            st.sampled_from(["pause", "resume", "resume", "check", "cleanup", "cleanup before"]),
            st.sampled_from(["purge dead", "purge done", "purge scheduled", "purge ready", "purge blocked"]),
            policies,
        ),
    )
    def govern(self, name: str, what: str | Policy) -> None:
        """Administration of a whole queue."""
        queue, model = self.queue(name), self.model
        if isinstance(what, Policy):
            what = self.governed(what)
            model.configure(name, what)
            queue.configure(what)
        elif what in ("pause", "resume"):
            model.pause(name, what == "pause")
            queue.pause() if what == "pause" else queue.resume()
        elif what.startswith("purge"):
            state = what.removeprefix("purge ")
            assert queue.purge(state) == model.purge(name, state)
        elif what == "cleanup":
            assert self.store.cleanup() == model.cleanup()
        elif what == "cleanup before":
            a_second_ago = (model.wall - 1000) / 1000  # by the calendar
            assert self.store.cleanup(before=a_second_ago) == model.cleanup(model.now - 1000)
        else:
            self._check()

    def _check(self) -> None:
        report = self.store.check(specification=True)
        assert report.clean, report.findings

    # ── after every step ─────────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def same_numbers(self) -> None:
        for name, queue in self.model.queues.items():
            counts = self.queue(name).counts()
            expected = {state: len(self.model.shown(name, state)) for state in self.shown}
            expected |= {"enqueued": len(queue.jobs) + len(queue.gone), "removed": len(queue.gone)}
            assert {what: getattr(counts, what) for what in expected} == expected

    @invariant()
    def same_jobs(self) -> None:
        for name in self.model.queues:
            for state in self.shown:
                expected = self.model.shown(name, state)
                seen = list(self._listed(name, state))
                if state == "leased":  # listed lease by lease
                    expected.sort(key=lambda job: job.id)
                    seen.sort(key=lambda job: job.id)
                assert [job.id for job in seen] == [job.id for job in expected]
                for mine, job in zip(expected, seen, strict=True):
                    self._same(mine, job, state)

    def _listed(self, name: str, state: str) -> Iterator[SeenJob]:
        page = self.queue(name).list(state, limit=7)
        yield from page
        while page.cursor is not None:
            page = self.queue(name).list(state, limit=7, cursor=page.cursor)
            yield from page

    def _same(self, mine: Job, job: SeenJob, state: str) -> None:
        assert (job.state, job.attempt, job.max_attempts) == (state, mine.attempt, mine.max_attempts)
        assert (job.priority, job.replays, job.key) == (mine.priority, mine.replays, mine.key)
        assert (job.reason, job.visible_at_ms, job.group) == (mine.reason, mine.visible, mine.group)
        assert (job.payload, job.result) == (grown(mine.payload), grown(mine.result))
        assert job.token == self.tokens.get(mine, 0)
        assert job.ended_at_ms == (mine.ended if state in ("done", "dead") else None)
        if mine.error is EXPIRED:
            assert "expired" in (job.error or "")
        else:
            assert job.error == mine.error
        if state == "leased":
            assert mine.lease is not None
            assert job.lease_until_ms == mine.lease.until
        else:
            assert job.lease_id is None

    @invariant()
    def what_is_gone_is_gone(self) -> None:
        for name, queue in self.model.queues.items():
            for job in queue.gone[-2:]:
                assert self.queue(name).get(job.id) is None
                assert not (job.steps and self.queue(name).steps(job.id))

    def teardown(self) -> None:
        try:
            self._check()
            self._same_story()
        finally:
            self.home.destroy(self.store)

    def _same_story(self) -> None:
        """Every change of every job is one event, in order, as far back as the journal is kept."""
        told: dict[str | None, list[str]] = {}
        page = self.store.events(limit=50)
        #: The next expected number, for the store's journal or for each queue's.
        after: dict[str, int] = {}
        first = 1
        while page.events:
            for event in page:
                journal = event.queue if self.store.traits.journal == "queue" else ""
                first = max(first, after.setdefault(journal, event.number))
                assert event.number == after[journal]
                after[journal] += 1
                told.setdefault(event.job_id, []).append(event.type)
            page = self.store.events(after=page.cursor, limit=50)
        told.pop(None, None)
        known = {job.id: job.told for queue in self.model.queues.values() for job in queue.jobs + queue.gone}
        assert told.keys() <= known.keys()
        for job_id, story in known.items():
            kept = told.get(job_id, [])
            assert kept == (story if first == 1 else story[len(story) - len(kept) :])


class QueueMachine(PlainMachine):
    """The machine with steps, snoozes and signals."""

    @rule(pair=PlainMachine.deliveries, name=step_names, value=st.sampled_from([b"", b"first", b"second"]))
    def record_step(self, pair: Any, name: str, value: bytes) -> None:
        mine, real = pair
        answers = self.both(
            lambda: self.model.record_step(mine, name, value),
            lambda: self.queue(real.queue).record_step(real, name, value),
        )
        assert answers is None or answers[0] == answers[1]

    @precondition(lambda self: self._live())
    @rule(
        which=any_number,
        delay=st.sampled_from([0, 1_500, 30_000]),
        name=st.one_of(st.none(), step_names),
        comes=st.sampled_from(["before", "after", "after", "later"]),
    )
    def snooze(self, which: int, delay: int, name: str | None, comes: str) -> None:
        """Snooze, or wait for a signal that comes before, right after, or later, if at all."""
        live = self._live()
        self._snooze(live[which % len(live)], delay, name, comes)

    @rule(
        target=PlainMachine.deliveries,
        queue=names,
        wish=wishes,
        delay=st.sampled_from([1_500, 30_000]),
        name=step_names,
        comes=st.sampled_from(["before", "after", "later"]),
    )
    def wait_for_signal(self, queue: str, wish: Wish, delay: int, name: str, comes: str) -> Any:
        """A delivery that records a step, and waits for a signal."""
        pairs: Any = self.enqueue_and_claim(queue, [wish], 30_000)
        for mine, real in pairs.values:
            self.record_step((mine, real), name, b"before the signal")
            self._snooze(mine, delay, name, comes)
        return pairs

    def _snooze(self, mine: Delivery, delay: int, name: str | None, comes: str) -> None:
        real = self.real[mine]
        if name is not None and comes == "before":
            self._signal(real.queue, mine.job, name, b"early")
        self.both(
            lambda: self.model.snooze(mine, delay, name),
            lambda: self.queue(real.queue).snooze(real, delay / 1000, until_signal=name),
        )
        if comes == "after":
            self._signal(real.queue, mine.job, name or "approval", b"")

    @precondition(lambda self: self.ids)
    @rule(which=any_number, name=step_names)
    def signal(self, which: int, name: str) -> None:
        """Signal any job, mostly one that waits for a signal."""
        waiting = [
            (queue, job)
            for queue, kept in self.model.queues.items()
            for job in kept.of("waiting")
            if job.awaited is not None
        ]
        found = waiting[which % len(waiting)] if waiting and which % 4 else self._some_job(which)
        if found is not None:
            self._signal(*found, name, b"yes")

    def _signal(self, name: str, job: Job, signal: str, payload: bytes) -> None:
        answers = self.both(
            lambda: self.model.signal(name, job, signal, payload),
            lambda: self.queue(name).signal(job.id, signal, payload),
        )
        assert answers is None or answers[0] == answers[1]

    @invariant()
    def same_steps(self) -> None:
        for name, queue in self.model.queues.items():
            for job in [job for job in queue.jobs if job.steps][-4:]:
                seen = [((step.kind, step.name), step.value) for step in self.queue(name).steps(job.id)]
                assert seen == list(job.steps.items())


def machine(
    place: Callable[[], Place], reference: type[Reference] = Reference, base: type[PlainMachine] = QueueMachine
) -> type[PlainMachine]:
    return type("Machine", (base,), {"place": staticmethod(place), "reference": reference})


@pytest.fixture
def parent() -> Iterator[Path]:
    """A folder for the stores of one test, removed after it."""
    folder = Path(tempfile.mkdtemp(prefix="tenure-machine-"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.timeout(PATIENCE)
def test_memory() -> None:
    run_state_machine_as_test(machine(MemoryPlace), settings=looking(45))


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("engine", [TwiceEngine, StaleEngine])
def test_transactions_that_run_again(engine: type[TwiceEngine | StaleEngine]) -> None:
    run_state_machine_as_test(machine(lambda: MemoryPlace(engine)), settings=looking(18))


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("engine", [MemoryEngine, TwiceEngine, StaleEngine, "rocksdb"])
def test_every_plain_job_in_a_segment(parent: Path, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentedTransaction, "LEAST", 1)
    monkeypatch.setattr(SegmentUse, "RESTS", 0)
    if engine == "rocksdb":
        made = machine(lambda: DiskPlace("rocksdb", parent, durability="os"))
    else:
        made = machine(lambda: MemoryPlace(engine))
    run_state_machine_as_test(made, settings=looking(8 if engine == "rocksdb" else 16))


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize(("durability", "examples"), [("os", 8), ("disk", 3)])
def test_rocksdb(parent: Path, durability: str, examples: int) -> None:
    run_state_machine_as_test(
        machine(lambda: DiskPlace("rocksdb", parent, durability=durability)), settings=looking(examples)
    )


@pytest.mark.timeout(PATIENCE)
def test_lmdb(parent: Path) -> None:
    run_state_machine_as_test(machine(lambda: DiskPlace("lmdb", parent)), settings=looking(15))


class SharedReference(Reference):
    """A store that other processes may have open: a process that opens it in the same boot uses their time.

    A millisecond later (`ClusterPlace.crash`).
    """

    def reopen(self) -> None:
        self.advance(1)

    def reboot(self, steady: int) -> None:
        self.wall += 1
        super().reboot(steady)


@pytest.mark.timeout(PATIENCE)
def test_foundationdb_on_a_simulated_cluster_with_faults() -> None:
    """With one process, whose claims follow the order strictly."""
    run_state_machine_as_test(machine(ClusterPlace, SharedReference, PlainMachine), settings=looking(3))
