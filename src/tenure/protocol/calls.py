"""A request as the operations see it, and what an operation is."""

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
    """One request, as far as an operation needs to know it."""

    backend: Backend
    identity: Identity
    #: Whose it is; None: an operator's that names no tenant. That is all of them, or `default` for a queue's routes.
    tenant: str | None
    #: What the path names.
    path: dict[str, str]
    request: Any
    #: All requests of this server that wait.
    in_flight: RequestsInFlight
    #: The queue that the path names, where it was checked before.
    known: QueueName | None = None

    @property
    def name(self) -> QueueName:
        return self.known or self.identity.queue(self.path["queue"], self.tenant)

    @property
    def job(self) -> bytes:
        return job_id_bytes(self.path["job"])

    def sees(self, tenant: str, queue: str) -> bool:
        return self.identity.sees(self.tenant, QueueName(tenant, queue))

    @property
    def sees_all(self) -> bool:
        return self.tenant is None and self.identity.queues is None


class Waiting(NamedTuple):
    """What a request waits for: `look` when one of the topics is notified; `None` means not yet.

    `end` is the answer when time is up.
    """

    topics: Sequence[Topic]
    wait_ms: int
    look: Callable[[], object | None]
    end: Callable[[int], object]


#: Done by servers and bulk readers themselves, for every request or page.
_NOT_ACTS = frozenset({"draw", "renew_snapshot", "sweep"})


class Operation(NamedTuple):
    name: str
    method: str
    path: str
    scope: Scope
    asks: Any
    answers: Any
    run: Callable[[Call], object]
    summary: str
    #: The backend's verb that it carries out, and that verb's traits (`contract.verbs`).
    verb: str
    remembered: bool
    small: bool
    waits: Callable[[Call], Waiting | None] | None = None
    #: Only through the owner's socket, whose callers share its files.
    local: bool = False

    @property
    def in_query(self) -> bool:
        return self.method in ("GET", "DELETE")

    @property
    def audited(self) -> bool:
        """Whether its requests go to the audit log: it changes more than jobs."""
        return self.scope in ("admin", "operator") and self.method != "GET" and self.name not in _NOT_ACTS
