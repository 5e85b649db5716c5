"""The caller of a view, what it reads from, and the limits of all views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from tenure.contract.backend import Backend
from tenure.contract.queue_infos import queue_info
from tenure.errors import Forbidden, NotFound
from tenure.model.job import QueueInfo
from tenure.model.names import QueueName
from tenure.protocol.identity import Identity
from tenure.server.dashboard.history import History

#: Rows on a page.
ROWS = 100

Text = Annotated[str, Meta(max_length=256)]


class NoQuery(Struct, forbid_unknown_fields=True):
    """The query of a view without parameters."""


class Viewer(NamedTuple):
    """The caller of a view, and what it reads from."""

    backend: Backend
    history: History
    identity: Identity
    #: Whether the caller signed in, and can sign out.
    signed_in: bool
    #: Counts of queues must be read after this time (`History.moment`); None: a recent reading will do.
    after: int | None = None

    def tenant(self, named: str) -> str | None:
        """Return the tenant that a query means; None: all, for an operator. Raises NotFound."""
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
        """Return the counts of a queue; one newer than the last reading is read from the store. Raises NotFound."""
        found = _named(self.history.infos(self.after), name) or queue_info(self.backend, name)
        if found is not None:
            return found
        raise NotFound(f"there is no queue {name.queue!r}")


def _named(infos: Sequence[QueueInfo], name: QueueName) -> QueueInfo | None:
    return next((info for info in infos if info.tenant == name.tenant and info.queue == name.queue), None)
