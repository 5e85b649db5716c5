"""jobs: the jobs of a queue by state, searched by id, key, error and time.

A search reads up to SEARCHED jobs for up to SEARCH_S seconds, reports it, and returns a cursor to continue from.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Annotated

from msgspec import Meta, Struct

from tenure.contract.backend import Backend
from tenure.errors import InvalidArgument
from tenure.model.explanation import headline
from tenure.model.ids import job_id_bytes
from tenure.model.job import Job, Page
from tenure.model.names import QueueName
from tenure.protocol.messages.base import State
from tenure.server.dashboard.views.content import content
from tenure.server.dashboard.views.viewer import ROWS, Text, Viewer

SEARCHED = 2_000
SEARCH_S = 0.3
_PAGE_SIZE = 100
#: Characters of a payload in a list.
PREVIEW = 120


class JobsQuery(Struct, forbid_unknown_fields=True):
    queue: Text
    tenant: Text = ""
    state: State = "ready"
    cursor: Annotated[str, Meta(max_length=512)] = ""
    #: A job's id, its idempotency key, a part of its last error; the times between which it was created, or ended.
    id: Text = ""
    key: Annotated[str, Meta(max_length=1024)] = ""
    error: Annotated[str, Meta(max_length=1024)] = ""
    since_ms: int = 0
    before_ms: int = 0

    @property
    def searches(self) -> bool:
        return bool(self.key or self.error or self.since_ms or self.before_ms)

    def fits(self, job: Job) -> bool:
        at = job.ended_at_ms or job.created_at_ms
        return (
            (not self.key or job.key == self.key)
            and (not self.error or self.error.lower() in (job.error or "").lower())
            and (not self.since_ms or at >= self.since_ms)
            and (not self.before_ms or at < self.before_ms)
        )


class Brief(Struct, omit_defaults=True):
    """A job in a list."""

    id: str
    tenant: str
    queue: str
    state: str
    attempt: int
    max_attempts: int
    priority: int
    token: int
    created_at_ms: int
    visible_at_ms: int
    bytes: int
    preview: str
    ended_at_ms: int | None = None
    key: str | None = None
    error: str | None = None
    worker: str | None = None
    lease_until_ms: int | None = None
    progress: float | None = None
    group: str | None = None


class JobsView(Struct):
    jobs: list[Brief]
    cursor: str | None
    #: How many jobs were read; None: nothing was searched for.
    looked_at: int | None = None


def show(viewer: Viewer, query: JobsQuery) -> JobsView:
    name = viewer.name(query.tenant, query.queue)
    viewer.info(name)
    if query.id:
        try:
            found = viewer.backend.get(name, job_id_bytes(query.id.strip().lower()))
        except InvalidArgument:
            found = None
        return JobsView(jobs=[] if found is None else [brief(found)], cursor=None, looked_at=1)
    if not query.searches:
        page = viewer.backend.list(name, query.state, ROWS // 2, query.cursor or None)
        return JobsView(jobs=[brief(job) for job in page.jobs], cursor=page.cursor)
    fitting: list[Brief] = []
    cursor, looked_at = query.cursor or None, 0
    for page in pages(viewer.backend, name, query.state, cursor):
        looked_at, cursor = looked_at + len(page.jobs), page.cursor
        fitting += [brief(job) for job in page.jobs if query.fits(job)]
        if len(fitting) >= ROWS // 2:
            break
    return JobsView(jobs=fitting, cursor=cursor, looked_at=looked_at)


def pages(backend: Backend, name: QueueName, state: str, cursor: str | None) -> Iterator[Page]:
    """Yield pages of a list until SEARCHED jobs were read, or SEARCH_S seconds have passed."""
    began, looked_at = perf_counter(), 0
    while True:
        page = backend.list(name, state, _PAGE_SIZE, cursor)
        yield page
        looked_at, cursor = looked_at + len(page.jobs), page.cursor
        if cursor is None or looked_at >= SEARCHED or perf_counter() - began > SEARCH_S:
            return


def brief(job: Job) -> Brief:
    return Brief(
        id=job.id,
        tenant=job.tenant,
        queue=job.queue,
        state=job.state,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        priority=job.priority,
        token=job.token,
        created_at_ms=job.created_at_ms,
        visible_at_ms=job.visible_at_ms,
        bytes=len(job.payload),
        preview=preview(job.payload),
        ended_at_ms=job.ended_at_ms,
        key=job.key,
        error=headline(job.error) if job.error else None,
        worker=job.worker,
        lease_until_ms=job.lease_until_ms,
        progress=job.progress,
        group=job.group,
    )


def preview(payload: bytes) -> str:
    shown = content(payload[: PREVIEW * 4])
    text = payload[:32].hex(" ") if shown.text is None else shown.text
    return text[:PREVIEW] + ("…" if len(payload) > PREVIEW * 4 or len(text) > PREVIEW else "")
