"""`Call`: a request as the operations see it; `Operation`: a row of the table of operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from tenure.contract.backend import Backend, Topic
from tenure.model.ids import job_id_bytes
from tenure.model.names import QueueName
from tenure.protocol.identity import Identity, Scope
from tenure.protocol.in_flight import RequestsInFlight


class Call(Struct, frozen=True):
    """The parts of a request that an operation needs."""

    backend: Backend
    identity: Identity
    #: The tenant. None: an operator named none, which means all tenants, or `default` in a queue's routes.
    tenant: str | None
    #: The named segments of the path.
    path: dict[str, str]
    request: Any
    #: All waiting requests of this server.
    in_flight: RequestsInFlight
    #: The queue that the path names, if it was checked before.
    checked_queue: QueueName | None = None

    @property
    def name(self) -> QueueName:
        return self.checked_queue or self.identity.queue(self.path["queue"], self.tenant)

    @property
    def job(self) -> bytes:
        return job_id_bytes(self.path["job"])

    def sees(self, tenant: str, queue: str) -> bool:
        return self.identity.sees(self.tenant, QueueName(tenant, queue))

    @property
    def sees_all(self) -> bool:
        return self.tenant is None and self.identity.queues is None


class Waiting(NamedTuple):
    """What a request waits for. `look` is called when a topic is notified; it returns None to wait on.

    `end` returns the answer when the time is up.
    """

    topics: Sequence[Topic]
    wait_ms: int
    look: Callable[[], object | None]
    end: Callable[[int], object]


#: Servers and bulk readers send these themselves, for every request or page.
_UNAUDITED = frozenset({"draw", "renew_snapshot", "sweep"})


class Operation(NamedTuple):
    name: str
    method: str
    path: str
    scope: Scope
    asks: Any
    answers: Any
    run: Callable[[Call], object]
    summary: str
    #: The backend's verb that it calls, and that verb's traits (`contract.verbs`).
    verb: str
    remembered: bool
    small: bool
    waits: Callable[[Call], Waiting | None] | None = None
    #: Accepted only through the owner's socket, whose callers share the store's files.
    local: bool = False

    @property
    def in_query(self) -> bool:
        return self.method in ("GET", "DELETE")

    @property
    def audited(self) -> bool:
        """Whether its requests go to the audit log: it changes more than jobs."""
        return self.scope in ("admin", "operator") and self.method != "GET" and self.name not in _UNAUDITED
