"""`check`: the invariants of every shard. One server step examines each page, so that its findings are consistent.

A rule that needs more than one page (the journal against the tables) applies only if nothing was written meanwhile, or
to jobs whose last event was read.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from tenure.backends.redis import journal
from tenure.backends.redis.constants import PLACE_BITS
from tenure.backends.redis.core import Core
from tenure.backends.redis.records import (
    HAS_GROUP,
    HAS_KEY,
    State,
    StoredEvent,
    decode_body,
    decode_state,
    encode_state,
)
from tenure.backends.redis.shards import Shard
from tenure.contract.backend import Progress
from tenure.errors import Corrupt
from tenure.model import lifecycle
from tenure.model.ids import NO_ID, created_ms
from tenure.model.job import PRIORITIES
from tenure.model.report import Finding, Report

#: The most findings reported.
MAX_FINDINGS = 1000
_INDEXES = (*(f"t{tier}" for tier in range(2 * PRIORITIES)), "done", "dead", "blocked", "ttl", "retention")
_LINKS = ("waits", "parents", "children", "steps")
_NUMBERS = (
    "there", "commit", "events", "waiting", "leased", "done", "dead", "enqueued", "removed", "is_waiting", "is_leased",
    "is_done", "is_dead", "all", "jobs", "leases", "lease_rows", "held", "notes", "first", "links",
)  # fmt: skip
_RULES = {
    "index": ("index", "its index row is missing or at another time"),
    "twice": ("index", "it is in an index it does not belong to"),
    "due": ("due", "its due row is missing or at another time"),
    "lease": ("lease", "it is leased, and no lease holds it"),
    "body": ("damaged", "its payload is missing"),
    "group": ("group", "its group's row is missing, at another time, or of another group"),
    "aside": ("damaged", "it could not be read, and was set aside"),
    "waits": ("index", "the number of parents that it waits for is wrong"),
    "flags": ("index", "its state does not say what it waits for, what waits for it, or that it has steps"),
    "steps": ("index", "its steps are counted wrong, or cannot be read"),
}
_LEASES = {
    "damaged": ("damaged", "its row is damaged or missing"),
    "due": ("due", "it is due at another time than its row says"),
    "empty_lease": ("empty_lease", "it holds no job"),
    "open": ("lease", "its count of open jobs is wrong"),
}


_GROUPS = {
    "damaged": ("damaged", "its row is damaged"),
    "name": ("group", "it is not among the names of groups"),
    "waiting": ("group", "its count of waiting jobs is wrong"),
    "turn": ("group", "it has jobs that wait, and no turn"),
}


_TURNS = {
    "tenant": "its queues are in turn, and its tenant is not",
    "place": "its counters say that it is in turn, and it is not",
    "blocked": "it is held back, and not paused",
    "none": "it has work, and no turn",
    "late": "it has work before its turn comes",
}


class _Found(NamedTuple):
    finding: Finding
    #: The repair step: (action, id, argument); None if nothing can be repaired.
    repair: tuple[str, bytes, bytes] | None


class _Survey:
    """What the check of one shard has gathered."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.found: list[_Found] = []
        self.states: dict[bytes, State] = {}
        #: Leased jobs by group.
        self.leased: Counter[str] = Counter()
        self.damaged: set[bytes] = set()
        self.last: dict[bytes, tuple[int, StoredEvent, int]] = {}
        self.events = 0
        self.leases = 0
        self.jobs = 0

    def add(
        self, rule: str, detail: str, job: bytes | None = None, repair: tuple[str, bytes, bytes] | None = None
    ) -> None:
        name = self.shard.name
        self.found.append(
            _Found(
                Finding(
                    rule=rule,
                    detail=detail,
                    tenant=name.tenant,
                    queue=name.queue,
                    job_id=None if job is None else job.hex(),
                ),
                repair,
            )
        )


def check(core: Core, repair: bool, progress: Progress | None = None) -> Report:
    shards = core.shards.shards()
    findings: list[Finding] = []
    jobs = events = leases = 0
    there = set()
    for done, shard in enumerate(shards, 1):
        survey = _Survey(shard)
        if not _find_problems(core, survey, repair):
            continue
        there.add(shard.name)
        jobs, events, leases = jobs + survey.jobs, events + survey.events, leases + survey.leases
        for found in survey.found:
            fixed = _repair(core, survey, found) if repair else None
            old = found.finding
            findings.append(
                Finding(
                    rule=old.rule,
                    detail=old.detail,
                    tenant=old.tenant,
                    queue=old.queue,
                    job_id=old.job_id,
                    repair=fixed,
                )
            )
        if progress is not None:
            progress(done, len(shards))
    return Report(
        findings=findings[:MAX_FINDINGS],
        jobs=jobs,
        events=events,
        leases=leases,
        queues=len(there),
        truncated=len(findings) > MAX_FINDINGS,
    )


# ── findings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _find_problems(core: Core, survey: _Survey, repair: bool) -> bool:
    """Gather the problems of a shard. False: the queue has a name and nothing else."""
    try:
        before = _numbers(core, survey.shard)
    except Corrupt as exc:
        survey.add("damaged", exc.detail, None, ("counters_row", NO_ID, b""))
        if repair:
            core.commands.call(survey.shard.base, "repair_counters", _removed(core, survey.shard))
            before = _numbers(core, survey.shard)
        else:
            return True
    if not before["there"]:
        return False
    _journal(core, survey, before)
    _jobs(core, survey)
    _indexes(core, survey, before)
    _leases(core, survey, before)
    _remembered(core, survey)
    _turn(core, survey)
    _counters(survey, before)
    groups = _groups(core, survey)
    after = _numbers(core, survey.shard)
    if before["commit"] == after["commit"]:
        _counts_of_groups(survey, groups)
    _replayed(survey, before, after)
    return True


def _numbers(core: Core, shard: Shard) -> dict[str, int]:
    return dict(zip(_NUMBERS, core.commands.call(shard.base, "numbers"), strict=True))


def _pages(core: Core, shard: Shard, verb: str, *args: str) -> Any:
    cursor = b"0"
    while True:
        cursor, *rest = core.commands.call(shard.base, verb, *args, cursor)
        yield rest
        if cursor == b"0":
            return


def _journal(core: Core, survey: _Survey, numbers: dict[str, int]) -> None:
    wanted, number = numbers["first"] or numbers["commit"] + 1, None
    try:
        for row in journal.rows_from(core, survey.shard, wanted):
            if row.commit != wanted:
                survey.add("journal", f"row {wanted} is missing")
                wanted = row.commit
            if number is not None and row.first_number != number:
                survey.add("journal", f"row {row.commit} begins with event {row.first_number} instead of {number}")
            wanted, number = wanted + 1, row.first_number + len(row.events)
            survey.events += len(row.events)
            for index, event in enumerate(row.events):
                if event.job != NO_ID:
                    survey.last[event.job] = (row.commit << PLACE_BITS | index, event, row.time_ms)
    except Corrupt as exc:
        survey.add("journal", exc.detail)
    if wanted <= numbers["commit"]:
        survey.add("journal", f"it ends before row {numbers['commit']}")


def _jobs(core: Core, survey: _Survey) -> None:
    for page in _pages(core, survey.shard, "check_jobs"):
        for job, raw, body, wrong in zip(*[iter(page)] * 4, strict=True):
            survey.jobs += 1
            problems = wrong.decode().split()
            if "state" in problems:
                survey.damaged.add(job)
                survey.add("damaged", "its state is damaged", job, _of_damaged_state(survey, job, body))
                continue
            survey.states[job] = decode_state(raw, job)
            try:
                group = decode_body(body, job).group
            except Corrupt as exc:
                survey.damaged.add(job)
                survey.add("damaged", exc.detail, job, ("remove", job, b""))
                continue
            if group is not None and survey.states[job].state == lifecycle.State.LEASED:
                survey.leased[group] += 1
            for problem in dict.fromkeys(problems):
                survey.add(*_RULES[problem], job, ("index", job, b""))


def _of_damaged_state(survey: _Survey, job: bytes, body: bytes) -> tuple[str, bytes, bytes]:
    """Rebuild the state from the job's last event; without one, or without a payload, remove the job."""
    last = survey.last.get(job)
    try:
        stored = decode_body(body, job)
    except Corrupt:
        return ("remove", job, b"")
    if last is None or last[1].state == lifecycle.State.GONE:
        return ("remove", job, b"")
    ref, event, time_ms = last
    ended = event.state in lifecycle.TERMINAL
    keep = ended or event.state == lifecycle.State.BLOCKED
    state = State(
        1, event.state if keep else int(lifecycle.State.WAITING), event.priority, event.reason,
        (HAS_KEY if stored.key else 0) | (HAS_GROUP if stored.group else 0), event.attempt, event.max_attempts, 0, event.token, created_ms(job), time_ms,
        time_ms if ended else 0, 0, ref, NO_ID,
    )  # fmt: skip
    return ("rebuild", job, encode_state(state, job))


def _indexes(core: Core, survey: _Survey, numbers: dict[str, int]) -> None:
    names = (
        *_INDEXES,
        *(("jobs",) if numbers["jobs"] != numbers["all"] else ()),
        *(_LINKS if numbers["links"] else ()),
    )
    for name in names:
        for page in _pages(core, survey.shard, "check_index", name):
            for job in page:
                survey.add("orphan", f"a row of {name} points at no job", job, ("orphan", job, name.encode()))


def _leases(core: Core, survey: _Survey, numbers: dict[str, int]) -> None:
    survey.leases = numbers["leases"]
    for page in _pages(core, survey.shard, "check_leases"):
        for lease, wrong in zip(page[::2], page[1::2], strict=True):
            rule, detail = _LEASES[wrong.decode()]
            survey.add(rule, f"lease {lease.hex()}: {detail}", None, ("leases", lease, b""))
    if not numbers["leases"] == numbers["lease_rows"] == numbers["held"]:
        survey.add("lease", "leases, their rows and their jobs do not match", None, ("leases", NO_ID, b""))


def _groups(core: Core, survey: _Survey) -> dict[str, int]:
    """Check the rows of groups. Return how many leased jobs each claims to have."""
    counted: dict[str, int] = {}
    for page in _pages(core, survey.shard, "check_groups"):
        for raw, leased, wrong in zip(*[iter(page)] * 3, strict=True):
            name = raw.decode("utf-8", "replace")
            counted[name] = leased
            if wrong:
                rule, detail = _GROUPS[wrong.decode()]
                survey.add(rule, f"group {name}: {detail}", None, ("groups", NO_ID, b""))
    for page in _pages(core, survey.shard, "check_group_names"):
        for raw in page:
            detail = f"group {raw.decode('utf-8', 'replace')}: only its name is stored"
            survey.add("orphan", detail, None, ("groups", NO_ID, b""))
    return counted


def _counts_of_groups(survey: _Survey, counted: dict[str, int]) -> None:
    for name in counted.keys() | survey.leased.keys():
        if counted.get(name, 0) != survey.leased[name]:
            detail = (
                f"group {name}: {counted.get(name, 0)} jobs are counted as leased, and {survey.leased[name]} are leased"
            )
            survey.add("group", detail, None, ("groups", NO_ID, b""))


_KINDS = {"dedup": "an idempotency key", "claims": "a claim's id"}


def _remembered(core: Core, survey: _Survey) -> None:
    """Check notes, remembered keys and claims, and the token bucket of the rate."""
    shard = survey.shard
    for page in _pages(core, shard, "check_notes"):
        for note in page:
            survey.add("orphan", "a note that belongs to no job", note[:16], ("note", note, b""))
    for name, what in _KINDS.items():
        for page in _pages(core, shard, "check_remembered", name):
            for digest, wrong in zip(page[::2], page[1::2], strict=True):
                if wrong == b"damaged":
                    survey.add(
                        "damaged", f"{what} that is held cannot be read", None, ("forget", digest, name.encode())
                    )
                else:
                    survey.add("due", f"{what} is held for ever", None, ("due", digest, name.encode()))
        for page in _pages(core, shard, "check_remembered_due", name):
            for digest in page:
                survey.add("orphan", f"{what} is due, and not held", None, ("forget", digest, name.encode()))
    if core.commands.call(shard.base, "check_bucket")[0]:
        survey.add("damaged", "the state of its rate cannot be read", None, ("bucket", NO_ID, b""))


def _turn(core: Core, survey: _Survey) -> None:
    """Check that `claim_any` finds the queue."""
    wrong = core.commands.call(survey.shard.base, "check_turn", core.grace_ms)[0].decode()
    if wrong:
        survey.add("turn", _TURNS[wrong], None, ("turn", NO_ID, b""))


def _counters(survey: _Survey, numbers: dict[str, int]) -> None:
    for name in ("waiting", "leased", "done", "dead"):
        if numbers[name] != numbers["is_" + name]:
            detail = f"{name} is counted {numbers[name]}, and there are {numbers['is_' + name]}"
            survey.add("counters", detail, None, ("counters", NO_ID, b""))
    if numbers["enqueued"] != numbers["all"] + numbers["removed"]:
        detail = f"{numbers['enqueued']} were enqueued, {numbers['all']} are there, {numbers['removed']} were removed"
        survey.add("conservation", detail, None, ("counters", NO_ID, b""))


def _replayed(survey: _Survey, before: dict[str, int], after: dict[str, int]) -> None:
    """Compare the states that the journal gives with those of the tables."""
    whole = before["first"] <= 1
    still = before["commit"] == after["commit"]
    for job, state in survey.states.items():
        last = survey.last.get(job)
        if job in survey.damaged:
            continue
        if last is None:
            if whole and still:
                survey.add("journal", "it has no event", job, ("index", job, b""))
        elif state.last_event == last[0] and last[1].state != state.state:
            survey.add("journal", f"its last event says {last[1].state}, and its state {state.state}", job)
        elif still and state.last_event != last[0]:
            survey.add("journal", "its state names another event as its last", job)
    if still:
        for job, (_, event, _) in survey.last.items():
            if event.state != lifecycle.State.GONE and job not in survey.states and job not in survey.damaged:
                survey.add("journal", "its last event says that it exists, and it does not", job, ("remove", job, b""))


# ── repairs ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_DONE = {
    "counters_row": "recounted",
    "orphan": "the row was removed",
    "remove": "the job was removed, with an event",
    "index": "its rows were rewritten from its state",
    "rebuild": "its state was rebuilt from its last event",
    "leases": "leases were recounted",
    "groups": "groups were recounted",
    "turn": "it has its turn again",
    "counters": "recounted",
    "note": "the note was removed",
    "forget": "it was forgotten",
    "due": "the next sweep checks it",
    "bucket": "it starts again, full",
}


def _repair(core: Core, survey: _Survey, found: _Found) -> str | None:
    if found.repair is None:
        return None
    what, job, argument = found.repair
    if what != "counters_row":
        last = survey.last.get(job)
        core.call_once(survey.shard.base, "repair", what, job, last[0] if last else 0, argument)
    return _DONE[what]


def _removed(core: Core, shard: Shard) -> int:
    """Return how many jobs have left, by the journal."""
    return sum(
        event.state == lifecycle.State.GONE and event.job != NO_ID
        for row in journal.rows_from(core, shard, 1)
        for event in row.events
    )
