"""A backend for one request (`Backend.once`): each verb that writes runs on a core that keeps its outcome; the rest is as it was.

class KvOnce(OnceVerbs, KvBackend): ...        the verbs below, in front of the backend's own
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tenure.contract.backend import Backend, JobIds, Progress
from tenure.errors import TenureError
from tenure.model.job import Enqueued, Replayed, Restored
from tenure.model.lease import ClaimRequest, Extended, Leased, Proof, Settle
from tenure.model.names import QueueName
from tenure.model.quota import Quota
from tenure.model.request import JobImage, JobRequest, ReplayRequest
from tenure.model.retry import Policy
from tenure.queueing.outcomes import asked, asked_to_enqueue, asked_to_settle


class OnceVerbs:
    #: The backend's class, whose verbs do the work, and its core's for a request that is remembered.
    _plain: Any
    _remembering: Any

    def __init__(self, backend: Any, request: bytes) -> None:
        # Not made anew: it is the same store, seen for one request.
        vars(self).update(vars(backend))
        self._backend = backend
        self._request = request

    def _once(self, verb: str, *arguments: object) -> Backend:
        return self._asked(asked(verb, *arguments))

    def _asked(self, asked_for: bytes) -> Backend:
        view = object.__new__(self._plain)
        kept = vars(self._backend)
        vars(view).update(kept)
        view._core = self._remembering(kept["_core"], self._request, asked_for)
        found: Backend = view
        return found

    def enqueue(self, name: QueueName, jobs: Sequence[JobRequest]) -> list[Enqueued]:
        return self._asked(asked_to_enqueue(name, jobs)).enqueue(name, jobs)

    def claim(
        self, names: Sequence[QueueName], request: ClaimRequest, cancel: threading.Event | None = None
    ) -> Leased | None:
        if request.id is None:  # a claim's own id makes it one that can be repeated
            request = msgspec.structs.replace(request, id=self._request.hex())
        found: Leased | None = self._backend.claim(names, request, cancel)
        return found

    def settle(self, name: QueueName, items: Sequence[Settle]) -> list[TenureError | None]:
        return self._asked(asked_to_settle(name, items)).settle(name, items)

    def extend(self, name: QueueName, lease: bytes, lease_ms: int) -> Extended:
        return self._once("extend", name, lease, lease_ms).extend(name, lease, lease_ms)

    def progress(self, name: QueueName, proof: Proof, fraction: float, note: str | None) -> None:
        self._once("progress", name, proof, fraction, note).progress(name, proof, fraction, note)

    def replay(self, name: QueueName, request: ReplayRequest, progress: Progress | None = None) -> Replayed:
        return self._once("replay", name, request).replay(name, request, progress)

    def restore(self, name: QueueName, jobs: Sequence[JobImage]) -> Restored:
        return self._once("restore", name, jobs).restore(name, jobs)

    def discard(self, name: QueueName, state: str, tokens: Mapping[bytes, int]) -> JobIds:
        return self._once("discard", name, state, sorted(tokens.items())).discard(name, state, tokens)

    def cancel(self, name: QueueName, job: bytes) -> bool:
        return self._once("cancel", name, job).cancel(name, job)

    def purge(self, name: QueueName, state: str, progress: Progress | None = None) -> int:
        return self._once("purge", name, state).purge(name, state, progress)

    def set_paused(self, name: QueueName, paused: bool) -> None:
        self._once("set_paused", name, paused).set_paused(name, paused)

    def configure(self, policies: Mapping[QueueName, Policy]) -> None:
        self._once("configure", sorted(policies.items(), key=lambda item: item[0])).configure(policies)

    def set_quota(self, tenant: str, quota: Quota) -> None:
        self._once("set_quota", tenant, quota).set_quota(tenant, quota)

    def cleanup(self, before_ms: int | None, limit: int, progress: Progress | None = None) -> int:
        return self._once("cleanup", before_ms, limit).cleanup(before_ms, limit, progress)

    def forget_consumer(self, consumer: str) -> bool:
        return self._once("forget_consumer", consumer).forget_consumer(consumer)

    def close(self) -> None:
        """The store is not the view's to close."""
