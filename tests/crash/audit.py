"""Checks a store after a kill, by comparing the worker's log, the journal and the tables.

1. The journal continues without a gap: no number is missing or repeated, no time goes back.
2. Every job's events follow the lifecycle: each names its predecessor, tokens grow by one with each delivery, no event
   follows the last one, a delivery is settled once.
3. Every acknowledged call has its events; every event belongs to a call that was acknowledged or in flight; a call in
   flight took effect completely or not at all.
4. An idempotency key has one job.
5. The tables agree: `get` finds every live job with its payload, and no ended one; `check()` is clean.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tenure import NewJob
from tenure.api.store import Store
from tenure.model.event import Event
from tenure.model.lifecycle import Change, State, allowed
from tenure.model.specification import Trace
from tenure.model.tokens import TOKEN_COUNT
from tests.crash.worker import QUEUES, payload

#: Events that end a delivery.
CLOSING = {"done", "retried", "died", "released", "expired"}
#: By verb: the events that it may cause.
SETTLES = {"ack": {"done"}, "nack": {"retried", "died"}, "fail": {"died"}, "release": {"released"}}


@dataclass
class Call:
    name: str
    verb: str
    arguments: dict[str, Any]
    outcome: Any = None
    ended: bool = False

    @property
    def lost(self) -> bool:
        return isinstance(self.outcome, dict) and "lost" in self.outcome and "done" not in self.outcome


def token_follows(before: int, event: Event) -> bool:
    """A claim's token is larger by one delivery, and of this epoch or a later one; no other event changes it."""
    if event.type != "claimed":
        return event.token == before
    return event.token > before and event.token & TOKEN_COUNT == (before & TOKEN_COUNT) + 1


@dataclass
class Life:
    """A job's state by the journal."""

    queue: str
    state: str = "gone"
    token: int = 0
    attempt: int = 0
    last: tuple[int, int] | None = None
    lease: str | None = None
    payload: bytes | None = None
    closed: set[int] = field(default_factory=set)


def read_log(path: Path) -> list[Call]:
    calls: dict[str, Call] = {}
    for line in path.read_bytes().split(b"\n"):
        if not line:
            continue
        words = json.loads(line)
        if words[0] == "B":
            calls[words[1]] = Call(*words[1:])
        elif words[0] == "E":
            calls[words[1]].outcome, calls[words[1]].ended = words[2], True
        elif words[0] == "died":
            raise AssertionError(f"a worker's thread ended: {words[1]}")
    for call in calls.values():
        assert not (isinstance(call.outcome, dict) and "error" in call.outcome), call
    return list(calls.values())


class Audit:
    """Follows one store through all rounds."""

    def __init__(self) -> None:
        self.jobs: dict[str, Life] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self.leases: dict[str, int] = {}  # lease → its end
        self.calls = self.events = self.in_flight = self.in_flight_done = 0
        self._cursor: str | None = None
        self._place = (0, 0)
        self._number = 0
        self._time = 0
        self._trace = Trace()

    def round(self, store: Store, calls: list[Call]) -> None:
        new = self._read(store)
        self.calls += len(calls)
        self.events += len(new)
        self._learn_payloads(calls, new)
        ended = self._live(new)
        self._check_enqueues(calls, new)
        self._check_claims(calls, new)
        self._check_settled(calls, new)
        self._check_others(calls, new)
        self._check_keys(store, calls)
        self._check_tables(store, ended)
        report = store.check()
        assert report.clean, report.findings[:5]
        self._cursor_past_own(store)

    # ── the journal ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, store: Store) -> list[Event]:
        found: list[Event] = []
        while True:
            page = store.events(after=self._cursor, limit=5000)
            self._cursor = page.cursor
            if not page.events:
                break
            found += page.events
        for event in found:
            commit, index = self._place
            place = (event.commit, event.index)
            assert place in ((commit, index + 1), (commit + 1, 0)), f"{place} follows {self._place}"
            assert event.number == self._number + 1
            assert event.time_ms >= self._time
            self._place, self._number, self._time = place, event.number, event.time_ms
            why = self._trace.take(event)
            assert why is None, f"departs from the specification: {event}: {why}"
        return found

    def _live(self, events: list[Event]) -> list[str]:
        """Apply the events to the jobs. Returns the jobs that ended."""
        ended = []
        for event in events:
            if event.type in ("claimed", "extended"):
                assert event.lease_id is not None
                assert event.at_ms is not None
                self.leases[event.lease_id] = max(self.leases.get(event.lease_id, 0), event.at_ms)
            if event.job_id is None:
                continue
            life = self.jobs.get(event.job_id)
            if event.type == "enqueued":
                assert life is None, f"{event.job_id} was enqueued twice"
                life = self.jobs[event.job_id] = Life(event.queue)
            assert life is not None, f"no call enqueued {event}"
            change, before, after = (
                Change[event.type.upper()],
                State[life.state.upper()],
                State[str(event.state).upper()],
            )
            assert allowed(change, before, after), f"{life.state} → {event}"
            assert event.previous == life.last, f"{event} does not follow {life}"
            assert token_follows(life.token, event), f"{event} after {life}"
            if event.type in CLOSING:
                assert event.token not in life.closed, f"settled twice: {event}"
                assert event.lease_id == life.lease
                life.closed.add(event.token)
            if event.type == "expired":
                assert event.time_ms >= self.leases[str(life.lease)], f"expired early: {event}"
            life.state, life.token, life.attempt = str(event.state), event.token, event.attempt
            life.last = (event.commit, event.index)
            life.lease = event.lease_id if event.state == "leased" else None
            if life.state == "gone":
                ended.append(event.job_id)
        return ended

    # ── what was said ────────────────────────────────────────────────────────────────────────────────────────────────

    def _learn_payloads(self, calls: list[Call], events: list[Event]) -> None:
        self._payloads: dict[str, bytes] = {}
        for call in calls:
            if call.verb in ("enqueue", "enqueue_many") and call.ended:
                for index, (job, (job_id, duplicate)) in enumerate(
                    zip(call.arguments["jobs"], call.outcome, strict=True)
                ):
                    if not duplicate:
                        whose, place = (job["key"], 0) if "key" in job else (call.name, index)
                        self._payloads[job_id] = payload(whose, place, job["size"])

    def _check_enqueues(self, calls: list[Call], events: list[Event]) -> None:
        groups: dict[int, list[Event]] = defaultdict(list)
        for event in events:
            if event.type == "enqueued":
                groups[event.commit].append(event)
                self.jobs[str(event.job_id)].payload = self._payloads.get(str(event.job_id))
        by_first = {str(group[0].job_id): group for group in groups.values()}
        mine = [call for call in calls if call.verb in ("enqueue", "enqueue_many")]
        for call in mine:
            if not call.ended:
                continue
            ids = [job_id for job_id, duplicate in call.outcome if not duplicate]
            if ids:
                group = by_first.pop(ids[0], None)
                assert group is not None, f"acknowledged and lost: {call}"
                assert [event.job_id for event in group] == ids, f"not whole: {call} is {group}"
            for job, (job_id, _) in zip(call.arguments["jobs"], call.outcome, strict=True):
                if "key" in job:
                    known = self.keys.setdefault((call.arguments["queue"], job["key"]), job_id)
                    assert known == job_id, f"key {job['key']} has two jobs: {known} and {job_id}"
        flying = [call for call in mine if not call.ended]
        self._match(by_first, flying, _fits_enqueue)

    def _check_claims(self, calls: list[Call], events: list[Event]) -> None:
        groups: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            if event.type == "claimed":
                groups[str(event.lease_id)].append(event)
        mine = [call for call in calls if call.verb == "claim"]
        for group in groups.values():
            assert len({event.commit for event in group}) == 1, f"a claim in two commits: {group}"
        for call in mine:
            if call.ended and call.outcome[0] is not None:
                group = groups.pop(call.outcome[0], [])
                recorded = [[event.job_id, event.token, event.attempt] for event in group]
                assert recorded == call.outcome[1], f"{call} is {recorded}"
        self._match(groups, [call for call in mine if not call.ended], _fits_claim)

    def _match(self, groups: dict[str, list[Event]], flying: list[Call], fits: Fits) -> None:
        """Assert that each group of unexplained events matches one call in flight completely."""
        left = list(groups.values())
        self.in_flight += len(flying)
        self.in_flight_done += len(left)
        assert _pair(left, flying, fits), f"no call explains {left}; in flight were {flying}"

    def _check_settled(self, calls: list[Call], events: list[Event]) -> None:
        happened: dict[tuple[str, int], Event] = {
            (str(event.job_id), event.token): event for event in events if event.type in CLOSING
        }
        explained: set[tuple[str, int]] = set()
        for call in calls:
            if call.verb in SETTLES:
                (job_id, token) = call.arguments["jobs"][0]
                event = happened.get((job_id, token))
                if call.ended and not call.lost:
                    assert event is not None, f"acknowledged and lost: {call}"
                    assert event.type in SETTLES[call.verb], f"{call} is {event}"
                if not call.lost:
                    explained.add((job_id, token))
            elif call.verb == "ack_many":
                self._check_ack_many(call, happened, explained, events)
        for at, event in happened.items():
            if event.type == "expired" or (event.type == "died" and str(event.text).startswith("the lease expired")):
                continue
            assert at in explained, f"no call explains {event}"
        acked = {at for at, event in happened.items() if event.type == "done"}
        for job_id, token in acked:
            assert self.jobs[job_id].token == token, f"{job_id} came back after its ack"

    def _check_ack_many(
        self,
        call: Call,
        happened: dict[tuple[str, int], Event],
        explained: set[tuple[str, int]],
        events: list[Event],
    ) -> None:
        jobs = [(job_id, token) for job_id, token in call.arguments["jobs"]]
        done = [at for at in jobs if at in happened and happened[at].type == "done"]
        if call.ended:
            assert sorted(call.outcome["done"]) == sorted(job_id for job_id, _ in done), f"{call} is {done}"
        elif done:
            for job_id, token in jobs:  # a job that it did not settle had been lost before
                gone = token in self.jobs[job_id].closed or self.jobs[job_id].state == "gone"
                late = _lease_end(events, job_id, token) <= happened[done[0]].time_ms  # expired, though not yet swept
                assert gone or late, f"half of {call}: {job_id} is open"
        assert len({happened[at].commit for at in done}) <= 1, f"{call} in several commits"
        explained.update(jobs)

    def _check_others(self, calls: list[Call], events: list[Event]) -> None:
        cancelled = {event.job_id for event in events if event.type == "cancelled"}
        replayed = {event.job_id for event in events if event.type == "replayed"}
        extended = {(event.lease_id, event.at_ms) for event in events if event.type == "extended"}
        asked: set[str] = set()
        replays_flying = False
        said: set[str] = set()
        for call in calls:
            if call.verb == "cancel" and call.outcome is not False:
                asked.add(call.arguments["job"])
                if call.ended:
                    assert call.arguments["job"] in cancelled, f"acknowledged and lost: {call}"
            elif call.verb == "replay":
                said.update(call.outcome or ())
                replays_flying = replays_flying or not call.ended
            elif call.verb == "extend" and call.ended and not call.lost:
                until = self.leases.get(call.arguments["lease"], 0)
                assert until >= call.outcome, f"acknowledged and lost: {call}; {extended}"
        assert cancelled <= asked
        assert said <= replayed
        assert replays_flying or replayed <= said
        known = {call.arguments["lease"] for call in calls if call.verb == "extend"}
        assert {lease for lease, _ in extended} <= known

    def _check_keys(self, store: Store, calls: list[Call]) -> None:
        """Enqueue this round's keys again: acknowledged keys return their job, keys in flight may get one now."""
        used = {
            (call.arguments["queue"], job["key"], job["size"])
            for call in calls
            if call.verb in ("enqueue", "enqueue_many")
            for job in call.arguments["jobs"]
            if "key" in job
        }
        flying = {
            (call.arguments["queue"], job["key"])
            for call in calls
            if call.verb in ("enqueue", "enqueue_many") and not call.ended
            for job in call.arguments["jobs"]
            if "key" in job
        }
        for queue in QUEUES:
            again = sorted(use[1:] for use in used if use[0] == queue)
            answers = store.queue(queue).enqueue_many([NewJob(payload(key, 0, size), key=key) for key, size in again])
            for (key, _), answer in zip(again, answers, strict=True):
                known = self.keys.setdefault((queue, key), answer.id)
                assert known == answer.id, f"key {key} has two jobs: {known} and {answer.id}"
                assert answer.duplicate or (queue, key) in flying, f"key {key} was forgotten"

    def _cursor_past_own(self, store: Store) -> None:
        """Move the cursor past the events of the audit's own enqueues."""
        new = self._read(store)
        assert {event.type for event in new} <= {"enqueued", "queue_created"}
        self._live(new)

    # ── the tables ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_tables(self, store: Store, ended: list[str]) -> None:
        alive: dict[str, int] = defaultdict(int)
        for job_id, life in self.jobs.items():
            if life.state == "gone":
                continue
            alive[life.queue] += 1
            job = store.queue(life.queue).get(job_id)
            assert job is not None, f"{job_id} is lost: {life}"
            state = "waiting" if job.state in ("scheduled", "ready") else job.state
            assert (state, job.token, job.attempt) == (life.state, life.token, life.attempt)
            assert life.payload is None or job.payload == life.payload, f"{job_id} has another payload"
        for job_id in ended:
            assert store.queue(self.jobs[job_id].queue).get(job_id) is None, f"{job_id} came back"
            # No event may follow the end. Keep the fact without the payload: a crash test makes many jobs.
            self.jobs[job_id].payload = None
        for queue in QUEUES:
            counts = store.queue(queue).counts()
            total = counts.waiting + counts.leased + counts.done + counts.dead
            new = counts.enqueued - sum(life.queue == queue for life in self.jobs.values())
            assert total - new == alive[queue], f"{queue}: {counts}, and {alive[queue]} are known"


Fits = Callable[[list[Event], Call], bool]


def _pair(groups: list[list[Event]], calls: list[Call], fits: Fits) -> bool:
    """Whether every group of events can be matched with a different call."""
    if not groups:
        return True
    return any(
        fits(groups[0], call) and _pair(groups[1:], calls[:at] + calls[at + 1 :], fits) for at, call in enumerate(calls)
    )


def _fits_enqueue(group: list[Event], call: Call) -> bool:
    jobs = call.arguments["jobs"]
    least = sum("key" not in job for job in jobs)  # a job with a key may be a duplicate
    return group[0].queue == call.arguments["queue"] and max(least, 1) <= len(group) <= len(jobs)


def _fits_claim(group: list[Event], call: Call) -> bool:
    return group[0].queue == call.arguments["queue"] and len(group) <= int(call.arguments["limit"])


def _lease_end(events: list[Event], job_id: str, token: int) -> int:
    """The end of a delivery's lease after all extensions, by the journal."""
    claims = [event for event in events if event.type == "claimed" and (event.job_id, event.token) == (job_id, token)]
    leases = {event.lease_id for event in claims}
    ends = [event.at_ms or 0 for event in events if event.type in ("claimed", "extended") and event.lease_id in leases]
    return max(ends, default=0)
