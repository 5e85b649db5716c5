"""What each page shows, as structs that become JSON: read from a backend, for one caller, at a bounded cost.

    me         who is signed in, and what its scopes allow
    overview   tenants and queues in numbers, a page of them
    queue      one queue: numbers, policy, the last hour
    jobs       jobs of a queue by state, searched by id, key, error and time
    job        one job: payload, result, timeline, explanation
    dead       dead letters of a queue, grouped by cause
    workers    who holds what, and who claimed lately
    upcoming   the next scheduled jobs

A search looks at SEARCHED jobs or for SEARCH_S seconds, whichever is less, and says so, with a cursor to go on from.
Times are milliseconds since 1970; ages are the page's to work out, so that nothing changes while nothing happens.
Another tenant's queue or job is answered like an unknown one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from tenure.contract.backend import Backend
from tenure.contract.job_facts import read_facts
from tenure.errors import Forbidden, InvalidArgument, NotFound
from tenure.model.durations import as_datetime
from tenure.model.event import Event
from tenure.model.explanation import Explanation, explain, headline, utc
from tenure.model.ids import created_ms, job_id_bytes
from tenure.model.job import Job, QueueInfo
from tenure.model.names import QueueName
from tenure.model.request import UpcomingRequest
from tenure.model.retry import Policy
from tenure.protocol.identity import Identity
from tenure.protocol.messages.base import State
from tenure.server.dashboard.causes import Cause, causes_of
from tenure.server.dashboard.history import History, Minute, WorkerSeen
from tenure.version import __version__

#: Rows of a page.
ROWS = 100
SEARCHED = 2_000
SEARCH_S = 0.3
_AT_ONCE = 100
#: Bytes of a payload or a result that are shown, as text and in hex.
TEXT_BYTES = 64 * 1024
HEX_BYTES = 4 * 1024
_PREVIEW = 120
_EVENTS = 300
_LEASES = 500

Text = Annotated[str, Meta(max_length=256)]


class Viewer(NamedTuple):
    """Who looks, and at what."""

    backend: Backend
    history: History
    identity: Identity
    #: Whether the caller signed in, and can sign out.
    signed_in: bool
    #: Numbers of queues have to be read after this moment (`History.moment`); None: a recent reading does.
    after: int | None = None

    def tenant(self, named: str) -> str | None:
        """The tenant that a query means; None: all, which an operator sees. Raises NotFound."""
        try:
            return self.identity.acting(named or None)
        except Forbidden:
            raise NotFound("there is no such tenant for this token") from None

    def name(self, tenant: str, queue: str) -> QueueName:
        """Raises NotFound, InvalidArgument."""
        return self.identity.queue(queue, self.tenant(tenant))

    def infos(self, tenant: str = "") -> Iterator[QueueInfo]:
        acting = self.tenant(tenant)
        for info in self.history.infos(self.after):
            if self.identity.sees(acting, QueueName(info.tenant, info.queue)):
                yield info

    def info(self, name: QueueName) -> QueueInfo:
        """Raises NotFound. A queue that is newer than the last reading is looked for in the store."""
        found = _named(self.history.infos(self.after), name) or _named(self.backend.queues(name.tenant), name)
        if found is not None:
            return found
        raise NotFound(f"there is no queue {name.queue!r}")


def _named(infos: Sequence[QueueInfo], name: QueueName) -> QueueInfo | None:
    return next((info for info in infos if info.tenant == name.tenant and info.queue == name.queue), None)


# ── me ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Me(Struct):
    subject: str
    tenant: str
    operator: bool
    may_mend: bool
    may_produce: bool
    signed_in: bool
    version: str
    now_ms: int


class NoQuery(Struct, forbid_unknown_fields=True):
    pass


def me(viewer: Viewer, query: NoQuery) -> Me:
    identity = viewer.identity
    return Me(
        subject=identity.subject,
        tenant=identity.tenant,
        operator=identity.operator,
        may_mend=identity.may("admin"),
        may_produce=identity.may("produce"),
        signed_in=viewer.signed_in,
        version=__version__,
        now_ms=viewer.backend.now_ms(),
    )


# ── overview ─────────────────────────────────────────────────────────────────────────────────────────────────────────


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
    leased: int
    dead: int
    #: `ready` is a lower bound, and `scheduled` the rest.
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
    leased: int
    dead: int


class Overview(Struct):
    rows: list[QueueRow]
    totals: Totals
    #: All tenants that the caller sees, up to ROWS of them.
    tenants: list[str]
    #: Queues that the filter lets through, and how many are on a page.
    found: int
    per_page: int
    since_ms: int | None


def overview(viewer: Viewer, query: OverviewQuery) -> Overview:
    infos = list(viewer.infos(query.tenant))
    wanted = query.filter.lower()
    found = [info for info in infos if wanted in info.queue.lower() or wanted in info.tenant.lower()]
    found.sort(key=_busiest_first)
    now_ms = viewer.backend.now_ms()
    page = found[query.page * ROWS : (query.page + 1) * ROWS]
    tenants = sorted({info.tenant for info in viewer.infos()})
    return Overview(
        rows=[_queue_row(viewer.history, info, now_ms) for info in page],
        totals=Totals(
            queues=len(infos),
            scheduled=sum(info.counts.scheduled for info in infos),
            ready=sum(info.counts.ready for info in infos),
            leased=sum(info.counts.leased for info in infos),
            dead=sum(info.counts.dead for info in infos),
        ),
        tenants=tenants[:ROWS],
        found=len(found),
        per_page=ROWS,
        since_ms=viewer.history.since_ms,
    )


def _busiest_first(info: QueueInfo) -> tuple[int, str, str]:
    """By order of magnitude, so that rows do not change places with every job."""
    jobs = info.counts.waiting + info.counts.leased + info.counts.dead
    return -len(str(jobs)) if jobs else 0, info.tenant, info.queue


def _queue_row(history: History, info: QueueInfo, now_ms: int) -> QueueRow:
    kept, counts = history.of(QueueName(info.tenant, info.queue)), info.counts
    rate_in, rate_out = (None, None) if kept is None else kept.rates(info, now_ms)
    ins, outs = _moved(() if kept is None else list(kept.minutes), now_ms)
    return QueueRow(
        tenant=info.tenant,
        queue=info.queue,
        paused=info.paused,
        scheduled=counts.scheduled,
        ready=counts.ready,
        leased=counts.leased,
        dead=counts.dead,
        at_least=counts.at_least,
        oldest_at_ms=info.oldest_at_ms,
        rate_in=None if rate_in is None else round(rate_in, 2),
        rate_out=None if rate_out is None else round(rate_out, 2),
        ins=ins,
        outs=outs,
    )


def _moved(minutes: Any, now_ms: int) -> tuple[list[int], list[int]]:
    """Jobs in and out of each minute of the last hour; minutes in which nothing was counted are 0."""
    first = now_ms // 60_000 - 59
    ins, outs = [0] * 60, [0] * 60
    before: Minute | None = None
    for minute in minutes:
        if before is not None and minute.minute >= first:
            ins[minute.minute - first] = max(0, minute.enqueued - before.enqueued)
            outs[minute.minute - first] = max(0, minute.out - before.out)
        before = minute
    return ins, outs


# ── queue ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class QueueQuery(Struct, forbid_unknown_fields=True):
    queue: Text
    tenant: Text = ""


class Charts(Struct):
    """The last 60 minutes, oldest first; the first is `first_minute`, in minutes since 1970."""

    first_minute: int
    ins: list[int]
    outs: list[int]
    #: At the end of each minute; None: not known.
    waiting: list[int | None]
    leased: list[int | None]
    dead: list[int | None]
    #: Means, and the longest; None: nothing was measured.
    wait_ms: list[int | None]
    longest_wait_ms: list[int | None]
    run_ms: list[int | None]
    longest_run_ms: list[int | None]


class QueueView(Struct):
    row: QueueRow
    enqueued: int
    done: int
    removed: int
    policy: Policy
    charts: Charts
    last_claim_ms: int | None
    since_ms: int | None


def queue(viewer: Viewer, query: QueueQuery) -> QueueView:
    name = viewer.name(query.tenant, query.queue)
    info, now_ms = viewer.info(name), viewer.backend.now_ms()
    kept = viewer.history.of(name)
    assert isinstance(info.policy, Policy)
    return QueueView(
        row=_queue_row(viewer.history, info, now_ms),
        enqueued=info.counts.enqueued,
        done=info.counts.done,
        removed=info.counts.removed,
        policy=info.policy,
        charts=_charts([] if kept is None else list(kept.minutes), now_ms),
        last_claim_ms=None if kept is None else kept.last_claim_ms,
        since_ms=viewer.history.since_ms,
    )


def _charts(minutes: list[Minute], now_ms: int) -> Charts:
    first = now_ms // 60_000 - 59
    ins, outs = _moved(minutes, now_ms)
    by_number = {minute.minute - first: minute for minute in minutes[1:]}  # the first is what others are compared with
    places = range(60)

    def each(value: Callable[[Minute], int | None]) -> list[int | None]:
        return [None if place not in by_number else value(by_number[place]) for place in places]

    return Charts(
        first_minute=first,
        ins=ins,
        outs=outs,
        waiting=each(lambda m: m.waiting),
        leased=each(lambda m: m.leased),
        dead=each(lambda m: m.dead),
        wait_ms=each(lambda m: m.wait_ms // m.waits if m.waits else None),
        longest_wait_ms=each(lambda m: m.longest_wait_ms if m.waits else None),
        run_ms=each(lambda m: m.run_ms // m.runs if m.runs else None),
        longest_run_ms=each(lambda m: m.longest_run_ms if m.runs else None),
    )


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class JobsQuery(Struct, forbid_unknown_fields=True):
    queue: Text
    tenant: Text = ""
    state: State = "ready"
    cursor: Annotated[str, Meta(max_length=512)] = ""
    #: A job's id, its idempotency key, a part of its last error; a time from and to which it was made, or ended.
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


class JobsView(Struct):
    jobs: list[Brief]
    cursor: str | None
    #: Jobs that were looked at for these; None: nothing was searched for.
    looked_at: int | None = None


def jobs(viewer: Viewer, query: JobsQuery) -> JobsView:
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


def pages(backend: Backend, name: QueueName, state: str, cursor: str | None) -> Iterator[Any]:
    """Pages of a list, until SEARCHED jobs were looked at, or for SEARCH_S seconds."""
    began, looked_at = perf_counter(), 0
    while True:
        page = backend.list(name, state, _AT_ONCE, cursor)
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
        preview=_preview(job.payload),
        ended_at_ms=job.ended_at_ms,
        key=job.key,
        error=headline(job.error) if job.error else None,
        worker=job.worker,
        lease_until_ms=job.lease_until_ms,
        progress=job.progress,
    )


def _preview(payload: bytes) -> str:
    shown = content(payload[: _PREVIEW * 4])
    text = payload[:32].hex(" ") if shown.text is None else shown.text
    return text[:_PREVIEW] + ("…" if len(payload) > _PREVIEW * 4 or len(text) > _PREVIEW else "")


# ── job ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Content(Struct):
    """A payload or a result, bounded. `text` is None where it is not UTF-8."""

    bytes: int
    text: str | None
    hex: str
    text_cut: bool
    hex_cut: bool


def content(data: bytes) -> Content:
    head = data[:TEXT_BYTES]
    try:
        text: str | None = head.decode()
    except UnicodeDecodeError as exc:
        # Cutting may have split the last character: that does not make it binary.
        split = len(head) < len(data) and exc.start >= len(head) - 3
        text = head[: exc.start].decode() if split else None
    return Content(len(data), text, data[:HEX_BYTES].hex(), len(data) > TEXT_BYTES, len(data) > HEX_BYTES)


class JobQuery(Struct, forbid_unknown_fields=True):
    queue: Text
    id: Text
    tenant: Text = ""


class JobView(Struct):
    """`job` is None of a job that is gone, and of which only the journal tells."""

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
    #: Events that are older than those shown.
    events_left_out: int
    explanation: Explanation


def job(viewer: Viewer, query: JobQuery) -> JobView:
    name = viewer.name(query.tenant, query.queue)
    try:
        job_id = job_id_bytes(query.id)
    except InvalidArgument:
        raise NotFound("there is no such job") from None
    facts = read_facts(viewer.backend, name, job_id)
    explanation = explain(facts, _moment(facts.now_ms))
    if explanation is None:
        raise NotFound("there is no such job, or the journal no longer tells of it")
    found = facts.job
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
    )


def _moment(now_ms: int) -> Callable[[int], str]:
    """Times in words: UTC, with the date only where it is not today's."""
    today = as_datetime(now_ms).date()

    def told(ms: int) -> str:
        return f"{as_datetime(ms):%H:%M:%S} UTC" if as_datetime(ms).date() == today else utc(ms)

    return told


# ── dead letters ─────────────────────────────────────────────────────────────────────────────────────────────────────


class DeadQuery(Struct, forbid_unknown_fields=True):
    queue: Text = ""
    tenant: Text = ""


class QueueWithDead(Struct):
    tenant: str
    queue: str
    dead: int


class DeadView(Struct):
    """The queues that have dead jobs, and the causes in one of them."""

    queues: list[QueueWithDead]
    chosen: QueueWithDead | None
    causes: list[Cause]
    #: Dead jobs that were looked at, of those there are.
    looked_at: int


def dead(viewer: Viewer, query: DeadQuery) -> DeadView:
    infos = sorted((info for info in viewer.infos() if info.counts.dead), key=lambda info: -info.counts.dead)
    queues = [QueueWithDead(info.tenant, info.queue, info.counts.dead) for info in infos[:ROWS]]
    if not query.queue:
        return DeadView(queues=queues, chosen=None, causes=[], looked_at=0)
    name = viewer.name(query.tenant, query.queue)
    info = viewer.info(name)
    chosen = QueueWithDead(info.tenant, info.queue, info.counts.dead)
    found = [job for page in pages(viewer.backend, name, "dead", None) for job in page.jobs]
    return DeadView(queues=queues, chosen=chosen, causes=causes_of(found), looked_at=len(found))


# ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class LeaseRow(Struct):
    worker: str
    tenant: str
    queue: str
    lease_id: str
    since_ms: int
    until_ms: int
    jobs: int
    #: Some of them.
    ids: list[str]


class WorkersView(Struct):
    leases: list[LeaseRow]
    #: Whether there are more than were looked at.
    more: bool
    #: Workers by their last claim, as far as this server has seen them.
    seen: list[WorkerSeen]


def workers(viewer: Viewer, query: NoQuery) -> WorkersView:
    began, looked_at, more = perf_counter(), 0, False
    leases: dict[str, LeaseRow] = {}
    for info in viewer.infos():
        if not info.counts.leased:
            continue
        if looked_at >= _LEASES or perf_counter() - began > SEARCH_S:
            more = True
            break
        page = viewer.backend.list(QueueName(info.tenant, info.queue), "leased", ROWS, None)
        looked_at, more = looked_at + len(page.jobs), more or page.cursor is not None
        for one in page.jobs:
            _add_lease(leases, one)
    seen = [
        one
        for one in viewer.history.workers()
        if viewer.identity.sees(viewer.tenant(""), QueueName(one.tenant, one.queue))
    ]
    return WorkersView(leases=sorted(leases.values(), key=lambda row: row.since_ms), more=more, seen=seen[:ROWS])


def _add_lease(leases: dict[str, LeaseRow], job: Job) -> None:
    if job.lease_id is None or job.lease_until_ms is None:
        return
    row = leases.get(job.lease_id)
    if row is None:
        since_ms = created_ms(bytes.fromhex(job.lease_id))
        row = LeaseRow(job.worker or "", job.tenant, job.queue, job.lease_id, since_ms, job.lease_until_ms, 0, [])
        leases[job.lease_id] = row
    row.jobs += 1
    if len(row.ids) < 5:
        row.ids.append(job.id)


# ── upcoming ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class UpcomingView(Struct):
    jobs: list[Brief]


def upcoming(viewer: Viewer, query: NoQuery) -> UpcomingView:
    scheduled = any(info.counts.scheduled for info in viewer.infos())
    if not scheduled:
        return UpcomingView([])
    found = viewer.backend.upcoming(UpcomingRequest(2**62, 0, ROWS, None, viewer.tenant(""), viewer.identity.queues))
    return UpcomingView([brief(job) for job in found])


# ── all of them ──────────────────────────────────────────────────────────────────────────────────────────────────────


class View(NamedTuple):
    asks: Any  # a struct: msgspec reads its type
    show: Callable[[Viewer, Any], object]


VIEWS: dict[str, View] = {
    "me": View(NoQuery, me),
    "overview": View(OverviewQuery, overview),
    "queue": View(QueueQuery, queue),
    "jobs": View(JobsQuery, jobs),
    "job": View(JobQuery, job),
    "dead": View(DeadQuery, dead),
    "workers": View(NoQuery, workers),
    "upcoming": View(NoQuery, upcoming),
}


def shown(view: View, viewer: Viewer, query: Mapping[str, str]) -> bytes:
    """The view as JSON. Raises InvalidArgument, NotFound."""
    try:
        asked = msgspec.convert(dict(query), view.asks, strict=False)
    except msgspec.ValidationError as exc:
        raise InvalidArgument(str(exc)) from None
    return msgspec.json.encode(view.show(viewer, asked))
