"""Rows that are jobs of a flow: a flow is one chunk, so it is enqueued whole and once, whatever is killed."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tenure
from tenure import NewJob, Policy
from tenure.api.staged_write import Staged
from tenure.api.store import Store
from tenure.backends.owner.listener import Listener
from tenure.bulk import input_rows, staging
from tenure.bulk.publisher import Outcome, Terms, commit
from tenure.bulk.staged_rows import StagedRows
from tenure.bulk.staging import Manifest, Part
from tenure.errors import InvalidArgument, TooLarge, Unavailable
from tenure.model.names import QueueName
from tenure.protocol.dispatcher import Dispatcher
from tenure.storage.staged_parts import folder_of
from tests.backends.redis.servers import Server, running
from tests.bulk import commit_driver

WORK = QueueName("default", "work")
#: `make test-crash` kills twenty times.
KILLS = 20 if "CRASH_ROUNDS" in os.environ else 2
Row = dict[str, Any]
_TYPES = {"payload": pa.binary(), "flow": pa.string(), "name": pa.string(), "after": pa.list_(pa.string()),
          "on_parent_dead": pa.string()}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with tenure.open(f"lmdb:{tmp_path / 'data'}", sweep=False, durability="os") as made:
        yield made
        assert made.check().clean


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "staging")


def stage(root: str, rows: list[Row], *, write: str = "w", name: str = "a", batch: int = 700) -> Part:
    """Stage rows as an attempt does, in batches of so many."""
    out = StagedRows(folder_of(root, write), name, 0, None)
    for at in range(0, len(rows), batch):
        some = rows[at : at + batch]
        columns = {column: pa.array([row.get(column) for row in some], kind) for column, kind in _TYPES.items()}
        found = input_rows.check(pa.RecordBatch.from_pydict(columns), WORK)
        assert found.bad is None, found.reasons
        for queue, good in found.good:
            out.add(queue, good)
    return out.close()


def publish(store: Store, root: str, *parts: Part, write: str = "w") -> Outcome:
    return commit(store, write, Manifest(root, list(parts)), Terms())


def graph(number: int, width: int) -> list[Row]:
    """Fetch, then `width` parsers, then a report."""
    flow = f"site {number}"
    parsers = [f"parse {n}" for n in range(width)]
    rows: list[Row] = [{"payload": b"report %d" % number, "flow": flow, "after": [f"#{name}" for name in parsers]}]
    rows += [{"payload": b"parse %d" % number, "flow": flow, "name": name, "after": ["#fetch"]} for name in parsers]
    return [*rows, {"payload": b"fetch %d" % number, "flow": flow, "name": "fetch"}]


def graphs(count: int, seed: int = 1) -> list[Row]:
    dice = random.Random(seed)
    return [row for number in range(count) for row in graph(number, dice.randrange(1, 60))]


def worked_off(store: Store) -> list[str]:
    """Claims and acks until nothing is left; what ran, in order."""
    ran: list[str] = []
    while claim := store.queue("work").claim(limit=1000):
        ran += [delivery.payload.decode() for delivery in claim]
        store.queue("work").ack_many(claim)
    return ran


def check_order(ran: list[str], rows: list[Row]) -> None:
    """Each once, and after its parents."""
    assert sorted(ran) == sorted(row["payload"].decode() for row in rows)
    last = {payload: at for at, payload in enumerate(ran)}
    for number in {payload.split()[1] for payload in ran}:
        first_parse = ran.index(f"parse {number}")
        assert last[f"fetch {number}"] < first_parse <= last[f"parse {number}"] < last[f"report {number}"]


def test_a_flow_is_in_one_chunk_and_runs_in_order(store: Store, root: str) -> None:
    rows = graphs(100)
    part = stage(root, rows, batch=97)
    chunks = list(staging.read_part(folder_of(root, "w"), part))
    assert len(chunks) > 2
    places: dict[str, set[int]] = {}
    for number, chunk in enumerate(chunks):
        for flow in chunk.rows.column("flow").to_pylist():
            places.setdefault(flow, set()).add(number)
    assert {len(where) for where in places.values()} == {1}
    assert publish(store, root, part).jobs == len(rows)
    assert store.queue("work").counts().ready == 100
    again = publish(store, root, stage(root, rows, name="b"))
    assert (again.repeated, store.queue("work").counts().enqueued) == (True, len(rows))
    check_order(worked_off(store), rows)


def test_parents_that_are_stored_are_named_by_id(store: Store, root: str) -> None:
    queue = store.queue("work")
    queue.configure(Policy(max_attempts=1))
    done, dead = [job.id for job in queue.enqueue_many([NewJob(b"a", priority=9), NewJob(b"b", priority=8)])]
    rows: list[Row] = [
        {"payload": b"plain"},
        {"payload": b"child", "after": [done, dead], "on_parent_dead": "run"},
        {"payload": b"named", "flow": "f", "name": "n", "after": [done]},
        {"payload": b"last", "flow": "f", "after": ["#n", done]},
        {"payload": b"cancelled", "after": [dead]},
    ]
    assert publish(store, root, stage(root, rows)).jobs == 5
    assert (queue.counts().blocked, queue.counts().ready) == (4, 3)
    queue.ack(queue.claim()[0])
    queue.fail(queue.claim()[0], error="no")
    assert sorted(worked_off(store)) == ["child", "last", "named", "plain"]


def test_an_unknown_parent_fails_the_commit_and_adds_none_of_its_chunk(store: Store, root: str) -> None:
    rows: list[Row] = [{"payload": b"x", "after": ["0" * 31 + "1"]}, {"payload": b"y"}]
    with pytest.raises(InvalidArgument, match="is not there"):
        publish(store, root, stage(root, rows))
    assert store.queue("work").counts().enqueued == 0


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([*graph(1, 2), *graph(2, 1), graph(1, 2)[0]], "side by side"),
        (graph(1, 3)[:-1], "no row of it here is named 'fetch'"),
        ([{"payload": b"", "flow": "f", "name": "n"}] * 2, "one name"),
        (graph(1, 1000), "1002 rows"),
    ],
    ids=["scattered", "cut", "a name twice", "too large"],
)
def test_a_flow_that_is_not_whole_is_refused_where_it_is_staged(root: str, rows: list[Row], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        stage(root, rows, batch=5000)


def test_a_flow_beyond_a_chunks_bytes_is_refused(root: str) -> None:
    big = [{"payload": bytes(6 * 1024 * 1024), "flow": "f", "name": f"{n}"} for n in range(3)]
    with pytest.raises(TooLarge):
        stage(root, [dict(row) for row in big])


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"name": "n"}, "column flow"),
        ({"after": ["#n"]}, "column flow"),
        ({"after": ["nobody"]}, "not a job id"),
        ({"after": [None]}, "a parent is"),
        ({"after": ["0" * 32], "on_parent_dead": "hope"}, "cancel, run or wait"),
        ({"name": "n" * 505, "flow": "f"}, "name"),
        ({"name": "", "flow": "f"}, "name"),
    ],
)
def test_a_row_that_says_it_wrongly_is_set_aside(row: Row, why: str) -> None:
    rows: list[Row] = [{"payload": b"good"}, {"payload": b"bad", **row}]
    columns = {column: pa.array([each.get(column) for each in rows], kind) for column, kind in _TYPES.items()}
    found = input_rows.check(pa.RecordBatch.from_pydict(columns), WORK)
    assert [good.num_rows for _, good in found.good] == [1]
    assert why in found.reasons[0]


def test_a_commit_that_stopped_goes_on_after_each_chunk(
    store: Store, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = graphs(60, seed=2)
    part = stage(root, rows)
    real = Staged.publish_checked
    for stop in range(1, part.chunks):

        def until(self: Staged, number: int, *args: object, stop: int = stop) -> object:
            if number >= stop:
                raise Unavailable("the machine is gone")
            return real(self, number, *args)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(Staged, "publish_checked", until)
            with pytest.raises(Unavailable):
                publish(store, root, part)
        assert store.check().clean
    assert publish(store, root, part).jobs == len(rows)
    check_order(worked_off(store), rows)


@pytest.mark.crash
@pytest.mark.timeout(300 + 120 * KILLS)
def test_each_flow_once_though_the_commit_is_killed(tmp_path: Path) -> None:
    url, root = f"rocksdb:{tmp_path / 'data'}", str(tmp_path / "staging")
    dice, killed, took = random.Random(16), 0, 0.4
    for number in range(10 * KILLS):
        if killed == KILLS:
            break
        rows = graphs(150, seed=number)
        part = stage(root, rows, write=f"w{number}", name=f"p{number}")
        manifest = Manifest(root, [part]).encode().hex()
        command = [sys.executable, commit_driver.__file__, url, f"w{number}", str(tmp_path / "aside"), manifest]
        driver = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"open\n"
        begun = time.monotonic()
        try:
            driver.wait(dice.random() * took)
            took = min(took, 2 * (time.monotonic() - begun))  # it was quicker: aim earlier
        except subprocess.TimeoutExpired:
            os.kill(driver.pid, signal.SIGKILL)
            killed += 1
        driver.wait(30)
        driver.stdout.close()
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        with tenure.open(url, sweep=False, durability="os") as store:
            check_order(worked_off(store), rows)
            assert store.check().clean
    assert killed == KILLS


def test_a_server_takes_flows(store: Store, root: str) -> None:
    rows = graphs(10)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listener = Listener(listening, Dispatcher(store.backend))
        try:
            with tenure.open(f"http://127.0.0.1:{listening.getsockname()[1]}", sweep=False) as there:
                assert publish(there, root, stage(root, rows)).jobs == len(rows)
        finally:
            listener.stop()
    check_order(worked_off(store), rows)


@pytest.mark.xdist_group("redis")
def test_valkey_says_that_it_takes_none(root: str) -> None:
    with running(Server()) as server, tenure.open(server.url, sweep=False) as store:
        with pytest.raises(InvalidArgument, match="takes no flows"):
            publish(store, root, stage(root, graph(1, 2)))
        assert store.queue("work").counts().enqueued == 0
