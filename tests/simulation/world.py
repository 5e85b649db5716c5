"""One history: seeded actors call the real code, in one thread, on an engine and a clock with faults.

    History(seed).run()      raises Violation; everything follows from the seed and the numbers of the steps

A step is one call of one actor: a producer, a worker with the deliveries it holds (live or expired), a sweeper, an
administrator; or time passes, the calendar is set, the power fails. While a transaction is between two of its own steps,
the engine runs other actors: their whole steps then happen inside this one.

After every step, the journal's new events are checked by the specification, and limits are checked. At the end the
faults stop: then every job must end, `check` must be clean, no job may have run before its parents, and the callers'
answers must be linearizable.

Each step has its own random numbers, by its number: a history without some of its steps is a history too (`shrinking`).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch
from zlib import crc32

import msgspec

from tenure import Backoff, ManualClock, NewJob, Policy
from tenure.api.claim import Claim
from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.backends.embedded import EmbeddedBackend
from tenure.errors import AlreadySettled, CommitUnknown, Corrupt, InvalidArgument, LeaseLost, NotFound, Unavailable
from tenure.model import ids
from tenure.model.event import Event
from tenure.model.event_view import EventPosition, public_event
from tenure.model.group import GroupPolicy
from tenure.model.job import OnParentDead
from tenure.model.lease import Delivery, Settled
from tenure.model.lifecycle import Change
from tenure.model.names import QueueName
from tenure.model.specification import Trace
from tenure.storage import records
from tests.simulation.engine import Fate, FaultyEngine, PowerCut
from tests.simulation.linearizability import Call, explained

T = TypeVar("T")
STEPS = 200
_MASK = (1 << 64) - 1
_QUEUES = (QueueName("default", "a"), QueueName("default", "b"))
_PURGED = ("dead", "done", "ready", "scheduled")
#: The states of a job at the end of a history, and more jobs than it has.
_ENDS = ("blocked", "done", "dead")
_ALL = 10_000
_STEP_NAMES = ("charge", "approval")
_SETTLES = ("ack", "ack", "ack", "nack", "nack", "fail", "release", "snooze")
#: How long a request's outcome is kept at least.
_REMEMBERED_MS = 500_000
#: The largest depth of steps inside steps.
_DEEP = 2


class Violation(AssertionError):
    """An invariant was violated."""


class Dice:
    """Seeded random numbers, faster than `random.Random`."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        mixed = (seed + 0x9E3779B97F4A7C15) & _MASK
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        self._state = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK

    def below(self, bound: int) -> int:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & _MASK
        return (self._state >> 33) % bound

    def pick(self, among: Sequence[T]) -> T:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & _MASK
        return among[(self._state >> 33) % len(among)]

    def bytes(self, count: int) -> bytes:
        return b"".join(self.below(1 << 31).to_bytes(4, "big") for _ in range(0, count, 4))[:count]


class Held(msgspec.Struct):
    """A delivery of a worker, live or expired."""

    queue: QueueName
    delivery: Delivery
    lease_ms: int


class Unanswered(msgspec.Struct):
    """A call whose answer was lost. Its caller may repeat it with the same request id."""

    queue: QueueName
    request: bytes
    run: Callable[[Queue], object]
    answered: Callable[[str, object, int, int], None]
    begin: int
    from_ms: int
    verb: str


#: By fault: how many of a thousand transactions have it. An engine with one writing process has no conflicts.
_FAULTS: dict[str, tuple[tuple[Fate, int], ...]] = {
    "process": (("others", 60), ("slow", 40), ("full", 10), ("damaged", 10), ("cut_done", 3), ("cut_lost", 3)),
    "host": (("others", 40), ("conflict", 60), ("slow", 40), ("unknown_done", 25), ("unknown_lost", 25), ("full", 10),
             ("damaged", 10), ("cut_done", 3), ("cut_lost", 3)),
}  # fmt: skip


class History:
    """One history of the steps `numbers`. With `talk`, `log` gets a line for each call."""

    def __init__(self, seed: int, numbers: Sequence[int] = range(STEPS), *, talk: bool = False) -> None:
        self._seed = seed
        self._dice = dice = Dice(seed)
        self.scope = "host" if dice.below(2) else "process"
        #: Whether jobs have groups.
        self._grouped = grouped = not dice.below(3)
        #: Whether jobs wait for jobs.
        self._flowing = not Dice(seed ^ 0xF10).below(3)
        # Some histories leave out some faults. With groups no read is damaged: a job whose row is damaged leaves its
        # group's index row behind, which only `check` finds.
        self._fates: list[Fate] = []
        for fate, share in _FAULTS[self.scope]:
            if dice.below(4) and not (grouped and fate == "damaged"):
                self._fates += [fate] * share
        self._numbers: Iterator[int] = iter(numbers)
        self._calm = True
        self._depth = 0
        self._moment = 0
        self._number = -1
        self.log: list[str] | None = [] if talk else None
        self.claims_lost = self.power_cuts = self.steps = self.events = self.jobs_done = 0
        #: A checksum of all rows of the journal: it is the same wherever the seed is run.
        self.journal = 0
        self._clock = ManualClock()
        self._engine = FaultyEngine("host" if self.scope == "host" else "process")
        self._engine.fate, self._engine.others = self._fate, self._others
        self._trace, self._next_commit = Trace(), 1
        self._held: list[Held] = []
        self._unanswered: list[Unanswered] = []
        self._keys: dict[tuple[str, str], str] = {}
        self._calls: dict[bytes, list[Call]] = {}
        self._doubtful: list[tuple[QueueName, Call]] = []
        self._with_ttl: set[bytes] = set()
        #: By job: its parents, and its on_parent_dead.
        self._parents: dict[str, tuple[list[str], str]] = {}
        #: In flows: when jobs ended or were claimed, by the journal.
        self._story: list[Event] = []
        #: Whether jobs have steps and wait for signals; and the values that callers know to be stored.
        self._signalling = not Dice(seed ^ 0x516).below(3)
        self._values: dict[tuple[bytes, str, str], object] = {}
        self._jobs: list[tuple[QueueName, bytes]] = []
        #: By queue: max_leased of the queue, and of each of its groups.
        self._limits: list[tuple[int | None, int | None]] = []
        self._stores: list[Store] = []
        #: By store: a handle for each queue. And the store's time.
        self._queues: list[dict[QueueName, Queue]] = []
        self._now: Callable[[], int] = self._clock.wall_ms

    # ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """Raises Violation, or any error that a bug raises."""
        random.seed(self._seed)  # jitter
        # Ids are seeded too.
        with patch.object(ids, "os", SimpleNamespace(urandom=random.Random(self._seed).randbytes)):
            self._open()
            policies = [
                Policy(max_attempts=self._dice.below(3) + 1, lease=5, retention=self._dice.pick((0, 0, 600)),
                       backoff=Backoff.fixed(self._dice.pick((0, 2))), backoff_on_expiry=not self._dice.below(3),
                       max_leased=self._dice.pick((None, None, 3)),
                       group=GroupPolicy(max_leased=self._dice.pick((None, 1, 2))) if self._grouped else GroupPolicy())
                for _ in _QUEUES
            ]  # fmt: skip
            self._stores[0].apply(dict(zip([name.queue for name in _QUEUES], policies, strict=True)))
            self._limits = [(policy.max_leased, (policy.group or GroupPolicy()).max_leased) for policy in policies]
            self._calm = False
            for number in self._numbers:
                self._step(number)
                self._follow()
            self._finish()

    def _step(self, number: int) -> None:
        outer, outer_number = self._dice, self._number
        self._dice, self._number = Dice(self._seed * 1_000_003 + number), number
        self.steps += 1
        try:
            self._dice.pick(_ACTIONS)(self)
        except PowerCut:
            if self._depth:
                raise
            self._power_cut()
        finally:
            self._dice, self._number = outer, outer_number

    def _fate(self) -> Fate:
        if self._calm:
            return ""
        draw = self._dice.below(1000)
        return self._fates[draw] if draw < len(self._fates) else ""

    def _others(self) -> None:
        """Run one or two other actors during a call."""
        if self._calm or self._depth >= _DEEP:
            return
        self._depth += 1
        try:
            for _ in range(1 + self._dice.below(2)):
                number = next(self._numbers, None)
                if number is not None:
                    self._step(number)
        finally:
            self._depth -= 1

    def _open(self) -> None:
        """Open the store in one process, or in several if the engine allows it."""
        self._calm, self._stores = True, []
        for place in range(2 if self.scope == "host" else 1):
            self._engine.alone = not place
            self._stores.append(Store(EmbeddedBackend(self._engine, "memory:", self._clock)))
        self._queues = [{name: store.queue(name.queue) for name in _QUEUES} for store in self._stores]
        self._now = self._stores[0].backend.now_ms

    def _power_cut(self) -> None:
        rows = self._engine.journal_from(self._engine.durable_to + 1, durable=False)
        lost = self._engine.lose_what_is_not_durable()
        self.power_cuts += 1
        how = self._dice.below(4)
        if how < 2:
            self._clock.reboot()
        if how > 0:
            self._clock.step(self._dice.pick((-3600, -7, 9, 3600)))
        self._open()
        self._engine.sync()
        for commit, value in rows:
            for event in records.decode_journal(value, commit).events:
                if event.change == Change.CLAIMED:
                    self._forget_claim(event.job, event.lease.hex(), event.token)
        self._calm = False
        self._say(f"the power failed; {lost} commits were not durable")

    def _forget_claim(self, job: bytes, lease: str, token: int) -> None:
        """A power loss undid a claim. If it was answered, the job is in its earlier state for all other callers."""
        for call in self._calls.get(job, ()):
            if (call.verb, call.answer, call.lease, call.token) == ("claim", "ok", lease, token):
                self._moment += 2
                now = self._now()
                forgotten = Call("forgotten", self._moment - 1, self._moment, now, now, "ok", lease, token)
                self._calls[job].append(forgotten)
                self.claims_lost += 1
                return

    def _follow(self) -> None:
        """Check the journal's new events with the specification."""
        if self._engine.durable_to < self._next_commit:
            return
        for commit, value in self._engine.journal_from(self._next_commit):
            self.journal = crc32(value, self.journal)
            header, events, _ = records.decode_journal(value, commit)
            for index, event in enumerate(events):
                place = EventPosition(commit, index, header.first_number + index, header.time_ms)
                seen = public_event(event, place, _QUEUES[event.queue - 1], b"")
                why = self._trace.take(seen)
                if why is not None:
                    raise Violation(f"the journal departs from the specification at {seen}: {why}")
                if self._flowing and (seen.type in ("claimed", "done", "died") or seen.state == "gone"):
                    self._story.append(seen)
            self.events += header.events
            self._next_commit = commit + 1
        self._judge_limits()

    def _judge_limits(self) -> None:
        """Check that no queue and no group exceeds max_leased of its policy, which never changes."""
        for number, limits in enumerate(self._limits, 1):
            if limits != (None, None):
                for limit, leased in zip(limits, self._engine.leased(number), strict=True):
                    if limit is not None and leased > limit:
                        raise Violation(
                            f"{leased} jobs of queue {number} or of one group of it are leased, not {limit}"
                        )

    def _say(self, line: str) -> None:
        if self.log is not None:
            self.log.append(f"{self._number:>4} {'  ' * self._depth}{self._now() % 100_000_000:>9} ms  {line}")

    # ── calls, and what their callers are told ───────────────────────────────────────────────────────────────────────

    def _call(
        self,
        name: QueueName,
        verb: str,
        run: Callable[[Queue], object],
        answered: Callable[[str, object, int, int], None],
    ) -> None:
        """Make one call. `answered(answer, result, begin, from_ms)` records the answer."""
        request = self._dice.bytes(16) if self.scope == "host" and self._dice.below(2) else b""
        self._moment += 1
        self._ask(Unanswered(name, request, run, answered, self._moment, self._now(), verb), verb)

    def _ask(self, call: Unanswered, verb: str) -> None:
        place = self._dice.below(len(self._stores))
        queue = self._queues[place][call.queue]
        if call.request:
            store = self._stores[place]
            queue = Queue(store.backend.once(call.request), store._telemetry, call.queue)
        answer, result = "unknown", None
        try:
            result = call.run(queue)
            answer = "ok"
        except AlreadySettled:
            answer = "settled"
        except LeaseLost:
            answer = "lost"
        except (Unavailable, Corrupt) as error:
            answer = "unknown" if verb == "repeat" else "no"  # a repeat's first call may have taken effect
            result = error
        except CommitUnknown:
            if call.request and self._dice.below(3):
                self._unanswered.append(call)
                if call.verb == "claim":  # a repeat after the lease has ended does not return its jobs
                    call.answered("unknown", None, call.begin, call.from_ms)
                self._say(f"{verb} on {call.queue.queue}: not answered")
                return
        except PowerCut:
            call.answered("unknown", None, call.begin, call.from_ms)
            raise
        if self.log is not None:
            self._say(f"{verb} on {call.queue.queue}: {answer} {'' if result is None else _short(result)}")
        result = None if answer == "unknown" else result
        call.answered(answer, result, call.begin, call.from_ms)

    def _record(self, job: bytes, verb: str, begin: int, from_ms: int, answer: object, held: Held | None = None,
                until_ms: int = 0, lease_ms: int = 0) -> None:  # fmt: skip
        self._moment += 1
        lease, token = ("", 0) if held is None else (held.delivery.lease.hex(), held.delivery.token)
        self._calls.setdefault(job, []).append(
            Call(verb, begin, self._moment, *self._during(from_ms), answer, lease, token, until_ms, lease_ms)
        )

    def _during(self, from_ms: int) -> tuple[int, int]:
        """The earliest and the latest time of a call that began at `from_ms`: over a power cut, time may have gone back."""
        now = self._now()
        return min(from_ms, now), max(from_ms, now)

    def _doubt(self, name: QueueName, verb: str, begin: int, from_ms: int, lease_ms: int = 0) -> None:
        """Record a call that may have changed any job of its queue, unknown to its caller."""
        self._moment += 1
        first = self._stores[0].backend._core.first_token  # type: ignore[attr-defined]  # it is embedded
        call = Call(verb, begin, self._moment, *self._during(from_ms), "unknown", token=first, lease_ms=lease_ms)
        self._doubtful.append((name, call))

    # ── what actors do ───────────────────────────────────────────────────────────────────────────────────────────────

    def _enqueue(self) -> None:
        dice, name = self._dice, self._dice.pick(_QUEUES)
        key = f"k{dice.below(6)}" if not dice.below(3) else None
        ttl = 4 if key is None and not dice.below(6) else None
        group = dice.pick(("g", "h")) if self._grouped and dice.below(2) else None
        job = NewJob(
            b"x", delay=dice.pick((0, 0, 0, 1, 20)), priority=dice.pick((0, 0, 5)), key=key, ttl=ttl, group=group
        )
        jobs = [job] if key is not None else [job] * dice.pick((1, 1, 1, 2, 3))
        if not dice.below(8):  # plain jobs, which are stored as a segment
            key = ttl = None
            jobs = [NewJob(b"x")] * 9
        if self._flowing and dice.below(2):
            jobs = self._behind_others(jobs)

        def answered(answer: str, result: object, begin: int, from_ms: int) -> None:
            if answer != "ok" or not isinstance(result, list):
                return  # their ids are unknown; a claim will show them if they exist
            for added in result:
                if key is not None and self._keys.setdefault((name.queue, key), added.id) != added.id:
                    raise Violation(f"key {key} made two jobs: {self._keys[name.queue, key]} and {added.id}")
                if not added.duplicate:
                    raw = bytes.fromhex(added.id)
                    if raw in self._calls:
                        continue  # a claim has shown it before
                    self._jobs.append((name, raw))
                    self._record(raw, "enqueue", begin, from_ms, "ok")
                    if jobs[0].after:
                        self._parents[added.id] = ([str(parent) for parent in jobs[0].after], jobs[0].on_parent_dead)
                    if ttl is not None:
                        self._with_ttl.add(raw)

        def run(queue: Queue) -> object:
            try:
                return queue.enqueue_many(jobs)
            except InvalidArgument:
                if not jobs[0].after:
                    raise
                return []  # a parent is gone, or dead

        self._call(name, "enqueue", run, answered)

    def _behind_others(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        """The jobs, each with some of the latest jobs of any queue as parents."""
        dice, recent = self._dice, self._jobs[-12:]
        if not recent:
            return list(jobs)
        after = list(dict.fromkeys(dice.pick(recent)[1].hex() for _ in range(1 + dice.below(3))))
        policy: OnParentDead = dice.pick(("cancel", "run", "wait"))
        return [msgspec.structs.replace(job, after=after, on_parent_dead=policy) for job in jobs]

    def _claim(self) -> None:
        dice, name = self._dice, self._dice.pick(_QUEUES)
        limit, lease = dice.pick((1, 1, 2, 5, 20)), dice.pick((1, 5, 30))
        claim_id = None if dice.below(4) else f"c{dice.below(1 << 30)}"

        def answered(answer: str, result: object, begin: int, from_ms: int) -> None:
            if isinstance(result, Claim) and result._leased is not None:
                for delivery in result:
                    held = Held(name, delivery, lease * 1000)
                    self._held.append(held)
                    self._meet(name, delivery.job)
                    self._record(delivery.job, "claim", begin, from_ms, "ok", held, result._leased.until_ms)
            elif answer == "unknown":
                self._doubt(name, "claim", begin, from_ms, lease * 1000)

        self._call(name, "claim", lambda queue: queue.claim(limit, lease=lease, id=claim_id), answered)

    def _meet(self, name: QueueName, job: bytes) -> None:
        """Note a delivered job, whose enqueue may not have been answered."""
        if job not in self._calls:
            self._jobs.append((name, job))
            self._calls[job] = [Call("enqueue", 0, self._moment, 0, self._now(), "ok")]

    def _worker(self) -> Held | None:
        """A delivery of some worker: mostly a recent one, sometimes one that expired long ago."""
        if not self._held:
            return None
        recent = self._held[-8:] if self._dice.below(4) else self._held
        return self._dice.pick(recent)

    def _settle(self) -> None:
        held = self._worker()
        if held is None:
            return
        verb = self._dice.pick(_SETTLES)
        more: dict[str, Any] = {}
        if verb == "ack" and not self._dice.below(3):
            more = {"result": b"r"}
        elif verb == "ack" and not self._dice.below(3):
            more = {"then": [NewJob(b"next", queue=self._dice.pick(_QUEUES).queue)]}
        elif verb == "snooze":
            more = {"delay": self._dice.pick((0, 3))}
            if self._signalling and self._dice.below(2):
                more = {"delay": self._dice.pick((3, 60)), "until_signal": self._dice.pick(_STEP_NAMES)}

        def answered(answer: str, outcome: object, begin: int, from_ms: int) -> None:
            if answer != "no":
                self._record(held.delivery.job, verb, begin, from_ms, answer, held)

        self._call(
            held.queue, f"{verb} {_name(held)}", lambda queue: getattr(queue, verb)(held.delivery, **more), answered
        )

    def _record_step(self) -> None:
        """A worker stores a step: with a live lease it gets the value that was stored first."""
        held = self._worker()
        if held is None or not self._signalling:
            return
        job, name, value = held.delivery.job, self._dice.pick(_STEP_NAMES), self._dice.bytes(4)

        def answered(answer: str, outcome: object, begin: int, from_ms: int) -> None:
            if answer in ("ok", "lost", "settled", "unknown"):
                # For the lease it counts as a read of the job by its holder.
                self._record(job, "prove", begin, from_ms, answer, held)
            if answer == "ok":
                self._stored_value(job, "step", name, outcome)

        self._call(
            held.queue, f"step {_name(held)}", lambda queue: queue.record_step(held.delivery, name, value), answered
        )

    def _signal(self) -> None:
        """Send a signal to a job. Only one caller may get the answer that its signal was the first of that name."""
        if not self._jobs or not self._signalling:
            return
        name, job = self._dice.pick(self._jobs[-20:])
        signal, payload = self._dice.pick(_STEP_NAMES), self._dice.bytes(4)

        def run(queue: Queue) -> object:
            try:
                return queue.signal(job.hex(), signal, payload)
            except NotFound:
                return None

        def answered(answer: str, result: object, begin: int, from_ms: int) -> None:
            if answer == "ok" and result is True:
                self._stored_value(job, "signal", signal, payload)

        self._call(name, f"signal {job.hex()[-6:]}", run, answered)

    def _stored_value(self, job: bytes, kind: str, name: str, value: object) -> None:
        """A caller knows that this value is stored: no caller may get another value from now on."""
        known = self._values.setdefault((job, kind, name), value)
        if known != value:
            raise Violation(f"the {kind} {name!r} of job {job.hex()} is {value!r}, and was {known!r}")

    def _settle_all(self) -> None:
        held = self._worker()
        if held is None:
            return
        mine = [other for other in self._held if other.delivery.lease == held.delivery.lease]

        def answered(answer: str, outcome: object, begin: int, from_ms: int) -> None:
            if answer == "no":
                return
            settled = outcome if isinstance(outcome, Settled) else None
            for each in mine:
                if settled is not None and each.delivery.id in settled.damaged:
                    continue  # nothing was done to it
                said = "unknown" if settled is None else "ok" if each.delivery.id in settled.done else "lost"
                self._record(each.delivery.job, "ack", begin, from_ms, said, each)

        self._call(held.queue, f"ack_many {_name(held)}", lambda q: q.ack_many([m.delivery for m in mine]), answered)

    def _extend(self) -> None:
        held = self._worker()
        if held is None:
            return
        seconds = self._dice.pick((1, 10))

        def answered(answer: str, outcome: object, begin: int, from_ms: int) -> None:
            if answer == "no":
                return
            until = 0 if answer != "ok" else outcome.until_ms  # type: ignore[attr-defined]  # an Extended
            for each in self._held:
                if each.delivery.lease == held.delivery.lease:
                    self._record(each.delivery.job, "extend", begin, from_ms, answer, each, until, seconds * 1000)

        self._call(held.queue, f"extend {_name(held)}", lambda queue: queue.extend(held.delivery, seconds), answered)

    def _cancel(self) -> None:
        if not self._jobs:
            return
        name, job = self._dice.pick(self._jobs[-20:])

        def answered(answer: str, result: object, begin: int, from_ms: int) -> None:
            if answer == "no":
                return
            said = answer if answer == "unknown" else "ok" if result else "no"
            self._record(job, "cancel", begin, from_ms, said)

        self._call(name, f"cancel {job.hex()[-6:]}", lambda queue: queue.cancel(job.hex()), answered)

    def _look(self) -> None:
        if not self._jobs:
            return
        name, job = self._dice.pick(self._jobs[-20:])
        self._moment += 1
        begin, from_ms = self._moment, self._now()
        queue = self._dice.pick(self._queues)[name]
        seen = queue.get(job.hex())
        if seen is not None and self._signalling:
            self._look_at_steps(job, queue)
        self._record(job, "get", begin, from_ms, None if seen is None else (_stored(seen.state), seen.token))

    def _look_at_steps(self, job: bytes, queue: Queue) -> None:
        """Every value that a caller knows to be stored exists unchanged, as long as the job does."""
        seen: dict[tuple[bytes, str, str], bytes] = {
            (job, step.kind, step.name): step.value for step in queue.steps(job.hex())
        }
        for (of, kind, name), value in self._values.items():
            if of == job and seen.get((of, kind, name)) != value and queue.get(job.hex()) is not None:
                raise Violation(f"the {kind} {name!r} of job {job.hex()} is lost, or changed")

    def _replay(self) -> None:
        name, limit = self._dice.pick(_QUEUES), self._dice.pick((1, 10))

        def answered(answer: str, result: object, begin: int, from_ms: int) -> None:
            if answer != "ok":  # it may have replayed some before
                self._doubt(name, "replay", begin, from_ms)
                return
            for job_id in result.ids:  # type: ignore[attr-defined]  # a Replayed
                self._record(bytes.fromhex(job_id), "replay", begin, from_ms, "ok")

        self._call(name, "replay", lambda queue: queue.replay(limit=limit), answered)

    def _purge(self) -> None:
        name, state = (
            self._dice.pick(_QUEUES),
            self._dice.pick(("dead", "done", "ready", "scheduled", "blocked") if self._flowing else _PURGED),
        )

        def answered(answer: str, result: object, begin: int, from_ms: int) -> None:
            self._doubt(name, "purge", begin, from_ms)

        self._call(name, f"purge {state}", lambda queue: queue.purge(state), answered)

    def _pause(self) -> None:
        verb = self._dice.pick(("pause", "resume", "resume", "resume"))
        self._call(self._dice.pick(_QUEUES), verb, lambda queue: getattr(queue, verb)(), lambda *_: None)

    def _sweep(self) -> None:
        store = self._dice.pick(self._stores)
        with contextlib.suppress(Unavailable, Corrupt, CommitUnknown):
            store.sweep()
        self._say("sweep")

    def _time_passes(self) -> None:
        if self._held and not self._dice.below(3):
            # To just before, or exactly to, the end of a lease.
            held = self._dice.pick(self._held[-6:])
            end = held.delivery.created_at_ms + held.lease_ms
            seconds = max(0, end - self._now() - self._dice.below(2)) / 1000
        else:
            seconds = self._dice.pick((0.001, 0.5, 1, 5, 30))
        self._clock.advance(min(seconds, 60))
        if seconds >= 0.1:
            self._engine.sync()  # stands for the background sync
        self._say(f"{seconds} s pass")

    def _calendar(self) -> None:
        self._clock.step(self._dice.pick((-3600, -1, 0.3, 3600)))

    def _repeat(self) -> None:
        if self._unanswered:
            call = self._unanswered.pop(self._dice.below(len(self._unanswered)))
            if self._now() - call.from_ms < _REMEMBERED_MS:
                self._ask(call, "repeat")
            else:
                call.answered("unknown", None, call.begin, call.from_ms)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(self) -> None:
        """Stop the faults, give up unanswered calls, let every job end, then check everything."""
        self._calm = True
        for call in self._unanswered:
            call.answered("unknown", None, call.begin, call.from_ms)
        store = self._stores[0]
        self._check(store)
        queues = list(self._queues[0].values())
        for queue in queues:
            queue.resume()
        idle = 0
        for _ in range(40):
            self._clock.advance(1800)
            # A round may only expire leases, whose jobs then wait for their backoff: the next round claims them.
            idle = 0 if sum([self._drain(queue) for queue in queues]) else idle + 1
            counts = [queue.counts() for queue in queues]
            if idle == 2 or not any(left.waiting or left.leased for left in counts):
                break
        else:
            raise Violation("jobs come back for ever")
        self._engine.sync()
        self._follow()
        for name, left in zip(_QUEUES, counts, strict=True):
            if left.waiting or left.leased:
                raise Violation(
                    f"{left.waiting} jobs of {name.queue} wait and {left.leased} are held, and none can be had"
                )
            if left.blocked and not any(of.dead for of in counts):
                raise Violation(f"{left.blocked} jobs of {name.queue} are blocked, and every other has ended well")
            if left.enqueued != left.blocked + left.done + left.dead + left.removed:
                raise Violation(f"jobs of {name.queue} are lost: {left}")
        if not self._seed % 4:  # the check above saw this store with jobs in every state; now all of them have ended
            self._check(store)
        self._judge_flows()
        self._judge()

    def _check(self, store: Store) -> None:
        report = store.check()
        if not report.clean:
            raise Violation(f"check found: {report.findings[:3]}")

    def _drain(self, queue: Queue) -> int:
        taken = 0
        while claim := queue.claim(100, lease=60):
            taken += len(claim)
            begin, from_ms = self._moment + 1, self._now()
            self._moment += 1
            settled = queue.ack_many(claim)
            if settled.lost or settled.damaged:
                raise Violation(f"live deliveries were refused: {settled.lost + settled.damaged}")
            until = claim._leased.until_ms if claim._leased is not None else 0
            for delivery in claim:
                held = Held(queue.name, delivery, 60_000)
                self._meet(queue.name, delivery.job)
                self._record(delivery.job, "claim", begin, from_ms, "ok", held, until)
                self._record(delivery.job, "ack", self._moment, from_ms, "ok", held)
        self.jobs_done += taken
        return taken

    def _judge_flows(self) -> None:
        """Check that each job with parents was claimed after all of them had ended, and was done once."""
        ended: dict[str | None, str] = {}
        for event in self._story:
            job = event.job_id
            if event.type == "claimed":
                parents, policy = self._parents.get(job or "", ([], ""))
                early = [parent for parent in parents if ended.get(parent) != "done"]
                if early and (policy != "run" or not all(parent in ended for parent in early)):
                    raise Violation(f"{job} was claimed before its parents {early} were done")
            elif event.type == "done":
                if ended.get(job) == "done":
                    raise Violation(f"{job} was done twice")
                ended[job] = "done"
            else:
                ended.setdefault(job, event.type)

    def _judge(self) -> None:
        """Check that the answers about each job are linearizable, and that no job is blocked for ever."""
        queues, now = self._queues[0], self._now()
        left = {job.id: job for queue in queues.values() for state in _ENDS for job in queue.list(state, limit=_ALL)}
        states: dict[str, str] = {}
        for _, job in self._jobs:
            self._moment += 2
            job_id = job.hex()
            seen = left.get(job_id)
            states[job_id] = "gone" if seen is None else seen.state
            told = None if seen is None else (seen.state, seen.token)
            self._calls[job].append(Call("get", self._moment - 1, self._moment, now, now, told))
        for child, (parents, policy) in self._parents.items():
            dead = [states.get(parent) == "dead" for parent in parents]
            ended = [states.get(parent) in ("dead", "done", "gone") for parent in parents]
            stuck = any(dead) if policy == "cancel" else all(ended) if policy == "run" else False
            if stuck and states[child] == "blocked":
                raise Violation(f"{child} is blocked ({policy}) behind parents that are dead: {parents}")
        for name, job in self._jobs:
            calls = self._calls[job]
            first = min(call.begin for call in calls)
            calls += [call for queue, call in self._doubtful if queue == name and call.end > first]
            if self._signalling and states[job.hex()] != "gone":
                self._look_at_steps(job, queues[name])
            if not explained(calls, ttl=job in self._with_ttl, blocked=job.hex() in self._parents):
                story = "\n".join(str(call) for call in sorted(calls, key=lambda call: call.begin))
                raise Violation(f"nothing explains what callers were told of job {job.hex()}:\n{story}")


def _stored(shown: str) -> str:
    return "waiting" if shown in ("ready", "scheduled") else shown


def _name(held: Held) -> str:
    return f"{held.delivery.id[-6:]}#{held.delivery.token}"


def _short(result: object) -> str:
    if isinstance(result, Claim):
        return " ".join(f"{d.id[-6:]}#{d.token}" for d in result) or "nothing"
    if isinstance(result, list):
        return " ".join(added.id[-6:] + ("=" if added.duplicate else "") for added in result)
    return str(result)[:60]


_WEIGHTS: dict[Callable[[History], None], int] = {
    History._enqueue: 18, History._claim: 20, History._settle: 20, History._settle_all: 4, History._extend: 4,
    History._cancel: 2, History._look: 4, History._replay: 2, History._purge: 1, History._pause: 2, History._sweep: 4,
    History._time_passes: 14, History._calendar: 2, History._repeat: 3, History._record_step: 4, History._signal: 4,
}  # fmt: skip
_ACTIONS = [action for action, weight in _WEIGHTS.items() for _ in range(weight)]
