"""The resource and the sensor, with the real Dagster. It is no part of the test environment: `pip install 'tenure[dagster]'`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("dagster", reason="Dagster is not installed: it brings 41 packages of its own")

import dagster as dg

import tenure
from tenure.clock import ManualClock
from tenure.errors import StoreClosed
from tenure.integrations.dagster import TenureResource, runs_of_jobs

pytestmark = pytest.mark.filterwarnings("ignore")


def run_of(delivery: tenure.Delivery) -> dg.RunRequest:
    return dg.RunRequest(tags={"day": delivery.payload.decode()})


def tick(queue: tenure.Queue, cursor: str | None) -> tuple[list[dg.RunRequest], str]:
    """One evaluation of a sensor, as Dagster's daemon makes it."""

    @dg.sensor(job_name="report")
    def reports(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return runs_of_jobs(context, queue, run_of, limit=2, lease=60)

    with dg.build_sensor_context(cursor=cursor, sensor_name="reports") as context:
        result = reports.evaluate_tick(context)
    return list(result.run_requests or ()), str(result.cursor)


def test_a_run_has_an_open_store(tmp_path: Path):
    @dg.op
    def ask(tenure: TenureResource) -> None:
        tenure.queue("mail").enqueue(b"the report is there")

    @dg.job
    def report() -> None:
        ask()

    resource = TenureResource(url=f"rocksdb:{tmp_path / 'data'}", tenant="acme")
    for _ in range(2):  # the first run closes its store
        assert report.execute_in_process(resources={"tenure": resource}).success
    with tenure.open(resource.url) as store:
        assert store.queue("mail", "acme").counts().waiting == 2
    with pytest.raises(StoreClosed):
        resource.queue("mail")


def test_a_job_is_acknowledged_by_the_tick_after_its_run():
    with tenure.open("memory:") as store:
        queue = store.queue("reports")
        jobs = [queue.enqueue(f"{day}".encode()).id for day in range(3)]
        runs, cursor = tick(queue, None)
        assert [(run.run_key, run.tags["day"]) for run in runs] == [(jobs[0], "0"), (jobs[1], "1")]
        assert (queue.counts().leased, queue.counts().waiting) == (2, 1)
        runs, cursor = tick(queue, cursor)
        assert [run.run_key for run in runs] == [jobs[2]]
        assert tick(queue, cursor) == ([], "[]")
        assert queue.counts().waiting == queue.counts().leased == 0


def test_a_lost_tick_gives_the_same_run_keys():
    clock = ManualClock()
    with tenure.open("memory:", clock=clock) as store:
        queue = store.queue("reports")
        job = queue.enqueue(b"0").id
        first, lost = tick(queue, None)
        clock.advance(61)
        again, _ = tick(queue, None)  # the cursor of the first was not stored
        assert [run.run_key for run in (*first, *again)] == [job, job]
        tick(queue, lost)  # a cursor that comes too late settles nothing
        assert queue.counts().leased == 1


def test_a_job_that_is_no_run_is_tried_again_and_the_others_run():
    with tenure.open("memory:") as store:
        queue = store.queue("reports")
        queue.enqueue(b"\xff")
        good = queue.enqueue(b"1").id
        runs, _ = tick(queue, None)
        assert [run.run_key for run in runs] == [good]
        assert queue.counts().scheduled == 1
