"""`store.tables()`: one moment as Arrow, pandas, polars and DuckDB, embedded and from a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.api.store import Store
from tenure.bulk.schemas import TABLES
from tenure.errors import InvalidArgument
from tenure.server.service import Bind, Service, listening
from tenure.server_settings import Server


@pytest.fixture(params=["rocksdb", "http"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with tenure.open(f"rocksdb:{tmp_path / 'data'}") as made:
        for tenant, queue, payload in (
            ("default", "mail", b"a"),
            ("default", "mail", b"b"),
            ("acme", "pictures", b"c"),
        ):
            made.queue(queue, tenant).enqueue(payload, headers={"lang": "en"})
        made.queue("mail").fail(made.queue("mail").claim()[0], error="550 no such user")
        if request.param == "rocksdb":
            yield made
            return
        bind = Bind("127.0.0.1", 0)
        with (
            listening(bind) as sock,
            Service(made, bind, Server()).running(sock),
            tenure.open(f"http://127.0.0.1:{sock.getsockname()[1]}") as remote,
        ):
            yield remote


def test_one_moment_in_every_form(store: Store):
    with store.tables() as tables:
        store.queue("mail").enqueue(b"later")  # not in this moment
        jobs = tables.read("jobs")
        assert sorted(jobs.column("payload").to_pylist()) == [b"a", b"b", b"c"]
        dead = tables.pandas("jobs", state="dead", columns=["queue", "payload", "error"])
        assert dead.to_dict("records") == [{"queue": "mail", "payload": b"a", "error": "550 no such user"}]
        frame = tables.polars("jobs", tenant="acme")
        assert frame.select("queue", "payload").rows() == [("pictures", b"c")]
        with tables.duckdb() as connection:
            asked = "SELECT queue, state, count(*) FROM jobs GROUP BY ALL ORDER BY ALL"
            assert connection.sql(asked).fetchall() == [
                ("mail", "dead", 1),
                ("mail", "ready", 1),
                ("pictures", "ready", 1),
            ]
            for table in TABLES:
                assert connection.sql(f"SELECT count(*) FROM {table}").fetchall()[0][0] >= 0
            joined = "SELECT count(*) FROM jobs JOIN events ON events.job_id = jobs.id WHERE events.type = 'enqueued'"
            assert connection.sql(joined).fetchall() == [(3,)]
        with tables.duckdb(queue="pictures") as connection:
            assert connection.sql("SELECT count(*) FROM jobs").fetchall() == [(1,)]
    with store.tables() as tables:
        assert tables.read("jobs").num_rows == 4
    assert store.snapshots() == []


def test_a_named_snapshot(store: Store):
    taken = store.take_snapshot("nightly")
    store.queue("mail").enqueue(b"later")
    with store.tables(snapshot=taken.id) as tables:
        assert tables.read("jobs").num_rows == 3
    assert [kept.id for kept in store.snapshots()] == [taken.id]


def test_a_selection_that_does_not_exist_is_refused(store: Store):
    """It would otherwise read all rows."""
    wrong: dict[str, Any]
    for wrong, says in (({"sate": "dead"}, "did you mean 'state'"), ({"limit": 5}, "there are columns, tenant")):
        with pytest.raises(TypeError, match=says), store.tables() as tables:
            tables.read("jobs", **wrong)
    with pytest.raises(InvalidArgument, match="columns is a list of names"), store.tables() as tables:
        tables.read("jobs", columns="id")
    assert store.snapshots() == []
