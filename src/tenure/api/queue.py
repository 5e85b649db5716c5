"""`Queue`: the verbs on one queue. They check arguments and call the backend."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import DEBUG
from operator import attrgetter
from time import perf_counter
from types import TracebackType
from typing import Any, Literal

import msgspec

from tenure.api.claim import Claim
from tenure.api.queue_list import QueueList
from tenure.contract.backend import Backend, Children, Events, Parents, Progress, Steps
from tenure.contract.job_facts import read_facts
from tenure.errors import Corrupt, InvalidArgument, TenureError
from tenure.model.attachments import Attached, image_with_attachments
from tenure.model.durations import Duration, Moment, duration_ms
from tenure.model.explanation import Explanation, utc
from tenure.model.explanation import explain as explained
from tenure.model.group import GroupPage
from tenure.model.ids import job_id_bytes
from tenure.model.job import MAX_ERROR_CHARS, Counts, Enqueued, Job, NewJob, Page, Replayed, Restored, Where
from tenure.model.lease import (
    MAX_CLAIM,
    AlikeSettles,
    ClaimRequest,
    Delivery,
    Extended,
    Leased,
    Settle,
    Settled,
    proof_of,
)
from tenure.model.lifecycle import SHOWN, checked_shown
from tenure.model.names import MAX_KEY_BYTES, MAX_WORKER_BYTES, QueueName, short_text
from tenure.model.request import checked_bytes, follow_ups, job_request, job_requests, number, replay_request
from tenure.model.retry import Policy, whole_number
from tenure.model.step import checked_signal_name, checked_step
from tenure.telemetry import Meter, Telemetry, wanted

MAX_RESTORE = 1_000
Ids = list[str]  # an alias, because `list` is a verb below
_CLAIM_ONE = ClaimRequest(1)
_NOTHING_ATTACHED: Mapping[str, Attached] = {}
_PLAIN_OPTIONS = (None, None, 0, None, None, None, None, "error", None)
_job, _token, _name, _lease = map(attrgetter, ("job", "token", "name", "lease"))
Settleable = Delivery | str
"""A delivery, or its receipt."""


class Queue:
    """A handle on one queue of one tenant. Thread-safe."""

    def __init__(self, backend: Backend, telemetry: Telemetry, name: QueueName) -> None:
        self._backend = backend
        self._telemetry = telemetry
        self._span = telemetry.spans(name)
        self._enqueues, self._claims, self._acks = map(telemetry.meter, ("enqueue", "claim", "ack"))
        self.name = name

    @property
    def tenant(self) -> str:
        return self.name.tenant

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    # ── produce ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(
        self,
        payload: bytes | NewJob,
        *,
        delay: Duration | None = None,
        at: Moment | None = None,
        priority: int = 0,
        key: str | None = None,
        max_attempts: int | None = None,
        ttl: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        on_conflict: Literal["error", "keep"] = "error",
        group: str | None = None,
    ) -> Enqueued:
        """Add a job. `key` makes it idempotent; `ttl` removes it if it is not claimed in time; groups take turns.

        `on_conflict`: if a job with another payload holds the key, raise KeyConflict ("error") or return that job
        ("keep").
        """
        if (delay, at, priority, key, max_attempts, ttl, headers, on_conflict, group) != _PLAIN_OPTIONS:
            if isinstance(payload, NewJob):
                raise InvalidArgument("give options to the NewJob, or with bytes, not both")
            payload = NewJob(payload, delay, at, priority, key, max_attempts, ttl, headers, on_conflict, group=group)
        request = job_request(payload)
        began = perf_counter()
        try:
            added = self._backend.enqueue(self.name, (request,))[0]
        except BaseException as error:
            self._enqueues.record_failure(began, type(error))
            raise
        self._enqueues.record(began, 1)
        if wanted(DEBUG):
            self._telemetry.debug("enqueued", queue=str(self.name), ids=[added.id])
        return added

    def enqueue_many(self, jobs: Iterable[bytes | NewJob]) -> list[Enqueued]:
        """Add jobs in one transaction, all or none. Results come in order.

        A batch beyond `traits.atomic_bytes` raises TooLarge; with `traits.cuts_batches` it becomes several
        transactions.
        """
        requests = job_requests(jobs)
        if not requests:
            return []
        with self._span("enqueue_many") as span:
            added = self._backend.enqueue(self.name, requests)
            span.jobs(len(added))
        if self._telemetry.debugging:
            self._telemetry.debug("enqueued", queue=str(self.name), ids=[e.id for e in added])
        return added

    # ── consume ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def claim(
        self,
        limit: int = 1,
        lease: Duration | None = None,
        wait: Duration = 0,
        worker: str = "",
        *,
        max_bytes: int | None = None,
        id: str | None = None,
    ) -> Claim:
        """Claim up to `limit` jobs under one lease (default: the policy's), waiting up to `wait` for the first.

        A repeated claim with the same `id` returns the same jobs, those still open, instead of claiming more.
        """
        if limit == 1 and (lease, wait, worker, max_bytes, id) == (None, 0, "", None, None) and type(limit) is int:
            request = _CLAIM_ONE  # the most common request, built in advance
        else:
            request = claim_request(limit, lease, wait, worker, max_bytes, id)
        began = perf_counter()
        try:
            leased = self._backend.claim((self.name,), request)
        except BaseException as error:
            self._claims.record_failure(began, type(error))
            raise
        return claimed(self._telemetry, (self,), leased, began)

    def ack(
        self, delivery: Settleable, result: bytes | None = None, *, then: Sequence[bytes | NewJob] | None = None
    ) -> None:
        """Mark the job done. Raises LeaseLost if the delivery no longer holds it.

        `then` are jobs to enqueue in the same transaction, each into this queue or the `queue` it names: all of it
        happens, or nothing. So it also raises what `enqueue` raises (QueueFull, KeyConflict).
        """
        if result is None and then is None:
            item = Settle("ack", proof_of(delivery))
        else:
            result = None if result is None else checked_bytes("result", result)
            item = Settle("ack", proof_of(delivery), result, then=follow_ups(then))
        self._settle_one("ack", item, delivery, self._acks)

    def nack(self, delivery: Settleable, error: str | None = None, delay: Duration | None = None) -> None:
        """Report a failed attempt: the policy decides when the job is retried, or that it is dead."""
        delay_ms = None if delay is None else duration_ms("delay", delay)
        self._settle_one("nack", Settle("nack", proof_of(delivery), None, _checked_error(error), delay_ms), delivery)

    def fail(self, delivery: Settleable, error: str | None = None) -> None:
        """Report that the job can never succeed: it is dead at once."""
        self._settle_one("fail", Settle("fail", proof_of(delivery), None, _checked_error(error)), delivery)

    def release(self, delivery: Settleable) -> None:
        """Put the job back at its place in the queue, ready at once. The attempt is not counted."""
        self._settle_one("release", Settle("release", proof_of(delivery)), delivery)

    def snooze(self, delivery: Settleable, delay: Duration, *, until_signal: str | None = None) -> None:
        """Put the job back, ready after `delay` or at a signal, whichever comes first.

        The attempt is not counted.
        """
        delay_ms = duration_ms("delay", delay)
        until = None if until_signal is None else checked_signal_name(until_signal)
        self._settle_one(
            "snooze", Settle("release", proof_of(delivery), delay_ms=delay_ms, until_signal=until), delivery
        )

    def ack_many(self, deliveries: Iterable[Settleable]) -> Settled:
        """Mark jobs done in one transaction. `lost` lists those whose lease the caller no longer held.

        `damaged` lists those whose rows cannot be read.
        """
        return self._settle_many("ack", deliveries)

    def release_many(self, deliveries: Iterable[Settleable]) -> Settled:
        return self._settle_many("release", deliveries)

    def settle_many(self, items: Sequence[Settle]) -> list[TenureError | None]:
        """Apply different verdicts in one transaction, for sinks and servers.

        Returns None or the error of each, in order.
        """
        with self._span("settle_many") as span:
            outcomes = self._backend.settle(self.name, items)
            span.jobs(len(outcomes))
        return outcomes

    def extend(self, claim: Claim | Settleable, seconds: Duration | None = None) -> Extended:
        """Extend the lease of the whole claim to at least `seconds` from now (default: the policy's lease)."""
        if isinstance(claim, Claim):
            lease = claim.lease
            if lease is None:
                raise InvalidArgument("an empty claim has no lease to extend")
        else:
            self._check_own(claim)
            lease = proof_of(claim).lease
        lease_ms = duration_ms("seconds", self.policy().lease if seconds is None else seconds, minimum_ms=1)
        with self._span("extend"):
            extended = self._backend.extend(self.name, lease, lease_ms)
        if self._telemetry.debugging:
            self._telemetry.debug("extended", queue=str(self.name), lease=lease.hex(), until_ms=extended.until_ms)
        return extended

    def progress(self, delivery: Settleable, fraction: float, note: str | None = None) -> None:
        """Store the delivery's progress (0 to 1), which `get` and `list` show. Raises LeaseLost."""
        if isinstance(fraction, bool) or not 0 <= number(fraction) <= 1:
            raise InvalidArgument(f"progress {fraction!r} must be from 0 to 1")
        with self._span("progress"):
            self._check_own(delivery)
            self._backend.progress(self.name, proof_of(delivery), float(fraction), _checked_error(note))

    def record_step(self, delivery: Settleable, name: str, value: bytes) -> bytes:
        """Store the value of a step of the delivery's job, once.

        Returns the stored value, from this call or an earlier one.

        A later delivery finds it in `steps`. Raises LeaseLost, TooLarge (64 KiB a step; 1 MiB and 1,000 steps a job).
        """
        step, data = checked_step("step", name, value)
        with self._span("record_step"):
            self._check_own(delivery)
            return self._backend.record_step(self.name, proof_of(delivery), step, data)

    def _settle_one(self, verb: str, item: Settle, delivery: Settleable, meter: Meter | None = None) -> None:
        if type(delivery) is not Delivery or delivery.name is not self.name:
            self._check_own(delivery)
        if meter is None:
            meter = self._telemetry.meter(verb)
        began = perf_counter()
        try:
            outcome = self._backend.settle(self.name, (item,))[0]
            if outcome is not None:
                raise outcome
        except BaseException as error:
            meter.record_failure(began, type(error))
            raise
        meter.record(began, 1)
        if wanted(DEBUG):
            self._telemetry.debug(
                "settled", verb=verb, queue=str(self.name), id=item.proof.job.hex(), token=item.proof.token
            )

    def _settle_many(self, verb: str, deliveries: Iterable[Settleable]) -> Settled:
        given: list[Any] = list(deliveries)
        if not given:
            return Settled([], [])
        items: Sequence[Settle]
        if self._of_one_claim(given):  # receipts made by this process need no check
            jobs = list(map(_job, given))
            items = AlikeSettles(verb, given[0].lease, jobs, list(map(_token, given)))
        else:
            for delivery in given:
                self._check_own(delivery)
            items = [Settle(verb, proof_of(delivery)) for delivery in given]
            jobs = [item.proof[0] for item in items]
        with self._span(verb + "_many") as span:
            outcomes = self._backend.settle(self.name, items)
            span.jobs(len(items))
        done = list(map(bytes.hex, jobs))
        settled = Settled(done, [])
        if any(outcomes):
            ended = list(zip(done, outcomes, strict=True))
            settled = Settled(
                [job for job, outcome in ended if outcome is None],
                [job for job, outcome in ended if outcome is not None and not isinstance(outcome, Corrupt)],
                [job for job, outcome in ended if isinstance(outcome, Corrupt)],
            )
        if self._telemetry.debugging:
            facts = msgspec.structs.asdict(settled)
            self._telemetry.debug("settled", verb=verb, queue=str(self.name), ids=facts.pop("done"), **facts)
        return settled

    def _of_one_claim(self, given: list[Any]) -> bool:
        return (
            set(map(type, given)) == {Delivery}
            and set(map(id, map(_name, given))) == {id(self.name)}
            and len(set(map(id, map(_lease, given)))) == 1
        )

    def _check_own(self, delivery: Settleable) -> None:
        if isinstance(delivery, Delivery) and delivery.name is not self.name and delivery.name != self.name:
            raise InvalidArgument(f"that delivery is from queue {delivery.name}, not {self.name}")

    # ── read ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, job_id: str) -> Job | None:
        """Return the job as it is now, or None if it does not exist."""
        with self._span("get"):
            return self._backend.get(self.name, job_id_bytes(job_id))

    def wait_for(self, job_id: str, timeout: Duration = 10) -> Job | None:
        """Wait until the job is done, dead or removed, and return it; None if there is no such job.

        Raises WaitTimeout.
        """
        timeout_ms = duration_ms("timeout", timeout)
        with self._span("wait_for"):
            return self._backend.wait_for(self.name, job_id_bytes(job_id), timeout_ms)

    def list(self, state: str = "ready", limit: int = 100, cursor: str | None = None) -> Page:
        """Return one page of the jobs in a state (scheduled, ready, leased, done, dead, blocked)."""
        checked_shown(state)
        with self._span("list"):
            return self._backend.list(self.name, state, whole_number("limit", limit, 1, 10_000), cursor)

    def counts(self) -> Counts:
        with self._span("counts"):
            return self._backend.counts(self.name)

    def groups(self, limit: int = 100, cursor: str | None = None) -> GroupPage:
        """Return one page of the groups with waiting or leased jobs: their counts, and when the oldest became ready."""
        with self._span("groups"):
            return self._backend.groups(self.name, whole_number("limit", limit, 1, 10_000), cursor)

    def find(self, key: str) -> str | None:
        """Return the id of the job that holds an idempotency key, even if the job has ended; None if there is none."""
        short_text("key", key, MAX_KEY_BYTES)
        with self._span("holder"):
            found = self._backend.holder(self.name, key)
        return None if found is None else found.hex()

    def timeline(self, job_id: str) -> Events:
        """Return the events of a job, oldest first, as far back as the journal goes."""
        with self._span("timeline"):
            return self._backend.timeline(self.name, job_id_bytes(job_id))

    def parents(self, job: Settleable) -> Parents:
        """Return the parents of this job, in the order in which it named them, with their results.

        `job` is a delivery, or a job's id.
        """
        at = job.job if isinstance(job, Delivery) else job_id_bytes(job)
        found: Parents = []
        with self._span("parents"):
            while page := self._backend.parents(self.name, at, len(found), 1000):
                found += page
        return found

    def children(self, job_id: str, limit: int = 100) -> Children:
        """Return the first jobs that wait or waited for this one. Those that ended long ago may be missing."""
        with self._span("children"):
            return self._backend.children(self.name, job_id_bytes(job_id), whole_number("limit", limit, 1, 10_000))

    def steps(self, job: Settleable) -> Steps:
        """Return the steps and signals of a job (a delivery or an id), in the order in which they were stored."""
        at = job.job if isinstance(job, Delivery) else job_id_bytes(job)
        with self._span("steps"):
            return self._backend.steps(self.name, at)

    def signal(self, job_id: str, name: str, payload: bytes = b"") -> bool:
        """Send a signal to a job; False if it already has one of that name. A job waiting for the signal becomes ready.

        Raises NotFound (there is no such job, or it is done), TooLarge.
        """
        signal, data = checked_step("signal", name, payload)
        with self._span("signal"):
            return self._backend.signal(self.name, job_id_bytes(job_id), signal, data)

    def explain(self, job_id: str, moment: Callable[[int], str] = utc) -> Explanation | None:
        """Explain in sentences where a job is, why, what happened and what happens next; None if it is unknown.

        `moment` formats a time (milliseconds since 1970).
        """
        with self._span("explain"):
            return explained(read_facts(self._backend, self.name, job_id_bytes(job_id)), moment)

    # ── manage ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def replay(
        self,
        ids: Sequence[str] | Mapping[str, int] | None = None,
        where: Where | None = None,
        limit: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        *,
        delay: Duration = 0,
    ) -> Replayed:
        """Make dead jobs waiting again, with the same id and a higher token: by ids, by cause of death, or all.

        `ids` may map each id to the token it was seen with: a job whose token has changed is skipped. `rate` (jobs a
        second) spaces the times at which they become ready, the first after `delay`; the call returns at once.
        """
        request = replay_request(ids, where, limit, rate, dry_run, delay)
        with self._span("replay") as span:
            replayed = self._backend.replay(self.name, request, progress)
            span.jobs(0 if dry_run else replayed.count)
        if not dry_run:
            self._telemetry.info("replayed", queue=str(self.name), count=replayed.count)
        return replayed

    def restore(self, jobs: Sequence[Job], attached: Mapping[str, Attached] = _NOTHING_ATTACHED) -> Restored:
        """Insert jobs as they were in another store or in an archive: same id, state, attempts and token.

        `attached` has the steps and parents of jobs, by id. A blocked job is refused if a parent that it waits for is
        neither in the store nor among these jobs.

        At most 1,000 jobs, in one transaction (in several, where `traits.cuts_batches`). Idempotent by id. A leased job
        becomes ready. Each job gets an event; `max_waiting` does not apply.
        """
        images = [image_with_attachments(job, attached.get(getattr(job, "id", ""))) for job in jobs]
        whole_number("the number of jobs", len(images), 0, MAX_RESTORE)
        with self._span("restore") as span:
            restored = self._backend.restore(self.name, images) if images else Restored(added=[], there=[], refused={})
            span.jobs(len(restored.added))
        if restored.added or restored.refused:
            self._telemetry.info(
                "restored", queue=str(self.name), count=len(restored.added), refused=len(restored.refused)
            )
        return restored

    def discard(self, tokens: Mapping[str, int], state: str = "dead") -> Ids:
        """Remove done or dead jobs that have not changed since they were read: still in this state, with this token.

        At most 1,000 jobs, in one transaction (in several, where `traits.cuts_batches`). Returns the ids of the removed
        jobs.
        """
        checked_shown(state, ("done", "dead"))
        whole_number("the number of jobs", len(tokens), 0, MAX_RESTORE)
        wanted = {job_id_bytes(job): whole_number("token", token, 0, 2**63 - 1) for job, token in tokens.items()}
        with self._span("discard") as span:
            removed = self._backend.discard(self.name, state, wanted) if wanted else []
            span.jobs(len(removed))
        if removed:
            self._telemetry.info("discarded", queue=str(self.name), state=state, count=len(removed))
        return [job.hex() for job in removed]

    def cancel(self, job_id: str) -> bool:
        """Remove a job that has not ended. A worker that holds it gets LeaseLost. False: unknown or ended."""
        with self._span("cancel"):
            cancelled = self._backend.cancel(self.name, job_id_bytes(job_id))
        if cancelled:
            self._telemetry.info("cancelled", queue=str(self.name), id=job_id)
        return cancelled

    def purge(self, state: str = "dead", progress: Progress | None = None) -> int:
        """Remove every job in a state, except leased ones (cancel those). Returns how many."""
        checked_shown(state, tuple(s for s in SHOWN if s != "leased"))
        with self._span("purge"):
            purged = self._backend.purge(self.name, state, progress)
        self._telemetry.info("purged", queue=str(self.name), state=state, count=purged)
        return purged

    def pause(self) -> None:
        """Make claims return nothing until `resume`. Enqueues continue, and leases stay valid."""
        with self._span("pause"):
            self._backend.set_paused(self.name, True)
        self._telemetry.info("paused", queue=str(self.name))

    def resume(self) -> None:
        with self._span("resume"):
            self._backend.set_paused(self.name, False)
        self._telemetry.info("resumed", queue=str(self.name))

    def configure(self, policy: Policy) -> None:
        """Set the queue's policy. Existing jobs keep their max_attempts."""
        with self._span("configure"):
            self._backend.configure({self.name: checked_policy(policy)})
        self._telemetry.info("configured", queues=[str(self.name)])

    def policy(self) -> Policy:
        return self._backend.policy(self.name)

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: a handle holds no resources. Close the store instead."""


def claim_request(
    limit: int,
    lease: Duration | None,
    wait: Duration,
    worker: str,
    max_bytes: int | None,
    id: str | None,
) -> ClaimRequest:
    return ClaimRequest(
        whole_number("limit", limit, 1, MAX_CLAIM),
        None if lease is None else duration_ms("lease", lease, minimum_ms=1),
        duration_ms("wait", wait) if wait else 0,
        short_text("worker", worker, MAX_WORKER_BYTES) if worker else "",
        None if max_bytes is None else whole_number("max_bytes", max_bytes, 1, 2**53),
        None if id is None else short_text("id", id, 256),
    )


def claim_from(queues: Sequence[Queue], request: ClaimRequest, cancel: threading.Event | None = None) -> Claim:
    """Claim from the first of these queues (of one store) that has jobs. Setting `cancel` ends the waiting."""
    first = queues[0]
    began = perf_counter()
    try:
        names = queues.names if isinstance(queues, QueueList) else [queue.name for queue in queues]
        leased = first._backend.claim(names, request, cancel)
    except BaseException as error:
        first._claims.record_failure(began, type(error))
        raise
    return claimed(first._telemetry, queues, leased, began)


def claimed(telemetry: Telemetry, queues: Sequence[Queue], leased: Leased | None, began: float) -> Claim:
    """Count a backend's claim and wrap it for the user."""
    queue = queues[0]
    count = 0 if leased is None else len(leased.given or leased.deliveries)
    queue._claims.record(began, count)
    if leased is None or not count:  # nothing to claim, or a repeated claim whose jobs are all settled
        return Claim(queue, None)
    if leased.name is not queue.name and leased.name != queue.name:
        name = leased.name
        queue = queues.find(name) if isinstance(queues, QueueList) else next(q for q in queues if q.name == name)
    if wanted(DEBUG):
        telemetry.debug(
            "claimed", queue=str(queue.name), lease=leased.lease.hex(), ids=[d.id for d in leased.deliveries]
        )
    return Claim(queue, leased)


def checked_policy(policy: object) -> Policy:
    if not isinstance(policy, Policy):
        raise InvalidArgument(f"a policy is a Policy, not {type(policy).__name__}")
    return policy.checked()


def _checked_error(error: object) -> str | None:
    """Return the error text, shortened to the stored length.

    Lone surrogates of a traceback are replaced, not refused.
    """
    if error is None:
        return None
    text = error if isinstance(error, str) else str(error)
    with contextlib.suppress(UnicodeEncodeError):
        text.encode()
        return text[:MAX_ERROR_CHARS]
    return text.encode("utf-8", "backslashreplace").decode()[:MAX_ERROR_CHARS]
