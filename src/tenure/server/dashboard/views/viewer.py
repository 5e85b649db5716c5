"""Who looks at a view, at what, and the bounds that all views keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from tenure.contract.backend import Backend
from tenure.errors import Forbidden, NotFound
from tenure.model.job import QueueInfo
from tenure.model.names import QueueName
from tenure.protocol.identity import Identity
from tenure.server.dashboard.history import History

#: Rows of a page.
ROWS = 100

Text = Annotated[str, Meta(max_length=256)]


class NoQuery(Struct, forbid_unknown_fields=True):
    """A view that is the same whatever is asked."""


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
