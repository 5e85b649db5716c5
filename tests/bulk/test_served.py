"""Tables through a server: pages of Arrow, read by processes beside it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest

import tenure
from tenure import Corrupt, SnapshotExpired, bulk
from tenure.api.store import Store
from tenure.backends.owner.listener import Listener
from tenure.bulk import snapshot_locations, table_messages
from tenure.bulk.plan import plan
from tenure.bulk.query import Query, StoreView
from tenure.bulk.schemas import TABLES
from tenure.bulk.snapshots import view_of
from tenure.errors import InvalidArgument
from tenure.protocol.dispatcher import Dispatcher
from tenure.protocol.snapshot_readers import READERS
from tenure.storage import keyspace
from tenure.testing.harness import engine_of
from tests.bulk.filling import fill
from tests.bulk.flow_filling import fill_flows


@pytest.fixture(scope="module", params=["rocksdb", "lmdb"])
def behind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with tenure.open(f"{request.param}:{tmp_path_factory.mktemp('served') / 'data'}", sweep=False) as store:
        fill(store)
        fill_flows(store)
        yield store
        READERS.close()


@pytest.fixture(scope="module")
def url(behind: Store) -> Iterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))
    listener = Listener(listening, Dispatcher(behind._backend))
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    for server in snapshot_locations._servers.values():
        server.close()
    snapshot_locations._servers.clear()
    listener.stop()


def read(place: snapshot_locations.Place, query: Query, rows: int = 10**9) -> pa.Table:
    batches = [batch for part in place.plan(query, rows) for batch in place.read(query, part)]
    return pa.Table.from_batches([b.replace_schema_metadata() for b in batches], query.schema)


@pytest.mark.parametrize("table", TABLES)
def test_every_table_is_the_same_through_the_server(behind: Store, url: str, table: str):
    place = snapshot_locations.take(url, 60_000)
    truth = bulk.read(behind, table, snapshot=place.id).to_pylist()
    assert read(place, Query(table)).to_pylist() == truth
    assert read(place, Query(table), 150).to_pylist() == truth
    behind.drop_snapshot(place.id)


def paged(moment: StoreView, query: Query) -> list[list[pa.RecordBatch]]:
    """The batches of each page, one page after the other."""
    pages = []
    for part in plan(moment, query, 10**9):
        for begin, end in part.ranges:
            following: bytes | None = begin
            while following is not None:
                page = table_messages.page(moment, query, part.space, (following, end))
                batches, following = table_messages.unpacked(page)
                pages.append([batch.replace_schema_metadata() for batch in batches])
    return pages


@pytest.mark.parametrize("table", TABLES)
def test_pages_go_on_where_the_last_one_ended(behind: Store, url: str, table: str, monkeypatch: pytest.MonkeyPatch):
    """A page is at least a batch: with the smallest pages, every batch is one."""
    monkeypatch.setattr(table_messages, "PAGE_BYTES", 1)
    query = Query(table)
    with view_of(behind) as moment:
        pages = paged(moment, query)
    found = pa.Table.from_batches(chain.from_iterable(pages), query.schema)
    assert found.to_pylist() == bulk.read(behind, table).to_pylist()
    if table in ("jobs", "events"):
        assert len(pages) > 2


@pytest.mark.parametrize(("columns", "states"), [("payload", ()), ("result", ()), ("payload", ("done",))])
def test_a_page_of_large_jobs_ends_where_its_last_batch_does(tmp_path: Path, columns: str, states: tuple[str, ...]):
    """The states of many jobs are read at once, and a batch has as many of the jobs as its bytes allow."""
    query = Query("jobs", ("id", columns), states=states)
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", sweep=False) as store:
        queue = store.queue("large")
        ids = [queue.enqueue(bytes([number]) * (1 << 20)).id for number in range(40)]
        for delivery in queue.claim(limit=12, lease=600):
            queue.ack(delivery, result=b"r" * (3 << 20))
        with view_of(store) as moment:
            pages = paged(moment, query)
    found = pa.Table.from_batches(chain.from_iterable(pages), query.schema)
    assert found.column("id").to_pylist() == (ids[:12] if states else ids)
    assert len(pages) > 1


def test_filters_and_columns_go_along(behind: Store, url: str):
    place = snapshot_locations.find(url, behind.take_snapshot("audit", 60).id)
    query = Query("jobs", ("id", "error"), "acme", "emails", ("dead", "done"))
    truth = bulk.read(behind, "jobs", columns=["id", "error"], tenant="acme", queue="emails", state=["dead", "done"])
    assert read(place, query).to_pylist() == truth.to_pylist()
    assert len(truth) == 16
    events = [b for part in place.events(3, 6, 10) for b in place.read(Query("events", ("commit",)), part)]
    assert {n for batch in events for n in batch.column(0).to_pylist()} == {3, 4, 5}


def test_errors_come_through_as_they_are(behind: Store, url: str):
    place = snapshot_locations.take(url, 60_000)
    with pytest.raises(InvalidArgument, match="unknown table"):
        snapshot_locations._server(url, None).table_parts(place.id, "nope")
    with pytest.raises(InvalidArgument, match="hex digits"):
        snapshot_locations._server(url, None).read_table(place.id, "jobs", space=4, begin="xyz", end="ff")
    behind.drop_snapshot(place.id)
    with pytest.raises(SnapshotExpired):
        place.plan(Query("jobs"), 10)
    with pytest.raises(SnapshotExpired):
        snapshot_locations.find(url, "never-given")


def test_a_reader_that_dies_is_replaced(behind: Store, url: str):
    place = snapshot_locations.take(url, 60_000)
    assert len(place.plan(Query("jobs"), 100)) == 5
    for process in READERS._idle:
        process.kill()
        process.wait()
    assert len(place.plan(Query("jobs"), 100)) == 5


def test_damage_is_named_through_the_server(behind: Store, url: str, tmp_path: Path):
    job = behind.queue("emails", tenant="acme").list("dead", limit=1).jobs[0]
    key = keyspace.of_queue(1, bytes.fromhex(job.id))
    good = engine_of(behind).read(lambda reader: reader.get(keyspace.STATE, key))
    assert good is not None
    engine_of(behind).transact(lambda tx: tx.put(keyspace.STATE, key, good[:-1] + b"?"))
    place = snapshot_locations.take(url, 60_000)
    with pytest.raises(Corrupt) as damage:
        read(place, Query("jobs"))
    assert damage.value.job_id == job.id
    engine_of(behind).transact(lambda tx: tx.put(keyspace.STATE, key, good))
