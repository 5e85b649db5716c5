"""The audit without Java: one thing of each kind is wrong, each is found, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import tenure
from tenure import GroupPolicy, ManualClock, NewJob, Policy, bulk
from tenure.analysis import laws
from tenure.analysis.audit import audit
from tenure.errors import InvalidArgument, OpenError
from tests.bulk.flow_filling import fill_flows
from tests.spark.made import live
from tests.spark.planted import Planter

GROUPS = (None, "a", "b")


def test_damage_of_every_kind_is_found_and_nothing_else(tmp_path: Path) -> None:
    clock = ManualClock()
    with tenure.open("memory:", clock=clock, sweep=False) as store:
        live(store, clock, rounds=40, groups=GROUPS)
        planter = Planter(store, clock)
        planter.all()
        summary = audit(store, output=str(tmp_path / "found"))
    rows = pq.read_table(tmp_path / "found").to_pylist()
    assert summary.facts["violations"] == rows
    found = [(row["rule"], row["queue"], row["job_id"]) for row in rows]
    told = [(rule, None if rule == "gap" else queue, job) for rule, queue, job in planter.planted]
    assert len(told) == 30
    assert sorted(found, key=str) == sorted(told, key=str)
    assert {rule for rule, _, _ in told} == set(laws.RULES) - {"balance"}
    assert (summary.rejected, summary.written) == (30, 30)


def test_a_clean_store_breaks_no_law(tmp_path: Path) -> None:
    clock = ManualClock()
    url = f"rocksdb:{tmp_path / 'data'}"
    with tenure.open(url, clock=clock, sweep=False, durability="os") as store:
        live(store, clock, rounds=150, seed=3, groups=GROUPS)
        store.queue("emails").configure(Policy(group=GroupPolicy(max_leased=1, rate="1/m")))
        store.queue("emails").claim(limit=10)  # a group is at its limit, another's bucket is not full
        store.queue("emails").enqueue_many([NewJob(b"p", name="parent"), NewJob(b"c", group="a", after=["#parent"])])
        assert {row["group"] for row in bulk.read(store, "groups").to_pylist() if row["waiting"]} == {"a", "b"}
        fill_flows(store)
        jobs = bulk.read(store, "jobs", columns=["id"]).num_rows
    summary = audit(url)
    assert (summary.facts["violations"], summary.facts["jobs"]) == ([], jobs)
    with tenure.open(url, sweep=False) as store:
        assert store.snapshots() == [], "the snapshot that was read is gone"


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OpenError, match="holds no store"):
        audit(f"rocksdb:{tmp_path / 'nothing'}")
    with tenure.open("memory:", sweep=False) as store, pytest.raises(InvalidArgument, match="there already"):
        audit(store, output=str(tmp_path))
