"""overview: tenants and queues with their counts, a page of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

from tenure.model.job import QueueInfo
from tenure.model.names import QueueName
from tenure.server.dashboard.history import History, Minute
from tenure.server.dashboard.views.viewer import ROWS, Text, Viewer


class OverviewQuery(Struct, forbid_unknown_fields=True):
    tenant: Text = ""
    filter: Text = ""
    page: Annotated[int, Meta(ge=0, le=10_000)] = 0


class QueueRow(Struct, omit_defaults=True):
    tenant: str
    queue: str
    paused: bool
    scheduled: int
    ready: int
    blocked: int
    leased: int
    dead: int
    #: Whether `ready` is a lower bound, and `scheduled` the rest.
    at_least: bool = False
    oldest_at_ms: int | None = None
    #: Jobs a second, over the last minute.
    rate_in: float | None = None
    rate_out: float | None = None
    #: Jobs in and out in each of the last minutes, oldest first.
    ins: list[int] = []
    outs: list[int] = []


class Totals(Struct):
    queues: int
    scheduled: int
    ready: int
    blocked: int
    leased: int
    dead: int


class Overview(Struct):
    rows: list[QueueRow]
    totals: Totals
    #: All tenants that the caller may see, up to ROWS of them.
    tenants: list[str]
    #: How many queues match the filter, and how many are on a page.
    found: int
    per_page: int
    since_ms: int | None


def show(viewer: Viewer, query: OverviewQuery) -> Overview:
    infos = list(viewer.infos(query.tenant))
    wanted = query.filter.lower()
    found = [info for info in infos if wanted in info.queue.lower() or wanted in info.tenant.lower()]
    found.sort(key=_busiest_first)
    now_ms = viewer.backend.now_ms()
    page = found[query.page * ROWS : (query.page + 1) * ROWS]
    tenants = sorted({info.tenant for info in viewer.infos()})
    return Overview(
        rows=[queue_row(viewer.history, info, now_ms) for info in page],
        totals=Totals(
            queues=len(infos),
            scheduled=sum(info.counts.scheduled for info in infos),
            ready=sum(info.counts.ready for info in infos),
            blocked=sum(info.counts.blocked for info in infos),
            leased=sum(info.counts.leased for info in infos),
            dead=sum(info.counts.dead for info in infos),
        ),
        tenants=tenants[:ROWS],
        found=len(found),
        per_page=ROWS,
        since_ms=viewer.history.since_ms,
    )


def _busiest_first(info: QueueInfo) -> tuple[int, str, str]:
    """Sort by order of magnitude, so that rows do not change places with every job."""
    jobs = info.counts.waiting + info.counts.blocked + info.counts.leased + info.counts.dead
    return -len(str(jobs)) if jobs else 0, info.tenant, info.queue


def queue_row(history: History, info: QueueInfo, now_ms: int) -> QueueRow:
    queue_history, counts = history.of(QueueName(info.tenant, info.queue)), info.counts
    rate_in, rate_out = (None, None) if queue_history is None else queue_history.rates(info, now_ms)
    ins, outs = moved(() if queue_history is None else list(queue_history.minutes), now_ms)
    return QueueRow(
        tenant=info.tenant,
        queue=info.queue,
        paused=info.paused,
        scheduled=counts.scheduled,
        ready=counts.ready,
        blocked=counts.blocked,
        leased=counts.leased,
        dead=counts.dead,
        at_least=counts.at_least,
        oldest_at_ms=info.oldest_at_ms,
        rate_in=None if rate_in is None else round(rate_in, 2),
        rate_out=None if rate_out is None else round(rate_out, 2),
        ins=ins,
        outs=outs,
    )


def moved(minutes: Iterable[Minute], now_ms: int) -> tuple[list[int], list[int]]:
    """Return jobs in and out for each minute of the last hour; 0 if nothing was counted."""
    first = now_ms // 60_000 - 59
    ins, outs = [0] * 60, [0] * 60
    before: Minute | None = None
    for minute in minutes:
        if before is not None and minute.minute >= first:
            ins[minute.minute - first] = max(0, minute.enqueued - before.enqueued)
            outs[minute.minute - first] = max(0, minute.out - before.out)
        before = minute
    return ins, outs
