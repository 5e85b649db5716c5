"""A caller: its tenant and scopes.

    scope       may
    produce     enqueue, cancel, and read
    consume     claim, settle, and read
    admin       the two above, policies, pausing, replays, purges
    operator    everything, of every tenant, and the store itself

Every scope includes reading the tenant's own jobs and queues.
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


#: The scopes that a token may have; all of them include `any`.
SCOPES = frozenset(_INCLUDES)


@cache
def _granted(scopes: frozenset[str]) -> frozenset[str]:
    return frozenset().union(*(_INCLUDES.get(held, ()) for held in scopes))


class Identity(Struct, frozen=True):
    """The bearer of a token, or an anonymous caller if the server allows it."""

    subject: str
    tenant: str
    scopes: frozenset[str]
    #: The only queues that it may name; None: all of its tenant's.
    queues: frozenset[str] | None = None

    @property
    def operator(self) -> bool:
        return "operator" in self.scopes

    def may(self, scope: Scope) -> bool:
        return scope in _granted(self.scopes)

    def acting(self, named: str | None) -> str | None:
        """Return the tenant that a request is for; None if an operator named none.

        `named` is the header `Tenure-Tenant`, which only an operator may send. Raises Forbidden.
        """
        if self.operator:
            return None if named is None else checked("tenant", named)
        if named is not None and named != self.tenant:
            raise Forbidden("only an operator's token may name another tenant")
        return self.tenant

    def queue(self, queue: str, tenant: str | None) -> QueueName:
        """Return the queue that a request means by that word: a name, or for an operator also `tenant/queue`.

        Raises NotFound.
        """
        if self.operator and "/" in queue:
            tenant, _, queue = queue.partition("/")
            checked("tenant", tenant)
        checked("queue", queue)
        if self.queues is not None and queue not in self.queues:
            # The same error as for a missing queue, so that the token does not reveal which queues exist.
            raise NotFound(f"there is no queue {queue!r} for this token")
        return QueueName(DEFAULT_TENANT if tenant is None else tenant, queue)

    def sees(self, tenant: str | None, name: QueueName) -> bool:
        """Whether a list for this request includes that queue."""
        return (tenant is None or name.tenant == tenant) and (self.queues is None or name.queue in self.queues)


#: A caller without a token: through the owner's socket, or by loopback to a server without tokens.
LOCAL = Identity("local", DEFAULT_TENANT, frozenset({"operator"}))
