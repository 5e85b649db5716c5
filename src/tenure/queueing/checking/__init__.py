"""`check`: verifies the invariants on a snapshot of the store, in bounded memory.

1. A job is in exactly one state, and in exactly the index row of that state.                     `jobs`, `strays`
2. Every index row points at a job in that state; every leased job names a lease that holds it.   `strays`, `leases`
3. A lease with no open job has no row left, and nothing due.                                     `leases`
4. Counters equal a recount.                                                                      `counters`
5. Conservation, per queue: enqueued = waiting + blocked + leased + done + dead + removed.        `counters`
6. The journal, as far back as it is kept, leads to the same states as the tables.                `journal`
7. A request's outcome is kept whole, and is due to be forgotten.                                 `requests`
8. A rate's bucket belongs to a queue that has a rate, and is not overdrawn.                      `limits`
9. What a tenant with a quota has waiting is counted right, and so is every queue of it.          `quota_usage`
10. A queue that has waiting jobs has a place among those that take turns.                        `turns`
12. A group that has jobs has its row, its counts, and a turn for each priority of them.          `groups`
13. A blocked job waits for as many jobs as it says; rows that join two jobs belong to both.      `flows`
14. Steps and signals belong to a job that knows of them, can be read, and are counted right.     `steps`
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

#: Repairing one fault may show another (a rebuilt state needs its index row): the check runs this many times at most.
_PASSES = 4
#: What is set right by counting, once the rows hold together.
_RECOUNTED = (*counters.RULES, groups.RULE)


def check(core: Core, repair: bool, progress: Progress | None = None) -> Report:
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
    """Everything that is wrong with one moment of the store."""
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
    """Rows first, until they hold together; then the numbers, counted anew."""
    for _ in range(_PASSES):
        # A damaged counter is set right at once, for others to count on; whether it fits is seen at the end.
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
