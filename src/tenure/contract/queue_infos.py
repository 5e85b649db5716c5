"""Read the numbers of queues from any backend: one queue's, or all, by pages of bounded size."""

from __future__ import annotations

from operator import attrgetter

from tenure.contract.backend import Backend
from tenure.model.job import QueueInfo
from tenure.model.names import QueueName, queue_cursor

#: Queues that are read at once: a page is about a megabyte of JSON at most, and no snapshot is held for long.
_PAGE = 1_000


def all_queues(backend: Backend, tenant: str | None) -> list[QueueInfo]:
    """Return all queues of a tenant, or of all tenants (None), ordered by tenant and name.

    Each page is read at a time of its own, so the numbers of a store with thousands of queues are not of one moment.
    """
    found: list[QueueInfo] = []
    cursor = None
    while True:
        page = backend.queues(tenant, _PAGE, cursor)
        found += page.queues
        cursor = page.cursor
        if cursor is None:
            return sorted(found, key=attrgetter("tenant", "queue"))


def queue_info(backend: Backend, name: QueueName) -> QueueInfo | None:
    """Return the numbers of one queue; None: it does not exist."""
    page = backend.queues(name.tenant, 1, queue_cursor(name))
    return next((info for info in page.queues if info.queue == name.queue), None)
