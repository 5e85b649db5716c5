"""The facts of an explanation, read from any backend by a few of its verbs, each of them bounded."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.contract.backend import Backend
from tenure.errors import TenureError
from tenure.model.event import Event
from tenure.model.explanation import Facts
from tenure.model.group import GroupInfo
from tenure.model.job import Job
from tenure.model.names import QueueName
from tenure.model.retry import Policy

#: Ready jobs that are looked through for the place of one.
_LOOKED_AT = 100
#: Events, the newest of the journal, that are searched for a queue's last claim and for extensions of a lease.
SEARCHED = 2_000
#: Groups that are looked through for a job's own.
_GROUPS = 1_000


def read_facts(backend: Backend, name: QueueName, job: bytes) -> Facts:
    """What `model.explanation.explain` needs to know of a job."""
    shown, newest = backend.get(name, job), newest_events(backend)
    info = next((one for one in backend.queues(name.tenant) if one.queue == name.queue), None)
    ahead, at_least = None, False
    claim, since_ms = None, None
    parents = backend.parents(name, job, 0, _LOOKED_AT) if shown is not None and shown.state == "blocked" else []
    if shown is not None and shown.state == "ready":
        ahead, at_least = _place(backend, name, shown.id)
        claim, since_ms = _last_claim(newest, name)
    policy = backend.policy(name)
    return Facts(
        now_ms=backend.now_ms(),
        job=shown,
        events=with_extensions(backend.timeline(name, job), newest),
        policy=policy,
        paused=info is not None and info.paused,
        counts=None if info is None else info.counts,
        ahead=ahead,
        ahead_at_least=at_least,
        last_claim=claim,
        claims_since_ms=since_ms,
        group=None if shown is None else _group(backend, name, shown, policy),
        parents=parents,
        parents_at_least=len(parents) == _LOOKED_AT,
    )


def _group(backend: Backend, name: QueueName, job: Job, policy: Policy) -> GroupInfo | None:
    """The group of a ready job, where a limit may keep it from being claimed."""
    if job.group is None or job.state != "ready" or not policy.of_group(job.group).limited:
        return None
    return next((one for one in backend.groups(name, _GROUPS, None).groups if one.group == job.group), None)


def _place(backend: Backend, name: QueueName, job_id: str) -> tuple[int, bool]:
    """How many ready jobs are before it, and whether there may be more."""
    page = backend.list(name, "ready", _LOOKED_AT, None)
    for place, other in enumerate(page.jobs):
        if other.id == job_id:
            return place, False
    return len(page.jobs), True


def newest_events(backend: Backend) -> Sequence[Event]:
    """Oldest first; none where the journal cannot be read, which leaves the rest of an explanation whole."""
    try:
        return backend.newest_events(SEARCHED).events
    except TenureError:
        return ()


def with_extensions(events: Sequence[Event], newest: Sequence[Event]) -> list[Event]:
    """A job's events, and among them those of the newest by which its leases were extended: they name no job."""
    leases = {event.lease_id for event in events if event.type == "claimed"}
    extended = [event for event in newest if event.type == "extended" and event.lease_id in leases]
    return sorted([*events, *extended], key=lambda event: (event.commit, event.index)) if extended else list(events)


def _last_claim(newest: Sequence[Event], name: QueueName) -> tuple[Event | None, int | None]:
    """The queue's newest claim; and, where there is none, the time of the oldest event that was looked at."""
    for event in reversed(newest):
        if event.type == "claimed" and event.queue == name.queue and event.tenant == name.tenant:
            return event, None
    return None, newest[0].time_ms if newest else None
