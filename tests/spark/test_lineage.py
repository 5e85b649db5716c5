"""OpenLineage events of our own jobs, made by the official client and written to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

import tenure
from tenure.analysis.summary import Summary
from tenure.errors import OpenError
from tenure.spark import lineage
from tenure.spark.jobs.audit import audit
from tenure.spark.lineage import traced

pytest.importorskip("openlineage.client", reason="the extra openlineage is not installed")


#: So few jobs are judged without Spark.
NO_SPARK = cast("SparkSession", None)


@pytest.fixture
def told(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(tmp_path / "events"))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    return lambda: [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]


def check(events: list[dict[str, Any]], job: str, *states: str) -> None:
    """What the specification asks of a run's events: the same run, in order, each with its time, producer and schema."""
    assert [event["eventType"] for event in events] == list(states)
    assert {event["job"]["name"] for event in events} == {job}
    assert {event["job"]["namespace"] for event in events} == {"tenure"}
    assert len({event["run"]["runId"] for event in events}) == 1
    assert [event["eventTime"] for event in events] == sorted(event["eventTime"] for event in events)
    for event in events:
        assert event["producer"] == lineage.PRODUCER
        assert event["schemaURL"].startswith("https://openlineage.io/spec/")


def test_a_job_tells_what_it_read_and_wrote(tmp_path, told):
    url = f"rocksdb:{tmp_path}/data"
    with tenure.open(url, sweep=False) as store:
        store.queue("work").enqueue_many([b"x"] * 3)
    audit(NO_SPARK, url, output=str(tmp_path / "found"))
    events = told()
    check(events, "audit", "START", "COMPLETE")
    assert [(d["namespace"], d["name"]) for d in events[1]["inputs"]] == [(url, "tenure")]
    (output,) = events[1]["outputs"]
    assert (output["namespace"], output["name"]) == ("file", str(tmp_path / "found"))
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 0


def test_a_job_that_fails_says_why(tmp_path, told):
    with pytest.raises(OpenError):
        audit(NO_SPARK, f"rocksdb:{tmp_path}/nowhere")
    events = told()
    check(events, "audit", "START", "FAIL")
    assert "OpenError" in events[1]["run"]["facets"]["errorMessage"]["message"]


def test_a_lineage_server_that_is_gone_fails_no_job(monkeypatch):
    class Gone:
        def emit(self, event: object) -> None:
            raise ConnectionError("nobody is there")

    monkeypatch.setattr(lineage, "_client", Gone)

    @traced(reads=("url",), writes=("root",))
    def job(url: str, root: str | None = None) -> Summary:
        return Summary(job="job", written=7)

    assert job("redis://:secret@host").written == 7


def test_nothing_is_told_where_nothing_is_configured(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    assert lineage._client() is None
    assert not caplog.records, "not even that nothing is"


def test_addresses_carry_no_password():
    assert "secret" not in str(lineage._dataset("url", "redis://:secret@host:6379"))
    assert lineage._dataset("root", "s3://bucket/history") == ("s3", "s3://bucket/history")
    assert lineage._dataset("root", "x") == ("file", str(Path("x").absolute()))
