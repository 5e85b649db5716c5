"""One thing of each kind is wrong: each is found, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

import tenure
from tenure import ManualClock, Store, bulk
from tenure.spark.pipelines import audit
from tests.spark.made import live, small_plans
from tests.spark.planted import Planter

pytestmark = pytest.mark.timeout(400)  # a busy machine: the shared JVM may have to compile all of it first


@pytest.fixture(scope="module", autouse=True)
def _quick(spark: SparkSession) -> Iterator[None]:
    with small_plans(spark):
        yield


def tables(spark: SparkSession, store: Store) -> dict[str, DataFrame]:
    return {
        name: spark.createDataFrame(bulk.read(store, name, columns=columns)) for name, columns in audit.NEEDED.items()
    }


def test_damage_of_every_kind_is_found_and_nothing_else(spark: SparkSession) -> None:
    clock = ManualClock()
    with tenure.open("memory:", clock=clock, sweep=False) as store:
        live(store, clock, rounds=40)
        planter = Planter(store, clock)
        planter.all()
        found = [(row.rule, row.queue, row.job_id) for row in audit.violations(tables(spark, store)).collect()]
    told = [(rule, None if rule == "gap" else queue, job) for rule, (queue, job) in planter.planted.items()]
    assert len(told) == 17
    assert sorted(found, key=str) == sorted(told, key=str)
    assert {rule for rule, _, _ in told} == set(audit.RULES) - {"balance"}


def test_a_clean_store_breaks_no_law(spark: SparkSession) -> None:
    clock = ManualClock()
    with tenure.open("memory:", clock=clock, sweep=False) as store:
        live(store, clock, rounds=150, seed=3)
        assert audit.violations(tables(spark, store)).collect() == []
