"""A backend's view for one request (`Backend.once`): the verbs whose outcome is remembered under the request's id.

    class EmbeddedRequestView(RememberedVerbs, EmbeddedBackend): ...      these verbs, in front of the backend's own

Each verb runs on a core that stores the outcome in the same commit as the effect. `contract.verbs.REMEMBERED` lists
these verbs; a test compares.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tenure.contract.backend import Backend, JobIds, Progress
from tenure.errors import TenureError
from tenure.model.job import Enqueued, Replayed, Restored
from tenure.model.lease import AnyQueues, ClaimRequest, Extended, Leased, Proof, Settle
from tenure.model.names import QueueName
from tenure.model.quota import Quota
from tenure.model.request import JobImage, JobRequest, ReplayRequest
from tenure.model.retry import Policy
from tenure.model.schedule import ScheduleChange
from tenure.queueing.outcomes import asked, asked_to_enqueue, asked_to_settle


class RememberedVerbs:
    # Any: the embedded and the Redis backend share no base class, and neither do their cores.
    #: The backend class whose verbs do the work.
    _plain: Any
    #: The class of the core that stores outcomes.
    _remembering: Any

    def __init__(self, backend: Any, request: bytes) -> None:
        # Share the backend's parts: this is the same open store.
        vars(self).update(vars(backend))
        self._viewed = backend
        self._request = request

    def _for(self, verb: str, *arguments: object) -> Backend:
        return self._for_digest(asked(verb, *arguments))

    def _for_digest(self, arguments: bytes) -> Backend:
        """Return the backend on a core that remembers; `arguments` is a digest of the verb and its arguments."""
        view = object.__new__(self._plain)
        parts = vars(self._viewed)
        vars(view).update(parts)
        view._core = self._remembering(parts["_core"], self._request, arguments)
        found: Backend = view
        return found

    def enqueue(self, name: QueueName, jobs: Sequence[JobRequest]) -> list[Enqueued]:
        return self._for_digest(asked_to_enqueue(name, jobs)).enqueue(name, jobs)

    def claim(
        self, names: Sequence[QueueName], request: ClaimRequest, cancel: threading.Event | None = None
    ) -> Leased | None:
        if request.id is None:  # a claim with an id of its own is repeatable by that
            request = msgspec.structs.replace(request, id=self._request.hex())
        found: Leased | None = self._viewed.claim(names, request, cancel)
        return found

    def claim_any(
        self, request: ClaimRequest, among: AnyQueues, cancel: threading.Event | None = None
    ) -> Leased | None:
        if request.id is None:
            request = msgspec.structs.replace(request, id=self._request.hex())
        found: Leased | None = self._viewed.claim_any(request, among, cancel)
        return found

    def settle(self, name: QueueName, items: Sequence[Settle]) -> list[TenureError | None]:
        return self._for_digest(asked_to_settle(name, items)).settle(name, items)

    def extend(self, name: QueueName, lease: bytes, lease_ms: int) -> Extended:
        return self._for("extend", name, lease, lease_ms).extend(name, lease, lease_ms)

    def progress(self, name: QueueName, proof: Proof, fraction: float, note: str | None) -> None:
        self._for("progress", name, proof, fraction, note).progress(name, proof, fraction, note)

    def record_step(self, name: QueueName, proof: Proof, step: str, value: bytes) -> bytes:
        return self._for("record_step", name, proof, step, value).record_step(name, proof, step, value)

    def signal(self, name: QueueName, job: bytes, signal: str, payload: bytes) -> bool:
        return self._for("signal", name, job, signal, payload).signal(name, job, signal, payload)

    def replay(self, name: QueueName, request: ReplayRequest, progress: Progress | None = None) -> Replayed:
        return self._for("replay", name, request).replay(name, request, progress)

    def restore(self, name: QueueName, jobs: Sequence[JobImage]) -> Restored:
        return self._for("restore", name, jobs).restore(name, jobs)

    def discard(self, name: QueueName, state: str, tokens: Mapping[bytes, int]) -> JobIds:
        return self._for("discard", name, state, sorted(tokens.items())).discard(name, state, tokens)

    def cancel(self, name: QueueName, job: bytes) -> bool:
        return self._for("cancel", name, job).cancel(name, job)

    def purge(self, name: QueueName, state: str, progress: Progress | None = None) -> int:
        return self._for("purge", name, state).purge(name, state, progress)

    def set_paused(self, name: QueueName, paused: bool) -> None:
        self._for("set_paused", name, paused).set_paused(name, paused)

    def configure(self, policies: Mapping[QueueName, Policy]) -> None:
        self._for("configure", sorted(policies.items(), key=lambda item: item[0])).configure(policies)

    def delete_queue(self, name: QueueName, force: bool) -> bool:
        return self._for("delete_queue", name, force).delete_queue(name, force)

    def replace_queues(self, tenant: str, policies: Mapping[str, Policy]) -> None:
        self._for("replace_queues", tenant, sorted(policies.items())).replace_queues(tenant, policies)

    def change_schedule(self, tenant: str, name: str, change: ScheduleChange) -> bool:
        return self._for("change_schedule", tenant, name, change).change_schedule(tenant, name, change)

    def set_quota(self, tenant: str, quota: Quota) -> None:
        self._for("set_quota", tenant, quota).set_quota(tenant, quota)

    def cleanup(self, before_ms: int | None, limit: int, progress: Progress | None = None) -> int:
        return self._for("cleanup", before_ms, limit).cleanup(before_ms, limit, progress)

    def forget_consumer(self, consumer: str) -> bool:
        return self._for("forget_consumer", consumer).forget_consumer(consumer)

    def close(self) -> None:
        """Do nothing: the view does not own the store."""
