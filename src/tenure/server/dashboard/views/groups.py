"""groups: the groups of a queue with jobs, and their shares of the turns."""

from __future__ import annotations

from msgspec import Struct

from tenure.model.job import QueueInfo
from tenure.model.rate import Rate
from tenure.model.retry import Policy
from tenure.server.dashboard.views.queue import QueueQuery
from tenure.server.dashboard.views.viewer import ROWS, Viewer

#: How many groups are read.
_GROUP_LIMIT = 1_000


class GroupRow(Struct):
    """A group; `group` is None for jobs without one, which take turns like a group of weight 1."""

    group: str | None
    waiting: int
    leased: int | None
    weight: float
    #: Its current share of the turns: its weight among groups with a ready job and room. None: it gets no turns.
    share: float | None
    max_leased: int | None
    rate: Rate | None
    oldest_at_ms: int | None
    at_limit: bool


class GroupsView(Struct):
    """The groups with most jobs first. `more`: some were not read, so the shares are too large."""

    groups: list[GroupRow]
    looked_at: int
    more: bool


def show(viewer: Viewer, query: QueueQuery) -> GroupsView:
    name = viewer.name(query.tenant, query.queue)
    info = viewer.info(name)
    page = viewer.backend.groups(name, _GROUP_LIMIT, None)
    assert isinstance(info.policy, Policy)
    rows = []
    for group in page.groups:
        limits = info.policy.of_group(group.group)
        rows.append(
            GroupRow(
                group=group.group,
                waiting=group.waiting,
                leased=group.leased,
                weight=limits.weight,
                share=limits.weight if group.oldest_at_ms is not None and not group.at_limit else None,
                max_leased=limits.max_leased,
                rate=limits.rate if isinstance(limits.rate, Rate) else None,
                oldest_at_ms=group.oldest_at_ms,
                at_limit=group.at_limit,
            )
        )
    if rows and page.cursor is None:
        rows += _without_group(info, rows)
    turns = sum(row.share or 0 for row in rows)
    for row in rows:
        row.share = None if row.share is None else row.share / turns
    rows.sort(key=lambda row: (-(row.waiting + (row.leased or 0)), row.group or ""))
    return GroupsView(rows[:ROWS], len(page.groups), more=page.cursor is not None)


def _without_group(info: QueueInfo, rows: list[GroupRow]) -> list[GroupRow]:
    """Return a row for waiting jobs without a group, if any: the queue's counts less those of its groups."""
    waiting = info.counts.waiting - sum(row.waiting for row in rows)
    if waiting <= 0:
        return []
    share = 1.0 if info.counts.ready else None
    return [GroupRow(None, waiting, None, 1.0, share, None, None, None, at_limit=False)]
