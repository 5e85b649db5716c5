"""flow: the graph of jobs that a job is part of, laid out in layers from left to right.

A job's layer is one more than the highest of its parents'. Within a layer, jobs are near their parents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from graphlib import TopologicalSorter

from msgspec import Struct

from tenure.contract.flow_graph import FlowJob, read_flow
from tenure.errors import InvalidArgument, NotFound
from tenure.model.explanation import headline
from tenure.model.ids import job_id_bytes
from tenure.model.names import QueueName
from tenure.server.dashboard.views.job import JobQuery
from tenure.server.dashboard.views.viewer import Viewer

#: How many jobs are read. A larger flow is shown as counts over this many.
JOBS = 300


class FlowNode(Struct, omit_defaults=True):
    id: str
    queue: str
    state: str
    layer: int
    #: Its position in the layer, from 0.
    place: int
    #: Ids of the parents in the picture.
    parents: list[str]
    attempt: int = 0
    created_at_ms: int | None = None
    ended_at_ms: int | None = None
    error: str | None = None
    #: Whether the caller may open its page: the job exists, in a queue that the token may name.
    linked: bool = False


class FlowCount(Struct):
    queue: str
    state: str
    jobs: int


class FlowView(Struct):
    """A flow. `nodes` is empty if `more` is true: there are too many to draw."""

    nodes: list[FlowNode]
    counts: list[FlowCount]
    jobs: int
    more: bool


def show(viewer: Viewer, query: JobQuery) -> FlowView:
    name = viewer.name(query.tenant, query.queue)
    try:
        job = viewer.backend.get(name, job_id_bytes(query.id))
    except InvalidArgument:
        job = None
    if job is None:
        raise NotFound("there is no such job")
    found, more = read_flow(viewer.backend, job, JOBS, children=True)
    counts = Counter((one.queue, one.state) for one in found.values())
    return FlowView(
        nodes=[] if more else _nodes(viewer, found),
        counts=[FlowCount(queue, state, jobs) for (queue, state), jobs in sorted(counts.items())],
        jobs=len(found),
        more=more,
    )


def _nodes(viewer: Viewer, found: Mapping[str, FlowJob]) -> list[FlowNode]:
    parents = {one.id: [parent for parent in one.parents if parent in found] for one in found.values()}
    nodes = []
    for one, (layer, place) in layout(parents).items():
        job, flow_job = found[one].job, found[one]
        visible = viewer.identity.sees(flow_job.tenant, QueueName(flow_job.tenant, flow_job.queue))
        nodes.append(
            FlowNode(
                id=one,
                queue=flow_job.queue,
                state=flow_job.state,
                layer=layer,
                place=place,
                parents=parents[one],
                attempt=0 if job is None else job.attempt,
                created_at_ms=None if job is None else job.created_at_ms,
                ended_at_ms=None if job is None else job.ended_at_ms,
                error=headline(job.error) if job is not None and job.error and visible else None,
                linked=job is not None and visible,
            )
        )
    return nodes


def layout(parents: Mapping[str, list[str]]) -> dict[str, tuple[int, int]]:
    """Return layer and position of each job, ordered by both. `parents` has an entry for every job that it names."""
    layers: dict[str, int] = {}
    for job in TopologicalSorter(parents).static_order():
        layers[job] = max((layers[parent] + 1 for parent in parents[job]), default=0)
    order = {job: at for at, job in enumerate(sorted(parents))}  # ids grow with time: the oldest first
    placed: dict[str, tuple[int, int]] = {}
    for layer in range(max(layers.values(), default=-1) + 1):

        def near(job: str) -> tuple[float, int]:
            places = [placed[parent][1] for parent in parents[job]]
            return (sum(places) / len(places) if places else 0.0), order[job]

        for place, job in enumerate(sorted((job for job in layers if layers[job] == layer), key=near)):
            placed[job] = layer, place
    return placed
