"""Enqueue the jobs of schedules, with verbs that every backend has."""

from __future__ import annotations

from tenure.contract.backend import Backend
from tenure.model.job import Enqueued
from tenure.model.names import QueueName
from tenure.model.request import JobRequest
from tenure.model.schedule import Schedule

#: Header of a job enqueued by a schedule: the tick's time, `2026-03-29T03:00:00+02:00[Europe/Berlin]`.
TICK_HEADER = "tenure-tick"


def run_now(backend: Backend, schedule: Schedule) -> Enqueued:
    """Enqueue a schedule's job now. Raises what `enqueue` raises."""
    request = JobRequest(schedule.payload, priority=schedule.priority, max_attempts=schedule.max_attempts)
    return backend.enqueue(QueueName(schedule.tenant, schedule.queue), (request,))[0]


def enqueue_tick(backend: Backend, schedule: Schedule, tick_ms: int) -> bool:
    """Enqueue a schedule's job for a tick; False if it was enqueued before. Raises what `enqueue` raises."""
    request = JobRequest(
        schedule.payload, priority=schedule.priority, max_attempts=schedule.max_attempts,
        key=f"schedule:{schedule.name}:{schedule.revision}:{tick_ms}",
        headers={TICK_HEADER: schedule.ticks.local(tick_ms)},
    )  # fmt: skip
    return not backend.enqueue(QueueName(schedule.tenant, schedule.queue), (request,))[0].duplicate
