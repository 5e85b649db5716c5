"""Identity: who asks, for which tenant, and what they may do there.

    scope      allows
    produce    enqueue, cancel one's own jobs' ids, and look
    consume    claim, extend, settle, progress, and look
    admin      policies, pause, resume, replay, purge, and look
    operator   all of these, for every tenant, and what concerns the whole store

Which route asks for which scope is said once, in the server's table of operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from leasehold.errors import Forbidden, InvalidArgument
from leasehold.model.names import DEFAULT_TENANT, checked

PRODUCE, CONSUME, ADMIN, OPERATOR = "produce", "consume", "admin", "operator"
SCOPES = (PRODUCE, CONSUME, ADMIN, OPERATOR)

TENANT_HEADER = "Leasehold-Tenant"
_TENANT_HEADER = TENANT_HEADER.lower()


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller whom the server has let in."""

    subject: str
    tenant: str
    scopes: frozenset[str]
    #: None: every queue of the tenant.
    queues: frozenset[str] | None = None

    def allows(self, *scopes: str) -> bool:
        """Whether one of these scopes is this caller's; an operator has all."""
        return OPERATOR in self.scopes or not self.scopes.isdisjoint(scopes)

    def require(self, *scopes: str) -> None:
        if not self.allows(*scopes):
            raise Forbidden(f"this needs a token with the scope {' or '.join(scopes)}")

    def sees(self, queue: str) -> bool:
        """Whether the queue is there as far as this caller is concerned. To a caller who does not see it, it is not."""
        return self.queues is None or queue in self.queues

    def choosing(self, headers: Mapping[str, str]) -> Identity:
        """The same caller, for the tenant named by the header if there is one.

        Who is no operator may only name their own: the answer is the same whether the other tenant is there or not.
        """
        asked = headers.get(_TENANT_HEADER)
        if asked is None or asked == self.tenant:
            return self
        if OPERATOR not in self.scopes:
            raise Forbidden(f"only a token with the scope {OPERATOR} may choose a tenant by {TENANT_HEADER}")
        return replace(self, tenant=_name(asked))


def _name(asked: str) -> str:
    try:
        return checked("tenant", asked)
    except InvalidArgument as exc:
        raise InvalidArgument(f"{TENANT_HEADER}: {exc}") from None


#: Whom a server without authentication takes every caller for. It listens to its own machine only.
EVERYONE_LOCAL = Identity("local", DEFAULT_TENANT, frozenset(SCOPES))


class Authenticator(Protocol):
    """Names of headers are in lower case; of a header that came twice, the values are joined with commas."""

    def identify(self, headers: Mapping[str, str]) -> Identity:
        """Who sent these. Raises Unauthenticated, Forbidden; Unavailable where no key could ever be fetched.

        It may fetch keys and so take seconds, if a token names one it has not seen: not for an event loop.
        """

    def identify_at_once(self, headers: Mapping[str, str]) -> Identity | None:
        """The same, for an event loop: None where `identify` would have to fetch something first."""
