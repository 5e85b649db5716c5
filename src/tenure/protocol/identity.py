"""A caller: its tenant, and what its scopes allow.

    scope       may
    produce     enqueue, cancel, and look
    consume     claim, settle, and look
    admin       the two above, policies, pausing, replays, purges
    operator    everything, of every tenant, and the store itself

Every scope includes looking at what is the tenant's own.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from msgspec import Struct

from tenure.errors import Forbidden, NotFound
from tenure.model.names import DEFAULT_TENANT, QueueName, checked

Scope = Literal["any", "produce", "consume", "admin", "operator"]
_INCLUDES: dict[str, frozenset[str]] = {
    "produce": frozenset({"any", "produce"}),
    "consume": frozenset({"any", "consume"}),
    "admin": frozenset({"any", "produce", "consume", "admin"}),
    "operator": frozenset({"any", "produce", "consume", "admin", "operator"}),
}


#: What a token may say; `any` is what all of them include.
SCOPES = frozenset(_INCLUDES)


@cache
def _granted(scopes: frozenset[str]) -> frozenset[str]:
    return frozenset().union(*(_INCLUDES.get(held, ()) for held in scopes))


class Identity(Struct, frozen=True):
    """The bearer of a token, or of none where a server allows that."""

    subject: str
    tenant: str
    scopes: frozenset[str]
    #: The only queues it may name; None: all of its tenant's.
    queues: frozenset[str] | None = None

    @property
    def operator(self) -> bool:
        return "operator" in self.scopes

    def may(self, scope: Scope) -> bool:
        return scope in _granted(self.scopes)

    def acting(self, named: str | None) -> str | None:
        """The tenant a request is for. None: an operator's, that names none.

        `named` is the header `Tenure-Tenant`, by which only an operator chooses.
        """
        if self.operator:
            return None if named is None else checked("tenant", named)
        if named is not None and named != self.tenant:
            raise Forbidden("only an operator's token names another tenant")
        return self.tenant

    def queue(self, queue: str, tenant: str | None) -> QueueName:
        """The queue this request may name by that word: a name, or for an operator also `tenant/queue`."""
        if self.operator and "/" in queue:
            tenant, _, queue = queue.partition("/")
            checked("tenant", tenant)
        checked("queue", queue)
        if self.queues is not None and queue not in self.queues:
            # The same error as for a queue that does not exist: the token does not reveal which other queues do.
            raise NotFound(f"there is no queue {queue!r} for this token")
        return QueueName(DEFAULT_TENANT if tenant is None else tenant, queue)

    def sees(self, tenant: str | None, name: QueueName) -> bool:
        """Whether a list for this request includes that queue."""
        return (tenant is None or name.tenant == tenant) and (self.queues is None or name.queue in self.queues)


#: A caller that needs no token: one that may open the owner's socket, or reaches a server without tokens on loopback.
LOCAL = Identity("local", DEFAULT_TENANT, frozenset({"operator"}))
