"""Explains a job's situation in sentences, from facts that the caller has read.

    where      the job's state, since when, and which worker holds it
    why        the reasons for that state; for a ready job, each reason why no worker has claimed it
    happened   its enqueueing and each attempt, a sentence each
    next       the next transition, and when

Each function in `WAITING_REASONS` yields one reason why a ready job is not claimed; add new reasons there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from tenure.model.durations import as_datetime
from tenure.model.event import Event
from tenure.model.group import GroupInfo
from tenure.model.job import Counts, Job, ParentResult
from tenure.model.rate import Rate
from tenure.model.retry import Policy

#: The latest attempts are listed, at most this many.
_ATTEMPTS = 20
#: Characters of an error that a sentence quotes.
_QUOTED = 200
#: A queue whose last claim is no older than this is assumed to have running workers.
_RECENT_MS = 60_000
#: A job released for longer than this waits for a signal without a timeout.
_FOREVER_MS = 10 * 365 * 86_400_000

FormatTime = Callable[[int], str]
"""Formats milliseconds since 1970 for a sentence."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller read of a job and its queue at one time."""

    now_ms: int
    #: None: the job is gone, and only its events are left.
    job: Job | None
    #: Oldest first, as far back as the journal is kept.
    events: Sequence[Event]
    policy: Policy
    paused: bool = False
    counts: Counts | None = None
    #: Ready jobs that are claimed before this one; with `ahead_at_least` there may be more. None: not counted.
    ahead: int | None = None
    ahead_at_least: bool = False
    #: The queue's newest claim; None: there was none since `claims_since_ms`, from when on the journal was searched.
    last_claim: Event | None = None
    claims_since_ms: int | None = None
    #: The job's group; None: it has none, or the caller did not find it.
    group: GroupInfo | None = None
    #: The first of the jobs that a blocked one waits for; with `parents_at_least` there may be more.
    parents: Sequence[ParentResult] = ()
    parents_at_least: bool = False


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A job's situation in sentences. The caller of `explain` chooses how times are written; the default is UTC."""

    job_id: str
    tenant: str
    queue: str
    #: blocked, scheduled, ready, leased, done, dead; or gone
    state: str
    where: str
    why: list[str]
    happened: list[str]
    next: str
    #: When the next transition happens by itself; None: a worker or an operator has to act.
    next_at_ms: int | None = None


def utc(ms: int) -> str:
    """`12:04:10 UTC on 2026-03-01`."""
    moment = as_datetime(ms)
    return f"{moment:%H:%M:%S} UTC on {moment:%Y-%m-%d}"


def explain(facts: Facts, moment: FormatTime = utc) -> Explanation | None:
    """Explain a job, writing times with `moment`. None: there is neither a job nor an event of it."""
    if facts.job is None:
        return _gone(facts, moment) if facts.events else None
    job, story = facts.job, _Story(facts, facts.job, moment)
    where, why, then, at_ms = _BY_STATE[job.state](story)
    return Explanation(
        job_id=job.id,
        tenant=job.tenant,
        queue=job.queue,
        state=job.state,
        where=where,
        why=why,
        happened=happened(facts.events, moment),
        next=then,
        next_at_ms=at_ms,
    )


# ── by state ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_Sentences = tuple[str, list[str], str, int | None]
"""The fields where, why, next and next_at_ms of an `Explanation`."""


class _Story:
    """The facts, and the phrases that several sentences share."""

    def __init__(self, facts: Facts, job: Job, moment: FormatTime) -> None:
        self.facts, self.job, self.moment = facts, job, moment
        self.last = facts.events[-1] if facts.events else None

    def since(self, ms: int) -> str:
        """`since 12:00:00 UTC, for 4 minutes`"""
        return f"since {self.moment(ms)}, for {span_words(self.facts.now_ms - ms)}"

    def until(self, ms: int) -> str:
        """`at 12:00:00 UTC, in 4 minutes`; for a time in the past, without `in …`."""
        away = ms - self.facts.now_ms
        return f"at {self.moment(ms)}" + (f", in {span_words(away)}" if away > 0 else "")

    @property
    def next_attempt(self) -> str:
        return f"attempt {min(self.job.attempt + 1, self.job.max_attempts)} of {self.job.max_attempts}"

    @property
    def after_error(self) -> str:
        return f", after {headline(self.job.error)}" if self.job.error else ""


def _blocked(story: _Story) -> _Sentences:
    facts, job = story.facts, story.job
    waits = [parent for parent in facts.parents if parent.state not in ("done", "gone")]
    least, more = ("at least ", " or more") if facts.parents_at_least else ("", "")
    where = f"It is blocked: it waits for {least}{len(waits):,} of {len(facts.parents):,}{more} {_plural(len(facts.parents), 'parent')}."
    why = [
        f"Of them, {least}{count:,} of queue {queue} {_plural(count, 'is', 'are')} {state}."
        for (queue, state), count in Counter((parent.queue, parent.state) for parent in waits).items()
    ]
    if any(parent.state == "dead" for parent in waits):
        why.append("It waits for a dead job to be replayed (on_parent_dead).")
    if job.visible_at_ms > facts.now_ms:
        why.append(f"It is not ready before {story.moment(job.visible_at_ms)} in any case.")
    why += _ttl(story)
    return where, why, "It becomes ready when the last of them has ended.", None


def _scheduled(story: _Story) -> _Sentences:
    job, at = story.job, story.job.visible_at_ms
    kind = story.last.type if story.last is not None else "enqueued"
    if kind == "released" and at - story.facts.now_ms > _FOREVER_MS:
        return _for_a_signal(story)
    if kind == "retried" or (kind == "expired" and job.attempt):
        where = f"It waits for its retry {story.until(at)}: {story.next_attempt}{story.after_error}."
    else:
        where = f"It is scheduled: it becomes ready {story.until(at)}."
    why = [_WHY_SCHEDULED.get(kind, _WHY_SCHEDULED["enqueued"])]
    if story.facts.paused:
        why.append("Its queue is paused: it will not be claimed before the queue is resumed.")
    why += _ttl(story)
    return where, why, f"It becomes ready {story.until(at)}, and the next claim may have it.", at


def _for_a_signal(story: _Story) -> _Sentences:
    why = ["Its worker gave it back until a signal comes (wait_for), without a timeout.", *_ttl(story)]
    if story.facts.paused:
        why.append("Its queue is paused: it will not be claimed before the queue is resumed.")
    return "It waits for a signal.", why, "It becomes ready when somebody gives it the signal (queue.signal).", None


_WHY_SCHEDULED = {
    "enqueued": "It was enqueued with a delay or for a time.",
    "retried": "Its last delivery failed, and the queue's backoff, or the worker, put the retry off until then.",
    "expired": "Its last lease ran out, and the queue's policy puts the retry off (backoff_on_expiry).",
    "replayed": "It was replayed, and the replay's rate or delay put it off until then.",
    "released": "Its worker gave it back for later (snooze, sleep), or until a signal comes (wait_for).",
    "restored": "It was put in from elsewhere with this time.",
}


def _ready(story: _Story) -> _Sentences:
    job = story.job
    where = f"It has been ready {story.since(job.visible_at_ms)}: {story.next_attempt}{story.after_error}."
    why = [reason for decide in WAITING_REASONS for reason in decide(story)]
    then = f"The next claim that reaches it gets it: {story.next_attempt}."
    if story.facts.paused:
        then = "Somebody has to resume the queue; then the next claim that reaches it gets it."
    return where, why, then, None


def _paused(story: _Story) -> Iterator[str]:
    if story.facts.paused:
        yield "Its queue is paused: claims return nothing until it is resumed."


def _at_its_limit(story: _Story) -> Iterator[str]:
    counts, most = story.facts.counts, story.facts.policy.max_leased
    if counts is not None and most is not None and counts.leased >= most:
        yield f"Its queue is at its limit: {counts.leased:,} of at most {most:,} jobs are leased (max_leased)."


def _rate(story: _Story) -> Iterator[str]:
    rate = story.facts.policy.rate
    if isinstance(rate, Rate):
        yield f"Its queue hands out at most {_rate_words(rate)} (rate)."


def _group_at_its_limit(story: _Story) -> Iterator[str]:
    group = story.facts.group
    most = None if group is None else story.facts.policy.of_group(group.group).max_leased
    if group is not None and most is not None and group.leased >= most:
        yield f"Its group {group.group} is at its limit of {most:,}: that many of its jobs are leased (max_leased)."


def _group_rate(story: _Story) -> Iterator[str]:
    rate = None if story.job.group is None else story.facts.policy.of_group(story.job.group).rate
    if isinstance(rate, Rate):
        yield f"Its group {story.job.group} is handed out at most {_rate_words(rate)} (rate)."


def _rate_words(rate: Rate) -> str:
    return f"{rate.jobs:g} {_plural(rate.jobs, 'job')} in {rate.per:g} s"


def _nobody_claims(story: _Story) -> Iterator[str]:
    facts = story.facts
    if facts.paused:
        return
    if facts.last_claim is not None:
        age = facts.now_ms - facts.last_claim.time_ms
        by = f" (worker {facts.last_claim.text})" if facts.last_claim.text else ""
        if age > _RECENT_MS:
            yield f"No worker has claimed from this queue for {span_words(age)}: are they running?"
        else:
            yield f"The last claim from this queue was {span_words(age)} ago{by}."
    elif facts.claims_since_ms is not None and facts.now_ms - facts.claims_since_ms <= _RECENT_MS:
        yield "No worker has claimed from this queue yet."
    elif facts.claims_since_ms is not None:
        yield f"No worker has claimed from this queue since {story.moment(facts.claims_since_ms)}: are they running?"


def _ahead(story: _Story) -> Iterator[str]:
    count = story.facts.ahead
    if count:
        least = "at least " if story.facts.ahead_at_least else ""
        yield f"Ahead of it {_plural(count, 'is', 'are')} {least}{count:,} ready {_plural(count, 'job')}."


def _ttl(story: _Story) -> Iterator[str]:
    if story.job.due_at_ms is not None:
        yield f"Its ttl: it is removed {story.until(story.job.due_at_ms)}, unless it has been claimed by then."


#: What may keep a ready job from being claimed.
WAITING_REASONS: tuple[Callable[[_Story], Iterator[str]], ...] = (
    _paused, _at_its_limit, _rate, _group_at_its_limit, _group_rate, _nobody_claims, _ahead, _ttl,
)  # fmt: skip


def _leased(story: _Story) -> _Sentences:
    job, now = story.job, story.facts.now_ms
    until = job.lease_until_ms or now
    who = f"Worker {job.worker}" if job.worker else "A worker that gave no name"
    claimed = next((e for e in reversed(story.facts.events) if e.type == "claimed"), None)
    since = "" if claimed is None else f" {story.since(claimed.time_ms)}"
    where = f"{who} has held it{since}: attempt {job.attempt} of {job.max_attempts}."
    ended = until <= now
    why = [f"Its lease {'ended' if ended else 'ends'} {story.until(until)}."]
    if job.progress is not None:
        note = f": {job.progress_note}" if job.progress_note else ""
        why.append(f"The worker says it is {job.progress:.0%} done{note}.")
    if ended:
        return where, why, f"The next claim or sweep takes it back: {_if_lost(job)}.", None
    away = span_words(until - now)
    then = (
        f"The worker settles it or extends the lease; if it has done neither by {story.moment(until)}, in {away}, "
        f"{_if_lost(job)}."
    )
    return where, why, then, until


def _if_lost(job: Job) -> str:
    if job.attempt >= job.max_attempts:
        return "the job is dead, since this is its last attempt"
    return f"the job is ready again for attempt {job.attempt + 1} of {job.max_attempts}"


def _done(story: _Story) -> _Sentences:
    job = story.job
    where = f"It has been done {story.since(job.ended_at_ms or story.facts.now_ms)}."
    why = [f"A worker acknowledged attempt {job.attempt} of {job.max_attempts}."]
    if job.result is not None:
        why.append(f"It has a result of {len(job.result):,} {_plural(len(job.result), 'byte')}.")
    if job.due_at_ms is None:
        return where, why, "It stays until somebody removes it.", None
    return (
        where,
        why,
        f"It is removed {story.until(job.due_at_ms)}: that is how long the queue keeps it.",
        job.due_at_ms,
    )


def _dead(story: _Story) -> _Sentences:
    job = story.job
    where = f"It has been dead {story.since(job.ended_at_ms or story.facts.now_ms)}{story.after_error}."
    if job.reason == "failed":
        why = [f"Its worker gave it up at attempt {job.attempt} of {job.max_attempts} (fail): no retry would help."]
    elif job.max_attempts == 1:
        why = ["Its only attempt failed or ran out (max_attempts)."]
    else:
        why = [f"All of its {job.max_attempts:,} attempts failed or ran out (max_attempts)."]
    return where, why, "It stays until somebody replays or purges it.", None


_BY_STATE: dict[str, Callable[[_Story], _Sentences]] = {
    "blocked": _blocked,
    "scheduled": _scheduled,
    "ready": _ready,
    "leased": _leased,
    "done": _done,
    "dead": _dead,
}


def _gone(facts: Facts, moment: FormatTime) -> Explanation:
    last = facts.events[-1]
    when = moment(last.time_ms)
    how = {
        "done": f"It was done at {when}; its queue keeps no done jobs (retention).",
        "retired": f"It was done, and was removed at {when}, when its retention had ended.",
        "cancelled": f"It was cancelled at {when}{_while_blocked(facts.events)}.",
        "purged": f"It was purged at {when}.",
        "ttl_passed": f"It was removed at {when}: nobody had claimed it before its ttl ended.",
    }.get(last.type, f"It is gone since {when} ({last.type}).")
    return Explanation(
        job_id=last.job_id or "",
        tenant=last.tenant,
        queue=last.queue,
        state="gone",
        where=how,
        why=["Only the journal tells of it now."],
        happened=happened(facts.events, moment),
        next="Nothing: the same work takes a new job.",
    )


def _while_blocked(events: Sequence[Event]) -> str:
    """A phrase for a job cancelled while blocked. The journal does not record who, or which parent, cancelled it."""
    if len(events) < 2 or events[-2].state != "blocked":
        return ""
    return ", while it waited for other jobs: one of them died or was removed, or somebody cancelled it"


# ── what happened ────────────────────────────────────────────────────────────────────────────────────────────────────


def happened(events: Sequence[Event], moment: FormatTime = utc) -> list[str]:
    """A sentence for each event; extensions of a lease are counted in the sentence that ends their attempt."""
    said: list[str] = []
    extended = 0
    claimed: Event | None = None
    for event in events:
        if event.type == "extended":
            extended += 1
            continue
        said.append(_sentence(event, claimed, extended, moment))
        if event.type == "claimed":
            claimed, extended = event, 0
    if extended:
        said.append(f"Since then the lease was extended {_times(extended)}.")
    if len(said) > 3 * _ATTEMPTS:
        left_out = len(said) - 3 * _ATTEMPTS
        said = [said[0], f"… {left_out:,} more …", *said[left_out + 1 :]]
    return said


def _sentence(event: Event, claimed: Event | None, extended: int, moment: FormatTime) -> str:
    when = moment(event.time_ms)
    number = f"Attempt {event.attempt} of {event.max_attempts}"
    held = "" if claimed is None else f" after {span_words(event.time_ms - claimed.time_ms)}"
    kept = f", extended {_times(extended)}" if extended else ""
    error = f" with {headline(event.text)}" if event.text else ""
    back = "" if event.at_ms is None or event.at_ms <= event.time_ms else f"; ready again at {moment(event.at_ms)}"
    due = "" if event.at_ms is None or event.at_ms <= event.time_ms else f", to be ready at {moment(event.at_ms)}"
    who = f"worker {event.text}" if event.text else "a worker that gave no name"
    sentences = {
        "enqueued": f"Enqueued at {when}{due}{', behind other jobs' if event.state == 'blocked' else ''}.",
        "unblocked": f"The last job that it waited for ended at {when}{due}.",
        "signalled": f"The signal that it waited for came at {when}.",
        "claimed": f"{number}: claimed by {who} at {when}.",
        "done": f"{number}: done at {when}{held}{kept}.",
        "retried": f"{number}: failed at {when}{held}{kept}{error}{back}.",
        "died": f"{number}: died at {when}{held}{kept}{error}.",
        "released": f"Released at {when}{held}{kept}: the delivery does not count{back if _sooner(event) else ''}.",
        "expired": f"{number}: its lease ran out at {when}{held}{kept}{back}.",
        "replayed": f"Replayed at {when}{due}: its attempts start again.",
        "cancelled": f"Cancelled at {when}.",
        "purged": f"Purged at {when}.",
        "ttl_passed": f"Removed at {when}: its ttl had ended.",
        "retired": f"Removed at {when}: its retention had ended.",
        "restored": f"Put in from elsewhere at {when}.",
        "repaired": f"Set right by a repair at {when}.",
    }
    return sentences.get(event.type, f"{event.type} at {when}.")


def _sooner(event: Event) -> bool:
    return event.at_ms is not None and event.at_ms - event.time_ms <= _FOREVER_MS


# ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def headline(error: str | None) -> str:
    """The line that names an error: the first, or a traceback's last. At most 200 characters."""
    lines = (error or "").strip().splitlines() or [""]
    line = lines[-1 if lines[0].startswith("Traceback (most recent") else 0].strip()
    return line if len(line) <= _QUOTED else line[: _QUOTED - 1] + "…"


def span_words(ms: int) -> str:
    """`4 minutes`, `12 seconds`, `350 ms`."""
    seconds = max(ms, 0) / 1000
    if seconds < 1:
        return f"{max(ms, 0)} ms"
    for unit, size, until in (("second", 1, 120), ("minute", 60, 7200), ("hour", 3600, 172_800)):
        if seconds < until:
            count = round(seconds / size)
            return f"{count} {_plural(count, unit)}"
    count = round(seconds / 86_400)
    return f"{count:,} {_plural(count, 'day')}"


def _plural(count: float, one: str, many: str | None = None) -> str:
    return one if count == 1 else many or one + "s"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
