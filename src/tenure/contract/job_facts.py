"""Read the facts for an explanation from any backend, with a bounded number of calls."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.contract.backend import Backend
from tenure.contract.queue_infos import queue_info
from tenure.errors import TenureError
from tenure.model.event import Event
from tenure.model.explanation import Facts
from tenure.model.group import GroupInfo
from tenure.model.job import Job
from tenure.model.names import QueueName
from tenure.model.retry import Policy

#: How many ready jobs are read to find a job's position.
_READ_LIMIT = 100
#: How many of the newest events are searched for the queue's last claim and for lease extensions.
SEARCHED_EVENTS = 2_000
#: How many groups are read to find a job's own.
_GROUP_LIMIT = 1_000


def read_facts(backend: Backend, name: QueueName, job: bytes) -> Facts:
    """Read the facts that `model.explanation.explain` needs about a job."""
    shown, newest = backend.get(name, job), newest_events(backend)
    info = queue_info(backend, name)
    ahead, at_least = None, False
    claim, since_ms = None, None
    parents = backend.parents(name, job, 0, _READ_LIMIT) if shown is not None and shown.state == "blocked" else []
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
        parents_at_least=len(parents) == _READ_LIMIT,
    )


def _group(backend: Backend, name: QueueName, job: Job, policy: Policy) -> GroupInfo | None:
    """Return the group of a ready job, if a limit may keep it from being claimed."""
    if job.group is None or job.state != "ready" or not policy.of_group(job.group).limited:
        return None
    return next((one for one in backend.groups(name, _GROUP_LIMIT, None).groups if one.group == job.group), None)


def _place(backend: Backend, name: QueueName, job_id: str) -> tuple[int, bool]:
    """Return how many ready jobs are before it, and whether there may be more."""
    page = backend.list(name, "ready", _READ_LIMIT, None)
    for place, other in enumerate(page.jobs):
        if other.id == job_id:
            return place, False
    return len(page.jobs), True


def newest_events(backend: Backend) -> Sequence[Event]:
    """Return the newest events, oldest first; none if the journal cannot be read, so that explanations still work."""
    try:
        return backend.newest_events(SEARCHED_EVENTS).events
    except TenureError:
        return ()


def with_extensions(events: Sequence[Event], newest: Sequence[Event]) -> list[Event]:
    """Return a job's events merged with the extensions of its leases, which name no job, from the newest events."""
    leases = {event.lease_id for event in events if event.type == "claimed"}
    extended = [event for event in newest if event.type == "extended" and event.lease_id in leases]
    return sorted([*events, *extended], key=lambda event: (event.commit, event.index)) if extended else list(events)


def _last_claim(newest: Sequence[Event], name: QueueName) -> tuple[Event | None, int | None]:
    """Return the queue's newest claim; if there is none, the time of the oldest event searched."""
    for event in reversed(newest):
        if event.type == "claimed" and event.queue == name.queue and event.tenant == name.tenant:
            return event, None
    return None, newest[0].time_ms if newest else None
