"""top: show queues, rates, ages and workers until Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tenure.api.store import Store
from tenure.cli.command import command
from tenure.cli.json_shapes import Shape
from tenure.cli.output import Screen, clean, number, plural, shortened_inside
from tenure.cli.session import Session
from tenure.cli.times import DURATION, now_ms, span
from tenure.model.group import GroupInfo
from tenure.model.job import Counts, QueueInfo
from tenure.model.names import QueueName

#: How many leased jobs are read to find their workers, and how many groups, to find the largest.
_LEASED_LIMIT = 1_000
_GROUPS, _GROUPS_SHOWN = 1_000, 10
_WORKERS_SHOWN = 20
#: Queues on a terminal that is too small for all tables.
_FEWEST_QUEUES = 5


@dataclass
class QueueSample:
    """A queue at one point in time."""

    name: QueueName
    paused: bool
    counts: Counts
    #: When the next job to be claimed became ready.
    oldest_ms: int | None
    workers: Counter[str] = field(default_factory=Counter)
    #: Its groups with most waiting jobs.
    groups: list[GroupInfo] = field(default_factory=list)

    @property
    def ended(self) -> int:
        return self.counts.done + self.counts.dead + self.counts.removed


@dataclass
class Sample:
    """All watched queues at one point in time."""

    at: float
    queues: list[QueueSample]

    def rates(self, before: Sample | None, queue: QueueSample) -> tuple[float, float] | None:
        """Return (jobs in, jobs out) per second since an earlier sample; None without one."""
        if before is None or self.at <= before.at:
            return None
        old = next((one for one in before.queues if one.name == queue.name), None)
        if old is None:
            return None
        seconds = self.at - before.at
        enqueued = queue.counts.enqueued - old.counts.enqueued
        # A replay takes jobs out of `dead`, so the difference may be negative: show 0 then.
        return max(0, enqueued) / seconds, max(0, queue.ended - old.ended) / seconds


@command(
    "top",
    examples=(
        ("Watch all queues:", "tenure top"),
        ("Some of them, twice a second:", "tenure top emails reports --every 0.5"),
        ("Once, for a script:", "tenure top --once --json"),
    ),
    short_help="Watch queues, rates and workers.",
)
@click.argument("names", metavar="[QUEUE]...", nargs=-1)
@click.option("--every", type=DURATION, default=1.0, show_default=True, help="Time between two refreshes.")
@click.option("--once", is_flag=True, help="Print once, without rates.")
def top(session: Session, names: Sequence[str], every: float, once: bool) -> None:
    """Show queues, their rates, how long the next job has waited, and which workers hold jobs.

    Without a terminal it prints a table (with --json a line for each queue) at each refresh. The store is open only
    during each refresh.
    """
    every = max(every, 0.1)
    sample = take_sample(session, names)
    if once:
        _write(session, sample, None)
        return
    if session.json or not sys.stdout.isatty():
        while True:
            time.sleep(every)
            before, sample = sample, take_sample(session, names)
            _write(session, sample, before)
            session.out.flush()
    console = Screen()
    with Live(
        screen(sample, None, console.height, console.width), console=console, screen=True, auto_refresh=False
    ) as live:
        while True:
            time.sleep(every)
            before, sample = sample, take_sample(session, names)
            live.update(screen(sample, before, console.height, console.width), refresh=True)


def take_sample(session: Session, names: Sequence[str]) -> Sample:
    with session.store() as store:
        return Sample(time.monotonic(), [_sample_queue(store, info) for info in _selected(session, store, names)])


def _selected(session: Session, store: Store, names: Sequence[str]) -> list[QueueInfo]:
    infos = store.queues(session.given_tenant)
    known = {info.queue for info in infos}
    for name in names:
        if name not in known:
            session.require_queue(name)
    return [info for info in infos if not names or info.queue in names]


def _sample_queue(store: Store, info: QueueInfo) -> QueueSample:
    queue = store.queue(info.queue, info.tenant)
    first = queue.list("ready", 1).jobs if info.counts.ready else []
    seen = QueueSample(queue.name, info.paused, info.counts, first[0].visible_at_ms if first else None)
    if info.counts.leased:
        seen.workers.update(job.worker or "(unnamed)" for job in queue.list("leased", _LEASED_LIMIT).jobs)
    if info.counts.waiting + info.counts.leased:
        found = sorted(queue.groups(_GROUPS).groups, key=lambda group: -group.waiting)
        seen.groups = found[:_GROUPS_SHOWN]
    return seen


# ── output ───────────────────────────────────────────────────────────────────────────────────────────────────────────


_TITLES = ("queue", "blocked", "ready", "scheduled", "leased", "dead", "in/s", "out/s", "oldest", "workers")
#: Between two columns, and the least of a name that is shown.
_GAP, _SHORTEST_NAME = 2, 8


def _table(sample: Sample, before: Sample | None, shown: Sequence[QueueSample]) -> tuple[list[str], list[list[Text]]]:
    """Return titles and rows; `blocked` only if a queue has such jobs, which most have not."""
    rows = [_row(queue, sample.rates(before, queue)) for queue in shown]
    titles = list(_TITLES)
    if not any(queue.counts.blocked for queue in sample.queues):
        at = titles.index("blocked")
        titles = titles[:at] + titles[at + 1 :]
        rows = [row[:at] + row[at + 1 :] for row in rows]
    return titles, rows


def screen(sample: Sample, before: Sample | None, height: int, width: int) -> RenderableType:
    """What fits into so many lines: if not all queues do, the busiest. In a narrow window names are shortened."""
    queues = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    workers: Counter[str] = Counter()
    for queue in sample.queues:
        workers.update(queue.workers)
    grouped = [(queue, group) for queue in sample.queues for group in queue.groups]
    # The head, the titles of three tables, and blank lines take 8 lines.
    below = min(len(workers), _WORKERS_SHOWN) + min(len(grouped), _GROUPS_SHOWN)
    room = max(_FEWEST_QUEUES, height - 8 - below)
    shown = sample.queues
    if len(shown) > room:
        shown = sorted(shown, key=lambda queue: -(queue.counts.waiting + queue.counts.leased + queue.counts.dead))[
            :room
        ]
    titles, rows = _table(sample, before, shown)
    for title in titles:
        # Only the column of names may wrap, `(paused)` onto a second line: numbers are not shortened.
        queues.add_column(title, justify="left" if title == "queue" else "right", no_wrap=title != "queue")
    numbers = sum(max(map(len, cells)) + _GAP for cells in zip(titles[1:], *(row[1:] for row in rows), strict=True))
    most = max(_SHORTEST_NAME, width - numbers)
    for queue, row in zip(shown, rows, strict=True):
        paused = row[0][len(str(queue.name)) :]
        queues.add_row(Text(shortened_inside(str(queue.name), most), style="bold").append_text(paused), *row[1:])
    holding = Table(box=None, pad_edge=False, header_style="bold")
    holding.add_column("worker", no_wrap=True)
    holding.add_column("jobs in hand", justify="right")
    for worker, count in workers.most_common(_WORKERS_SHOWN):
        holding.add_row(clean(worker), f"{count:,}")
    largest = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("queue", "group", "waiting", "leased", "oldest"):
        largest.add_column(title, justify="left" if title in ("queue", "group") else "right", no_wrap=True)
    for queue, group in sorted(grouped, key=lambda pair: -pair[1].waiting)[:_GROUPS_SHOWN]:
        age = _age(group.oldest_at_ms)
        largest.add_row(
            clean(str(queue.name)), clean(group.group), f"{group.waiting:,}", f"{group.leased:,}",
            "" if age is None else span(age),
        )  # fmt: skip
    total = sum(queue.counts.waiting for queue in sample.queues)
    of_queues, of_workers = plural(len(sample.queues), "queue"), plural(len(workers), "worker")
    head = Text(f"{of_queues} · {total:,} waiting · {of_workers} with jobs · Ctrl-C leaves")
    left = len(sample.queues) - len(shown)
    more = Text(f"{plural(left, 'queue')} more, less busy: name those to watch ('tenure top QUEUE …')", style="dim")
    return Group(
        head,
        "",
        queues,
        *((more,) if left else ()),
        *(("", holding) if workers else ()),
        *(("", largest) if grouped else ()),
    )


def _age(since_ms: int | None) -> float | None:
    return None if since_ms is None else max(0.0, (now_ms() - since_ms) / 1000)


def _row(queue: QueueSample, rates: tuple[float, float] | None) -> list[Text]:
    counts = queue.counts
    age = _age(queue.oldest_ms)
    name = Text(str(queue.name), style="bold")
    if queue.paused:
        name.append(" (paused)", style="yellow")
    cells: list[Text | str] = [
        name, number(counts.blocked), number(counts.ready), number(counts.scheduled), number(counts.leased),
        number(counts.dead, alarm=True),
        *(("-", "-") if rates is None else (f"{rate:,.1f}" for rate in rates)),
        "" if age is None else span(age), number(len(queue.workers)),
    ]  # fmt: skip
    return [cell if isinstance(cell, Text) else Text(cell) for cell in cells]


def _write(session: Session, sample: Sample, before: Sample | None) -> None:
    if session.json:
        session.out.emit_all(_shape(queue, sample.rates(before, queue)) for queue in sample.queues)
    else:
        titles, rows = _table(sample, before, sample.queues)
        session.out.table([title if title == "queue" else f">{title}" for title in titles], rows)


def _shape(queue: QueueSample, rates: tuple[float, float] | None) -> Shape:
    counts = queue.counts
    return {
        "tenant": queue.name.tenant,
        "queue": queue.name.queue,
        "paused": queue.paused,
        "blocked": counts.blocked,
        "ready": counts.ready,
        "scheduled": counts.scheduled,
        "leased": counts.leased,
        "dead": counts.dead,
        "in_per_second": None if rates is None else round(rates[0], 3),
        "out_per_second": None if rates is None else round(rates[1], 3),
        "oldest_seconds": _age(queue.oldest_ms),
        "workers": dict(queue.workers),
        "groups": {
            group.group: {"waiting": group.waiting, "leased": group.leased, "oldest_seconds": _age(group.oldest_at_ms)}
            for group in queue.groups
        },
    }
