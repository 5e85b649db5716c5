"""`check` verifies the store's invariants on a snapshot, in bounded memory.

1. A job is in exactly one state, and in exactly the index row of that state.                     `jobs`, `strays`
2. Every index row refers to a job in that state; every leased job names a lease that holds it.   `strays`, `leases`
3. A lease without open jobs has no row, and no row in `due`.                                     `leases`
4. Counters equal a recount.                                                                      `counters`
5. Conservation, per queue: enqueued = waiting + blocked + leased + done + dead + removed.        `counters`
6. The journal, as far back as it is kept, gives the same states as the tables.                   `journal`
7. A request's outcome has all its parts, and a row in `due` that ends it.                        `requests`
8. A rate's bucket belongs to a queue that has a rate, and is not overdrawn.                      `limits`
9. The usage counters of a tenant with a quota equal a recount over all its queues.               `quota_usage`
10. A queue that has waiting jobs has a place among those that take turns.                        `turns`
11. A job whose id does not hold its queue has a row in `job_queues`, and no other job has one.   `jobs`, `strays`
12. A group that has jobs has a row, correct counts, and a turn for each priority of its jobs.    `groups`
13. A blocked job's count of open parents is correct; rows that link two jobs belong to both.     `flows`
14. Steps and signals belong to a job whose state has the flag, can be read, and are counted.     `steps`
"""

from __future__ import annotations

from tenure.model.report import Finding, Report
from tenure.queueing.checking import (
    counters,
    flows,
    groups,
    jobs,
    journal,
    leases,
    limits,
    quota_usage,
    requests,
    segments,
    settings_rows,
    steps,
    strays,
    turns,
)
from tenure.queueing.checking.repair import mend
from tenure.queueing.checking.survey import Fault, Progress, Survey
from tenure.queueing.core import Core

#: Repairing one fault may reveal another (a rebuilt state needs its index row): at most this many passes are made.
_PASSES = 4
#: Rules whose faults are repaired by a recount, once the rows are consistent.
_RECOUNTED = (*counters.RULES, groups.RULE)


def check(core: Core, repair: bool, progress: Progress | None = None) -> Report:
    """Check all invariants; with `repair`, repair the faults. Returns what was found and repaired."""
    survey = look(core, progress)
    outcome: dict[Fault, str | None] = dict.fromkeys(survey.faults)
    if repair and outcome:
        _repair(core, survey, outcome)
    names = {queue.number: queue.name for queue in survey.queues.values()}
    findings = []
    for fault, done in outcome.items():
        name = names.get(fault.queue)
        findings.append(
            Finding(
                rule=fault.rule,
                detail=fault.detail,
                tenant=name.tenant if name else None,
                queue=name.queue if name else None,
                job_id=fault.job.hex() or None,
                repair=done,
            )
        )
    return Report(
        findings=findings,
        jobs=survey.jobs,
        events=survey.events,
        leases=survey.leases,
        queues=len(survey.queues),
        truncated=survey.truncated,
    )


def look(core: Core, progress: Progress | None = None) -> Survey:
    """Find all faults of the store, on one snapshot."""
    with core.engine.snapshot() as reader:
        survey = Survey(reader, progress)
        settings_rows.check_queues(survey)
        segments.check(survey)
        jobs.check(survey)
        leases.check(survey)
        requests.check(survey)
        strays.check(survey)
        flows.check(survey)
        steps.check(survey)
        counters.check(survey)
        quota_usage.check(survey)
        limits.check(survey, core.time.now_ms())
        turns.check(survey)
        groups.check(survey)
        settings_rows.check(survey)
        journal.check(survey)
        settings_rows.check_entries(survey)
    return survey


def _repair(core: Core, survey: Survey, outcome: dict[Fault, str | None]) -> None:
    """Repair rows until they are consistent, then recount the counters."""
    for _ in range(_PASSES):
        # A damaged counter is reset at once, since other repairs add to it; its value is checked at the end.
        todo = [f for f in survey.faults if f.mend and (f.rule not in _RECOUNTED or f.mend == "set_counter")]
        if not todo:
            break
        outcome.update(mend(core, todo))
        survey = look(core)
    recounted = mend(core, [fault for fault in survey.faults if fault.rule in _RECOUNTED])
    for fault in outcome:
        if fault.rule in _RECOUNTED and outcome[fault] is None:
            outcome[fault] = recounted.get(fault, "came right with the rest")
    outcome.update({fault: done for fault, done in recounted.items() if fault in outcome or len(outcome) < 1000})
