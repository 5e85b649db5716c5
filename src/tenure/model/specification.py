"""The specification as a transition relation: which event may follow which. `spec/` has the same actions in TLA+.

    journal ──▶ Trace.take(event) ──▶ None: the event is a step that the specification allows
                     │                 str:  why the specification does not allow it
                     └─ state: each job's last event, each lease's end, which queues are paused

`RULES` is the relation, one row for each event type. A row says which lease the step needs, and how it changes the
token, the attempt and the visibility time. The states before and after are in `lifecycle.TRANSITIONS`.

A journal may have been trimmed (it is kept for a week). A job or lease whose first events were trimmed gets its state
from the first event left, and is checked from there on. Memory: one entry for each stored job and each open lease.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from tenure.model.event import Event
from tenure.model.lifecycle import TRANSITIONS, Change, State
from tenure.model.tokens import TOKEN_COUNT


class Rule(NamedTuple):
    """What a step requires and changes, apart from the states in `TRANSITIONS`."""

    #: `new`: the step grants a lease. `live`: it names the job's lease, before its end. `over`: the job's lease, at or
    #: after its end. `held`: the job's lease, if it has one. `none`: the event names no lease.
    lease: str
    #: `zero`; `same` as before; `next`: larger, by exactly one within an epoch; `any`.
    token: str
    #: `zero`, `same`, `next` (one more, within max_attempts), `back` (one less), `any`.
    attempt: str
    #: The visibility time. `later`: not before now. `back`: as before, or (a snooze) not before now. `due`: the job was
    #: visible. `any`: not checked.
    visible: str
    #: Attempts: `left`: fewer than max_attempts were made. `by reason`: none are left, or the reason is `failed`.
    attempts: str


#: The transition relation.
RULES: dict[Change, Rule] = {
    #                      lease   token   attempt visible  attempts
    Change.ENQUEUED:   Rule("none", "zero", "zero", "later", "any"),
    Change.UNBLOCKED:  Rule("none", "same", "same", "later", "any"),
    Change.SIGNALLED:  Rule("none", "same", "same", "later", "any"),
    Change.CLAIMED:    Rule("new",  "next", "next", "due",   "any"),
    Change.DONE:       Rule("live", "same", "same", "any",   "any"),
    Change.RETRIED:    Rule("live", "same", "same", "later", "left"),
    Change.RELEASED:   Rule("live", "same", "back", "back",  "any"),
    Change.EXPIRED:    Rule("over", "same", "same", "later", "left"),
    Change.DIED:       Rule("held", "same", "same", "any",   "by reason"),
    Change.REPLAYED:   Rule("none", "same", "zero", "later", "any"),
    Change.CANCELLED:  Rule("held", "same", "same", "any",   "any"),
    # A ttl counts until the first delivery.
    Change.TTL_PASSED: Rule("held", "zero", "same", "any",   "any"),
    Change.PURGED:     Rule("held", "same", "same", "any",   "any"),
    Change.RETIRED:    Rule("held", "same", "same", "any",   "any"),
    Change.RESTORED:   Rule("none", "any",  "any",  "any",   "any"),
    Change.REPAIRED:   Rule("none", "any",  "any",  "any",   "any"),
}  # fmt: skip

#: Events that move no job.
WITHOUT_JOB = frozenset(
    {
        Change.EXTENDED,
        Change.QUEUE_CREATED,
        Change.QUEUE_CONFIGURED,
        Change.QUEUE_PAUSED,
        Change.QUEUE_RESUMED,
        Change.QUEUE_DELETED,
    }
)

_CHANGES = {change.name.lower(): change for change in Change}
_STATES = {state.name.lower(): state for state in State}
_Name = tuple[str, str, str]
_Queue = tuple[str, str]


class Departure(NamedTuple):
    """The first event that the specification does not allow, and why."""

    event: Event
    why: str

    def __str__(self) -> str:
        event = self.event
        return f"event {event.number} ({event.type}, row {event.commit}, place {event.index}): {self.why}"


class _Job(NamedTuple):
    state: State
    token: int
    attempt: int
    max_attempts: int
    priority: int
    visible_ms: int | None
    lease: str | None
    place: tuple[int, int]
    time_ms: int


#: Makes a `_Job` of all its fields, without a Python call.
_job = partial(tuple.__new__, _Job)


class _Lease(NamedTuple):
    #: When it ends; None: the event that set it was trimmed.
    until_ms: int | None
    granted_ms: int
    #: How many jobs it holds.
    open: int


class Trace:
    """Checks a journal event by event.

    `dense`: one journal, whose events are numbered without a gap, and no time goes back. Otherwise they are of several
    journals (the partitions of a queue), and only each job's own events are in the order of their times. `timed`: writers are serialized, so that an event's
    time is the time of its decision; on other stores an event gets its time later, together with its number.
    """

    def __init__(self, *, dense: bool = True, timed: bool = True) -> None:
        self._dense = dense
        self._timed = timed
        self._jobs: dict[_Name, _Job] = {}
        self._leases: dict[str, _Lease] = {}
        self._paused: set[_Queue] = set()
        self._number = 0
        self._time_ms = 0
        self._first: tuple[int, int] | None = None
        #: The journal is complete: an event that is not in it did not happen.
        self._whole = False

    def take(self, event: Event) -> str | None:
        """Check the next event. Returns None, or why the specification does not allow it."""
        change = _CHANGES.get(event.type)
        if change is None:
            return f"the specification knows no {event.type}"
        why = self._out_of_order(event)
        if why is None:
            if change in WITHOUT_JOB:
                why = self._without_job(change, event)
            elif event.job_id is None or event.state is None:
                why = "it names no job"
            else:
                why = self._with_job(change, event, (event.tenant, event.queue, event.job_id), _STATES[event.state])
        return why

    # ── the order of events ──────────────────────────────────────────────────────────────────────────────────────────

    def _out_of_order(self, event: Event) -> str | None:
        if self._first is None:
            self._first = event.commit, event.index
            self._whole = self._dense and event.number == 1
        elif self._dense and event.number != self._number + 1:
            return f"its number follows {self._number}"
        if self._dense and event.time_ms < self._time_ms:
            return f"it is earlier than the event before it, by {self._time_ms - event.time_ms} ms"
        self._number, self._time_ms = event.number, event.time_ms
        return None

    def _begins_here(self, event: Event) -> bool:
        """Whether the job's earlier events were trimmed (True), or are missing from the journal (False)."""
        return event.previous is not None and (not self._dense or event.previous < (self._first or (0, 0)))

    # ── queues and leases ────────────────────────────────────────────────────────────────────────────────────────────

    def _without_job(self, change: Change, event: Event) -> str | None:
        queue = event.tenant, event.queue
        if change is Change.EXTENDED:
            return self._extended(event)
        if change is Change.QUEUE_PAUSED:
            self._paused.add(queue)
        elif change in (Change.QUEUE_RESUMED, Change.QUEUE_CREATED, Change.QUEUE_DELETED):
            self._paused.discard(queue)
        return None

    def _extended(self, event: Event) -> str | None:
        lease = self._leases.get(event.lease_id or "")
        if lease is None:
            return "it extends a lease that nobody holds" if self._whole else None
        if event.at_ms is None:
            return "it does not say until when"
        if lease.until_ms is not None:
            if self._passed(lease.until_ms, event):
                return f"it extends a lease that ended {event.time_ms - lease.until_ms} ms before"
            if event.at_ms <= lease.until_ms:
                return "it does not extend its lease"
        self._leases[event.lease_id or ""] = lease._replace(until_ms=event.at_ms)
        return None

    def _let_go(self, lease_id: str) -> None:
        """The lease holds one job fewer; a lease without jobs has ended."""
        lease = self._leases.get(lease_id)
        if lease is not None and lease.open > 1:
            self._leases[lease_id] = lease._replace(open=lease.open - 1)
        else:
            self._leases.pop(lease_id, None)

    def _hold(self, lease_id: str, until_ms: int | None, time_ms: int) -> None:
        lease = self._leases.get(lease_id)
        self._leases[lease_id] = _Lease(until_ms, time_ms, 1) if lease is None else lease._replace(open=lease.open + 1)

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _with_job(self, change: Change, event: Event, name: _Name, after: State) -> str | None:
        before, rule = self._jobs.get(name), RULES[change]
        origins, ends = TRANSITIONS[change]
        if after not in ends:
            return f"it leads to {after.name.lower()}"
        if before is None and self._begins_here(event):
            self._move(name, None, event, after)
            return None
        state = State.GONE if before is None else before.state
        if state not in origins:
            return f"the job is {state.name.lower()}"
        if before is None:
            if event.previous is not None and change is not Change.REPAIRED:
                return "it names an event before it that is not there"
            before = _NEW
        elif event.previous != before.place and change is not Change.REPAIRED:
            return f"it names {event.previous} as the event before it, which is {before.place}"
        if event.time_ms < before.time_ms:
            return f"it is earlier than the job's event before it, by {before.time_ms - event.time_ms} ms"
        why = (
            _wrong_numbers(rule, change, before, event)
            or _wrong_moment(rule, before, event, timed=self._timed)
            or self._wrong_lease(rule, before, event)
        )
        if why is None:
            self._move(name, before, event, after)
        return why

    def _wrong_lease(self, rule: Rule, before: _Job, event: Event) -> str | None:
        if rule.lease == "none":
            return None
        if rule.lease == "new":
            return self._wrong_grant(event)
        if before.state is not State.LEASED:
            return None
        if event.lease_id != before.lease:
            return "it names another lease than the one that holds the job"
        lease = self._leases.get(event.lease_id or "")
        if lease is None or lease.until_ms is None:
            return None
        if self._passed(lease.until_ms, event) and (rule.lease == "live" or event.reason == "failed"):
            return f"its lease ended {event.time_ms - lease.until_ms} ms before"
        if event.time_ms < lease.until_ms and rule.lease == "over":
            return f"its lease lasts {lease.until_ms - event.time_ms} ms more"
        return None

    def _passed(self, moment_ms: int, event: Event) -> bool:
        """Whether `moment_ms` had passed when the event was decided. False if not `timed`: that time is unknown."""
        return self._timed and moment_ms <= event.time_ms

    def _wrong_grant(self, event: Event) -> str | None:
        if event.lease_id is None:
            return "it grants no lease"
        if event.at_ms is None or self._passed(event.at_ms, event):
            return "its lease ends before it begins"
        if self._dense and (event.tenant, event.queue) in self._paused:
            return "its queue is paused"
        lease = self._leases.get(event.lease_id)
        if lease is not None and (lease.granted_ms, lease.until_ms) != (event.time_ms, event.at_ms):
            return "its lease was granted before"
        return None

    def _move(self, name: _Name, before: _Job | None, event: Event, after: State) -> None:
        if before is not None and before.state is State.LEASED and before.lease is not None:
            self._let_go(before.lease)
        if after is State.GONE:
            self._jobs.pop(name, None)
            return
        if after is State.LEASED and event.lease_id is not None:
            claimed = event.type == "claimed"
            self._hold(event.lease_id, event.at_ms if claimed else None, event.time_ms)
        visible = event.at_ms if after is State.WAITING else None if before is None else before.visible_ms
        fixed = event.max_attempts, event.priority
        place = event.commit, event.index
        self._jobs[name] = _job(
            (after, event.token, event.attempt, *fixed, visible, event.lease_id, place, event.time_ms)
        )


#: By rule: the attempt minus the attempt before.
_STEP = {"same": 0, "next": 1, "back": -1}
_NEW = _Job(State.GONE, 0, 0, 0, 0, None, None, (0, 0), 0)


def _wrong_numbers(rule: Rule, change: Change, before: _Job, event: Event) -> str | None:
    """Why token, attempt, max_attempts or priority violate the rule; None: they follow it."""
    fixed = before.priority, before.max_attempts
    if before is not _NEW and change is not Change.REPAIRED and fixed != (event.priority, event.max_attempts):
        return "it changes what was fixed when the job was enqueued"
    if not _token_fits(rule.token, before.token, event.token):
        return f"its token is {event.token} after {before.token}"
    if rule.attempt != "any" and event.attempt != (
        0 if rule.attempt == "zero" else before.attempt + _STEP[rule.attempt]
    ):
        return f"its attempt is {event.attempt} after {before.attempt}"
    if rule.attempt == "next" and event.attempt > event.max_attempts:
        return f"it is delivery {event.attempt} of at most {event.max_attempts}"
    if rule.attempts == "left" and event.attempt >= event.max_attempts:
        return "it had no attempt left"
    if rule.attempts == "by reason" and event.reason != "failed" and event.attempt < event.max_attempts:
        return "it had attempts left"
    return None


def _token_fits(rule: str, before: int, now: int) -> bool:
    if rule == "next":
        same_epoch = now & ~TOKEN_COUNT == before & ~TOKEN_COUNT
        return now == before + 1 if same_epoch else now > before
    return rule == "any" or now == (0 if rule == "zero" else before)


def _wrong_moment(rule: Rule, before: _Job, event: Event, *, timed: bool) -> str | None:
    """Why the visibility time violates the rule; None: it follows it."""
    if rule.visible == "due" and before.visible_ms is not None and before.visible_ms > event.time_ms:
        return f"the job is not visible for another {before.visible_ms - event.time_ms} ms"
    if rule.visible == "later" and (event.at_ms is None or (timed and event.at_ms < event.time_ms)):
        return "it makes the job visible before now"
    if (
        rule.visible == "back"
        and before.visible_ms not in (None, event.at_ms)
        and (timed and (event.at_ms or 0) < event.time_ms)
    ):
        return "it moves the job to an earlier time"
    return None


def departure(events: Iterable[Event], *, dense: bool = True) -> Departure | None:
    """The first event that the specification does not allow; None: it allows all."""
    trace = Trace(dense=dense)
    for event in events:
        why = trace.take(event)
        if why is not None:
            return Departure(event, why)
    return None
