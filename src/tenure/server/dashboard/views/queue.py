"""queue: one queue with its counts, policy and the last hour."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from tenure.model.retry import Policy
from tenure.server.dashboard.history import Minute
from tenure.server.dashboard.views.overview import QueueRow, moved, queue_row
from tenure.server.dashboard.views.viewer import Text, Viewer


class QueueQuery(Struct, forbid_unknown_fields=True):
    queue: Text
    tenant: Text = ""


class Charts(Struct):
    """The last 60 minutes, oldest first; the first is `first_minute`, in minutes since 1970."""

    first_minute: int
    ins: list[int]
    outs: list[int]
    #: At the end of each minute; None if unknown.
    waiting: list[int | None]
    leased: list[int | None]
    dead: list[int | None]
    #: Means, and the longest; None if nothing was measured.
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


def show(viewer: Viewer, query: QueueQuery) -> QueueView:
    name = viewer.name(query.tenant, query.queue)
    info, now_ms = viewer.info(name), viewer.backend.now_ms()
    queue_history = viewer.history.of(name)
    assert isinstance(info.policy, Policy)
    return QueueView(
        row=queue_row(viewer.history, info, now_ms),
        enqueued=info.counts.enqueued,
        done=info.counts.done,
        removed=info.counts.removed,
        policy=info.policy,
        charts=_charts([] if queue_history is None else list(queue_history.minutes), now_ms),
        last_claim_ms=None if queue_history is None else queue_history.last_claim_ms,
        since_ms=viewer.history.since_ms,
    )


def _charts(minutes: list[Minute], now_ms: int) -> Charts:
    first = now_ms // 60_000 - 59
    ins, outs = moved(minutes, now_ms)
    # the first is only the base for the differences
    by_number = {minute.minute - first: minute for minute in minutes[1:]}
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
