"""dead: dead letters of a queue, grouped by cause."""

from __future__ import annotations

from msgspec import Struct

from tenure.server.dashboard.causes import Cause, causes_of
from tenure.server.dashboard.views.jobs import pages
from tenure.server.dashboard.views.viewer import ROWS, Text, Viewer


class DeadQuery(Struct, forbid_unknown_fields=True):
    queue: Text = ""
    tenant: Text = ""


class QueueWithDead(Struct):
    tenant: str
    queue: str
    dead: int


class DeadView(Struct):
    """The queues with dead jobs, and the causes in one of them."""

    queues: list[QueueWithDead]
    chosen: QueueWithDead | None
    causes: list[Cause]
    #: How many of the dead jobs were read.
    looked_at: int


def show(viewer: Viewer, query: DeadQuery) -> DeadView:
    infos = sorted((info for info in viewer.infos() if info.counts.dead), key=lambda info: -info.counts.dead)
    queues = [QueueWithDead(info.tenant, info.queue, info.counts.dead) for info in infos[:ROWS]]
    if not query.queue:
        return DeadView(queues=queues, chosen=None, causes=[], looked_at=0)
    name = viewer.name(query.tenant, query.queue)
    info = viewer.info(name)
    chosen = QueueWithDead(info.tenant, info.queue, info.counts.dead)
    found = [job for page in pages(viewer.backend, name, "dead", None) for job in page.jobs]
    return DeadView(queues=queues, chosen=chosen, causes=causes_of(found), looked_at=len(found))
