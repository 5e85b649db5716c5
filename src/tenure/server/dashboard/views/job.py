"""job: one job with its payload, result, timeline, explanation, steps, parents and children."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from tenure.contract.backend import Backend
from tenure.contract.job_facts import read_facts
from tenure.errors import InvalidArgument, NotFound
from tenure.model.durations import as_datetime
from tenure.model.event import Event
from tenure.model.explanation import Explanation, explain, utc
from tenure.model.ids import job_id_bytes
from tenure.model.names import QueueName
from tenure.model.step import StepKind
from tenure.server.dashboard.views.content import Content, content
from tenure.server.dashboard.views.jobs import Brief, brief, preview
from tenure.server.dashboard.views.viewer import ROWS, Text, Viewer

_EVENTS = 300
#: How many parents, and how many children, are shown.
_RELATIVES = 20


class JobQuery(Struct, forbid_unknown_fields=True):
    queue: Text
    id: Text
    tenant: Text = ""


class Relative(Struct):
    """A parent or a child of a job."""

    id: str
    queue: str
    state: str


class StepRow(Struct):
    """A step that the handler stored, or a signal that was sent."""

    name: str
    kind: StepKind
    stored_at_ms: int
    bytes: int
    preview: str


class JobView(Struct):
    """A job; `job` is None if it was removed and only the journal knows it."""

    job: Brief | None
    payload: Content | None
    result: Content | None
    headers: dict[str, str]
    error: str | None
    reason: str | None
    replays: int
    lease_id: str | None
    progress_note: str | None
    due_at_ms: int | None
    events: list[Event]
    #: How many older events are not shown.
    events_left_out: int
    explanation: Explanation
    #: The first ones; the flow's page has all.
    parents: list[Relative]
    children: list[Relative]
    #: The first ones, in the order in which they were stored.
    steps: list[StepRow]


def show(viewer: Viewer, query: JobQuery) -> JobView:
    name = viewer.name(query.tenant, query.queue)
    try:
        job_id = job_id_bytes(query.id)
    except InvalidArgument:
        raise NotFound("there is no such job") from None
    facts = read_facts(viewer.backend, name, job_id)
    explanation = explain(facts, _time_formatter(facts.now_ms))
    if explanation is None:
        raise NotFound("there is no such job, or its events have been trimmed")
    found = facts.job
    parents = [] if found is None else viewer.backend.parents(name, job_id, 0, _RELATIVES)
    children = [] if found is None else viewer.backend.children(name, job_id, _RELATIVES)
    return JobView(
        job=None if found is None else brief(found),
        payload=None if found is None else content(found.payload),
        result=None if found is None or found.result is None else content(found.result),
        headers={} if found is None else found.headers,
        error=None if found is None else found.error,
        reason=None if found is None else found.reason,
        replays=0 if found is None else found.replays,
        lease_id=None if found is None else found.lease_id,
        progress_note=None if found is None else found.progress_note,
        due_at_ms=None if found is None else found.due_at_ms,
        events=list(facts.events[-_EVENTS:]),
        events_left_out=max(0, len(facts.events) - _EVENTS),
        explanation=explanation,
        parents=[Relative(one.id, one.queue, one.state) for one in parents],
        children=[Relative(one.id, one.queue, one.state) for one in children],
        steps=[] if found is None else _steps(viewer.backend, name, job_id),
    )


def _steps(backend: Backend, name: QueueName, job: bytes) -> list[StepRow]:
    return [
        StepRow(step.name, step.kind, step.stored_at_ms, len(step.value), preview(step.value))
        for step in backend.steps(name, job)[:ROWS]
    ]


def _time_formatter(now_ms: int) -> Callable[[int], str]:
    """Return a formatter for times: UTC, with the date unless it is today's."""
    today = as_datetime(now_ms).date()

    def format_time(ms: int) -> str:
        return f"{as_datetime(ms):%H:%M:%S} UTC" if as_datetime(ms).date() == today else utc(ms)

    return format_time
