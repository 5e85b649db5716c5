"""Operations that produce, consume and read jobs, each carried out on a backend."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from tenure.contract.job_facts import read_facts
from tenure.contract.queue_infos import all_queues
from tenure.errors import Forbidden, NotFound, WaitTimeout
from tenure.model.event import EventPage
from tenure.model.explanation import Explanation
from tenure.model.explanation import explain as explained
from tenure.model.group import GroupPage
from tenure.model.ids import job_id_bytes
from tenure.model.job import Counts, Job, Page, ended_as
from tenure.model.lease import AnyQueues, ClaimRequest, Extended, Leased, Settle, any_queues, proof_of
from tenure.model.names import ANY_QUEUE, MAX_KEY_BYTES, JobName, QueueName, checked, short_text
from tenure.model.request import JobRequest, UpcomingRequest, unknown_parent
from tenure.model.step import checked_step
from tenure.protocol import messages as m
from tenure.protocol.calls import Call, Waiting
from tenure.protocol.problems import problem_of
from tenure.version import __version__

# ── produce ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def enqueue(call: Call) -> object:
    jobs = call.request
    if isinstance(jobs, m.JobBody):
        request = jobs.checked()
        if request.flow is not None:
            _check_flow(call, (request,))
        return call.backend.enqueue(call.name, (request,))[0]
    if not jobs:
        return []
    requests = m.job_requests(jobs)
    if type(requests) is list:
        _check_flow(call, requests)
    return call.backend.enqueue(call.name, requests)


def _check_flow(call: Call, jobs: Sequence[JobRequest]) -> None:
    """Check the queues and parents of jobs.

    Raises NotFound if a job goes to a queue that the token may not name, InvalidArgument if a parent is in one.
    """
    own, name = call.identity.queues, call.name
    for job in jobs:
        if job.flow is None:
            continue
        if job.flow.queue is not None:
            call.identity.queue(job.flow.queue, name.tenant)
        for parent in job.flow.after if own is not None else ():
            found = call.backend.find(parent) if isinstance(parent, bytes) else None
            if own is not None and found is not None and found.tenant == name.tenant and found.queue not in own:
                raise unknown_parent(parent)  # type: ignore[arg-type]  # bytes: it was found by them


def cancel(call: Call) -> m.Done:
    if not call.backend.cancel(call.name, call.job):
        raise NotFound("there is no such job, or it has ended")
    return m.Done()


# ── consume ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _names(call: Call) -> list[QueueName]:
    request = call.request
    if isinstance(request, m.ClaimSeveralBody):
        return list(dict.fromkeys(call.identity.queue(queue, call.tenant) for queue in request.queues))
    return [call.name]


def claim(call: Call) -> m.ClaimReply:
    request = call.request.checked()
    if request.wait_ms:
        request = msgspec.structs.replace(request, wait_ms=0)
    return m.ClaimReply.of(_claimer(call)(request), call.request.columns)


def _claimer(call: Call) -> Callable[[ClaimRequest], Leased | None]:
    """Return the backend's claim verb for this request, on the queues that the token may name."""
    if isinstance(call.request, m.ClaimAnyBody):
        among = _among(call)
        return lambda request: call.backend.claim_any(_own_claim(call, request), among)
    names = _names(call)
    return lambda request: call.backend.claim(names, request)


def _own_claim(call: Call, request: ClaimRequest) -> ClaimRequest:
    """Return the request with an id that includes the caller: a claim from any queue would else share ids between
    callers.
    """
    if request.id is None or call.sees_all:
        return request
    queues = ",".join(sorted(call.identity.queues or ()))
    return msgspec.structs.replace(request, id=f"{call.tenant}/{queues}/{request.id}")


def _among(call: Call) -> AnyQueues:
    body, own = call.request, call.identity.queues
    tenants = body.tenants
    if call.tenant is not None:
        if tenants is not None and set(tenants) != {call.tenant}:
            raise Forbidden("only an operator's token may name other tenants")
        tenants = [call.tenant]
    queues = own if body.queues is None else {checked("queue", name) for name in body.queues}
    if own is not None and queues is not None:
        queues = own & queues
    return any_queues(tenants, queues, body.weights, body.excluding or ())


def claim_waits(call: Call) -> Waiting | None:
    if not call.request.wait_ms:
        return None
    request = call.request.checked()
    names = (ANY_QUEUE,) if isinstance(call.request, m.ClaimAnyBody) else _names(call)
    now, columns = msgspec.structs.replace(request, wait_ms=0), call.request.columns
    claimed = _claimer(call)

    def look() -> m.ClaimReply | None:
        leased = claimed(now)
        return None if leased is None else m.ClaimReply.of(leased, columns)

    return Waiting(names, request.wait_ms, look, lambda left_ms: m.ClaimReply([], left_ms=left_ms))


def settle(call: Call) -> m.SettleReply:
    items = call.request.settles()
    if type(items) is list and any(item.then for item in items):
        _may_hand_over(call, items)
    outcomes = call.backend.settle(call.name, items)
    return m.SettleReply([None if error is None else problem_of(error) for error in outcomes])


def _may_hand_over(call: Call, items: Sequence[Settle]) -> None:
    """Raise Forbidden or NotFound if the caller may not add jobs to the queues that its items name."""
    if not call.identity.may("produce"):
        raise Forbidden("then adds jobs: that also needs the scope produce")
    _check_flow(call, [job for item in items for job in item.then or ()])


def extend(call: Call) -> Extended:
    lease = job_id_bytes(call.path["lease"])
    return call.backend.extend(call.name, lease, call.request.lease_ms)


def progress(call: Call) -> m.Done:
    request = call.request
    m.checked_text("note", request.note)
    call.backend.progress(call.name, proof_of(request.receipt), request.fraction, request.note)
    return m.Done()


def record_step(call: Call) -> m.StepValue:
    request = call.request
    step, value = checked_step("step", request.name, request.value)
    return m.StepValue(call.backend.record_step(call.name, proof_of(request.receipt), step, value))


def signal(call: Call) -> m.Given:
    name, payload = checked_step("signal", call.request.name, call.request.payload)
    return m.Given(call.backend.signal(call.name, call.job, name, payload))


# ── read ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def get(call: Call) -> Job:
    return _existing(call.backend.get(call.name, call.job))


def _existing(job: Job | None) -> Job:
    if job is None:
        raise NotFound("there is no such job")
    return job


def wait_for(call: Call) -> Job:
    return _existing(call.backend.wait_for(call.name, call.job, 0))


def wait_for_waits(call: Call) -> Waiting | None:
    if not call.request.timeout_ms:
        return None
    last: Job | None = None

    def look() -> Job | None:
        nonlocal last
        found = call.backend.get(call.name, call.job)
        if found is None:
            return _existing(None if last is None else _ended(call, last))
        if found.state in ("done", "dead"):
            return found
        last = found
        return None

    def end(left_ms: int) -> object:
        raise WaitTimeout(call.job.hex(), call.request.timeout_ms / 1000)

    return Waiting((JobName(call.name, call.job),), call.request.timeout_ms, look, end)


def _ended(call: Call, last: Job) -> Job:
    """Return the final state of a removed job: done and not kept, or cancelled, as its last event says."""
    events = call.backend.timeline(call.name, call.job)
    gone = events[-1] if events and events[-1].state == "gone" else None
    state = "done" if gone is not None and gone.type == "done" else "removed"
    return ended_as(last, state, call.backend.now_ms() if gone is None else gone.time_ms)


def list_jobs(call: Call) -> Page:
    query = call.request
    return call.backend.list(call.name, query.state, query.limit, query.cursor)


def groups(call: Call) -> GroupPage:
    return call.backend.groups(call.name, call.request.limit, call.request.cursor)


def holder(call: Call) -> m.KeyHolder:
    found = call.backend.holder(call.name, short_text("key", call.request.key, MAX_KEY_BYTES))
    if found is None:
        raise NotFound("no job holds that key")
    return m.KeyHolder(found.hex())


def timeline(call: Call) -> m.EventList:
    events = call.backend.timeline(call.name, call.job)
    if not events:
        raise NotFound("there is no such job, or its events have been trimmed")
    return m.EventList(events)


def parents(call: Call) -> m.ParentList:
    """Return a page of parents, hiding result and error of those in queues that the token may not name."""
    query = call.request
    found = call.backend.parents(call.name, call.job, query.begin, query.limit)
    tenant = call.name.tenant
    return m.ParentList([
        parent if call.sees(tenant, parent.queue) else msgspec.structs.replace(parent, result=None, error=None)
        for parent in found
    ])  # fmt: skip


def children(call: Call) -> m.ChildList:
    return m.ChildList(call.backend.children(call.name, call.job, call.request.limit))


def steps(call: Call) -> m.StepList:
    return m.StepList(call.backend.steps(call.name, call.job))


def explain(call: Call) -> Explanation:
    """Explain a job from facts of its own queue only, because the caller may not see others."""
    explanation = explained(read_facts(call.backend, call.name, call.job))
    if explanation is None:
        raise NotFound("there is no such job, or its events have been trimmed")
    return explanation


def counts(call: Call) -> Counts:
    return call.backend.counts(call.name)


def queues(call: Call) -> m.QueueList:
    if call.identity.queues is None:
        page = call.backend.queues(call.tenant, call.request.limit, call.request.cursor)
        return m.QueueList([m.QueueBody.of(info) for info in page.queues], page.cursor)
    # One page with the few queues that the token names: a cursor would name a queue that it may not know.
    infos = all_queues(call.backend, call.tenant)
    return m.QueueList([m.QueueBody.of(info) for info in infos if call.sees(info.tenant, info.queue)])


def find(call: Call) -> Job:
    """Return the job; NotFound if it belongs to another tenant, or to a queue that the token may not name."""
    job = call.backend.find(call.job)
    return _existing(job if job is not None and call.sees(job.tenant, job.queue) else None)


def _selected_queues(call: Call) -> Collection[str] | None:
    """Return the queues that a list shows, limited to those that the token may name."""
    requested, own = call.request.queues, call.identity.queues
    if requested is None:
        return own
    names = {checked("queue", name) for name in requested.split(",")}
    return names if own is None else names & own


def list_all(call: Call) -> Page:
    query = call.request
    return call.backend.list_all(query.state, query.limit, query.cursor, call.tenant, _selected_queues(call))


def upcoming(call: Call) -> Page:
    query = call.request
    bounds = query.before_ms, query.after_ms, query.limit, query.cursor
    return call.backend.upcoming(UpcomingRequest(*bounds, call.tenant, _selected_queues(call)))


#: The most events of one answer; the caller continues with the answer's cursor.
_EVENTS = 10_000
#: How many events of all tenants are searched for one tenant's before the answer is sent.
_SEARCHED = 10_000
_SEARCH_PAGE = 1_000
#: How often a waiting request continues the search before it is answered with a cursor.
_LOOKS = 10


def events(call: Call) -> EventPage:
    return _page(call, call.request.after, call.request.consumer)


def _page(call: Call, after: str | None, consumer: str | None) -> EventPage:
    """Return the caller's events after `after`.

    The cursor of an empty page has moved on if other tenants' events were skipped.
    """
    limit = call.request.limit
    if consumer is not None:
        if not call.identity.may("operator"):
            raise Forbidden("a named consumer delays the trimming of the journal: that needs the scope operator")
        checked("consumer", consumer)
    if call.sees_all:
        return call.backend.events(after, min(limit, _EVENTS), 0, consumer)
    for _ in range(_SEARCHED // _SEARCH_PAGE):
        page = call.backend.events(after, _SEARCH_PAGE, 0, consumer)
        mine = [place for place, event in enumerate(page.events) if call.sees(event.tenant, event.queue)]
        if len(mine) > limit:  # the cursor must be the one after the last event returned
            page = call.backend.events(after, mine[limit - 1] + 1, 0, None)
            mine = mine[:limit]
        if mine or not page.events:
            return EventPage([page.events[place] for place in mine], page.cursor)
        after, consumer = page.cursor, None
    return EventPage([], after or "")


def newest_events(call: Call) -> EventPage:
    """Return the store's last events, limited to those that the caller may see."""
    limit = call.request.limit
    page = call.backend.newest_events(limit if call.sees_all else max(limit, _SEARCH_PAGE))
    return EventPage([e for e in page.events if call.sees(e.tenant, e.queue)][-limit:], page.cursor)


def events_waits(call: Call) -> Waiting | None:
    query = call.request
    if not query.wait_ms:
        return None
    after, consumer = query.after, query.consumer
    page = EventPage([], "")

    def look() -> EventPage | None:
        """Continue after the skipped events. A caller whose events are far ahead gets an empty page with a cursor."""
        nonlocal after, consumer, page
        for _ in range(_LOOKS):
            page = _page(call, after, consumer)
            consumer = None  # registered by the first look
            if page.events:
                return page
            if page.cursor == after:
                return None
            after = page.cursor
        return page

    return Waiting((None,), query.wait_ms, look, lambda left_ms: page)


def call_off(call: Call) -> m.Done:
    """Cancel a waiting request. Only its own caller may, with the scope that the request needed."""
    from tenure.protocol.operations import OPERATIONS

    identity = call.identity
    if not call.in_flight.call_off(
        call.tenant, identity.subject, call.path["request"], lambda name: identity.may(OPERATIONS[name].scope)
    ):
        raise NotFound("no request of that id waits")
    return m.Done()


def store(call: Call) -> m.StoreInfo:
    backend = call.backend
    return m.StoreInfo(backend.traits, backend.now_ms(), backend.clock_drift_ms(), __version__)
