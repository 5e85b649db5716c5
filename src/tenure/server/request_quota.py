"""Count a tenant's requests against its quota (`requests`), if it has one.

Whether it has one is cached for a few seconds, so that tenants without one cost nothing. For the others each request is
drawn from the store, which is exact however many servers share it. Operators are not counted: one must be able to lift
a quota.
"""

from __future__ import annotations

from tenure.clock import Clock, SystemClock
from tenure.contract.backend import Backend
from tenure.protocol.identity import Identity

#: Milliseconds after which a new or lifted quota is noticed.
REMEMBERED_MS = 2_000
_MANY = 10_000


class RequestQuota:
    def __init__(self, backend: Backend, clock: Clock | None = None) -> None:
        self._store = backend
        self._clock = clock or SystemClock()
        self._counts = backend.traits.quotas
        #: Until when a tenant is known to have no limit.
        self._free: dict[str, int] = {}

    def free(self, identity: Identity) -> bool:
        """Whether this caller is known not to be counted."""
        if identity.operator or not self._counts:
            return True
        until = self._free.get(identity.tenant)
        return until is not None and self._clock.steady_ms() < until

    def draw(self, identity: Identity) -> None:
        """Count one request in the store. Raises RateLimited."""
        tenant = identity.tenant
        if any(info.quota.requests is not None for info in self._store.quotas(tenant)):
            self._store.draw(tenant, 1)
            return
        if len(self._free) > _MANY:
            self._free.clear()
        self._free[tenant] = self._clock.steady_ms() + REMEMBERED_MS
