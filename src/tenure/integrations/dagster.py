"""Dagster: a store as a resource, and a sensor that makes runs from a queue's jobs.

defs = Definitions(jobs=[report], resources={"tenure": TenureResource(url="http://queue:8400")})

@op
def ask(tenure: TenureResource) -> None:
    tenure.queue("mail").enqueue(b"the report is there")

@sensor(job=report)
def reports(context: SensorEvaluationContext, tenure: TenureResource) -> SensorResult:
    return runs_of_jobs(context, tenure.queue("reports"), lambda job: RunRequest(tags={"day": job.payload.decode()}))
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager

from dagster import ConfigurableResource, InitResourceContext, RunRequest, SensorEvaluationContext, SensorResult
from pydantic import Field, PrivateAttr

import tenure
from tenure import Delivery, Queue, Store
from tenure.errors import LeaseLost, StoreClosed
from tenure.model.names import DEFAULT_TENANT


class TenureResource(ConfigurableResource):
    """A store that is open while a run, a sensor's tick or a schedule's tick uses it.

    Every process of a deployment opens its own store: give a server's URL, or the URL of a folder on the machine that
    runs them all, where the first process owns the store and the others join it.
    """

    url: str = Field(description="The store, as tenure.open takes it: rocksdb:PATH, redis://HOST, http://HOST:PORT.")
    token: str | None = Field(default=None, description='The token of a server: EnvVar("TENURE_TOKEN").')
    tenant: str = Field(default=DEFAULT_TENANT, description="Whose queues `queue(name)` gives.")

    _store: Store | None = PrivateAttr(default=None)

    @contextmanager
    def yield_for_execution(self, context: InitResourceContext) -> Generator[TenureResource, None, None]:
        """Open the store around a run. Called by Dagster. Raises TenureError if the store cannot be opened."""
        with tenure.open(self.url, token=self.token) if self.token else tenure.open(self.url) as self._store:
            try:
                yield self
            finally:
                self._store = None

    @property
    def store(self) -> Store:
        """The open store. Raises StoreClosed outside of a run."""
        if self._store is None:
            raise StoreClosed("the resource has no open store outside of a run; Dagster opens it for one")
        return self._store

    def queue(self, name: str) -> Queue:
        """Return a queue of the resource's tenant. Raises InvalidArgument, StoreClosed."""
        return self.store.queue(name, self.tenant)


def runs_of_jobs(
    context: SensorEvaluationContext,
    queue: Queue,
    run_of: Callable[[Delivery], RunRequest],
    *,
    limit: int = 10,
    lease: float = 600,
) -> SensorResult:
    """Return one run for each waiting job, each exactly once, as a sensor's result. `run_of` makes the run of one job.

    A tick claims up to `limit` jobs and gives Dagster their runs, with the jobs' receipts as the sensor's cursor:
    Dagster stores both together. The next tick acks these jobs. If Dagster dies before it has stored them, the leases
    end and the jobs are delivered again. A repeated job has the same run key, its id, so Dagster starts no second run
    for it. `lease`, in seconds, must be longer than the time between two ticks.

    If `run_of` raises for a job, the job is retried by the queue's policy, and is dead after its last attempt.
    """
    for receipt in json.loads(context.cursor or "[]"):
        try:
            queue.ack(receipt)
        except LeaseLost:
            context.log.warning(f"the lease of {receipt} ended before this tick: its job comes again, with its run key")
    runs, receipts = [], []
    for delivery in queue.claim(limit, lease, worker=f"dagster {context.sensor_name}"):
        try:
            run = run_of(delivery)
        except Exception as error:  # a job without a run must not prevent the others' runs
            queue.nack(delivery, error=f"{type(error).__name__}: {error}")
            context.log.exception(f"no run for job {delivery.id}")
            continue
        runs.append(run.with_replaced_attrs(run_key=delivery.id))
        receipts.append(delivery.receipt)
    return SensorResult(run_requests=runs, cursor=json.dumps(receipts))
