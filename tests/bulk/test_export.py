"""Tables by a store's address, and as files."""

from __future__ import annotations

import base64
import csv
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tenure
from tenure import bulk
from tenure.api.store import Store
from tenure.bulk.export_files import export
from tenure.errors import InvalidArgument, OpenError
from tests.bulk.filling import fill


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with tenure.open(f"rocksdb:{tmp_path_factory.mktemp('export') / 'data'}", sweep=False) as made:
        fill(made)
        yield made


def test_another_process_reads_a_store_that_this_one_owns(store: Store) -> None:
    program = "import sys; from tenure import bulk; print(bulk.read(sys.argv[1], 'jobs', columns=['id']).num_rows)"
    found = subprocess.run([sys.executable, "-c", program, store.url], capture_output=True, text=True, check=True)
    assert int(found.stdout) == bulk.read(store, "jobs", columns=["id"]).num_rows > 0
    assert store.snapshots() == [], "what was read is let go of"


def test_a_server_is_read_by_its_address(store: Store) -> None:
    import socket

    from tenure.backends.owner.listener import Listener
    from tenure.bulk import snapshot_locations
    from tenure.protocol.dispatcher import Dispatcher

    listening = socket.create_server(("127.0.0.1", 0))
    listener = Listener(listening, Dispatcher(store.backend))
    try:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        assert bulk.read(url, "jobs").equals(bulk.read(store, "jobs"))
        assert bulk.read(url, "events", columns=["number"], queue="emails").equals(
            bulk.read(store, "events", columns=["number"], queue="emails")
        )
    finally:
        for server in snapshot_locations._servers.values():
            server.close()
        snapshot_locations._servers.clear()
        listener.stop()


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_binary_formats_hold_the_table(store: Store, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "jobs"
    truth = bulk.read(store, "jobs")
    assert export(store, "jobs", path, kind) == truth.num_rows
    if kind == "parquet":
        assert pq.read_table(path).equals(truth)
    else:
        with pa.memory_map(str(path)) as file:
            assert pa.ipc.open_file(file).read_all().equals(truth)
    assert list(tmp_path.iterdir()) == [path], "no draft is left"


def test_text_formats_hold_the_table(store: Store, tmp_path: Path) -> None:
    truth = bulk.read(store, "jobs", state=["dead", "done"]).to_pylist()
    export(store, "jobs", tmp_path / "j", "jsonl", state=["dead", "done"])
    rows = [msgspec.json.decode(line) for line in (tmp_path / "j").read_bytes().splitlines()]
    assert [base64.b64decode(row["payload"]) for row in rows] == [row["payload"] for row in truth]
    assert [row["headers"] for row in rows] == [dict(row["headers"]) for row in truth]
    export(store, "jobs", tmp_path / "c", "csv", columns=["id", "error", "created_at"], state=["dead", "done"])
    with (tmp_path / "c").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["id"], line["error"] or None) for line in lines] == [(row["id"], row["error"]) for row in truth]
    assert [line["created_at"] for line in lines] == [row["created_at"].isoformat() for row in truth]


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OpenError, match="holds no store"):
        bulk.read(f"rocksdb:{tmp_path / 'nothing'}", "jobs")
    assert not (tmp_path / "nothing").exists(), "reading makes no store"
    with pytest.raises(InvalidArgument, match="lives in its own process"):
        bulk.read("memory:", "jobs")
    with tenure.open("memory:", sweep=False) as store, pytest.raises(InvalidArgument, match="no column"):
        export(store, "jobs", tmp_path / "x", "parquet", columns=["nope"])
    assert list(tmp_path.iterdir()) == []


def test_a_store_without_snapshots_says_what_to_do(tmp_path: Path) -> None:
    """Redis and Valkey keep no moment to read: a copy of the store is one."""
    with pytest.raises(InvalidArgument, match="copy this store first: tenure migrate"):
        export("redis://127.0.0.1:1/0", "jobs", tmp_path / "jobs.parquet", "parquet")


def test_a_file_that_cannot_be_written_is_named_as_the_caller_did(store: Store, tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "jobs.csv"
    with pytest.raises(InvalidArgument, match=f"{missing} cannot be written: No such file"):
        export(store, "jobs", missing, "csv")
    with pytest.raises(InvalidArgument, match=f"{tmp_path} is a folder"):
        export(store, "jobs", tmp_path, "csv")
    assert not list(tmp_path.glob(".*csv*")), "no draft is left"


def test_two_exports_to_one_file_leave_one_whole(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "jobs.parquet"
    with ThreadPoolExecutor(4) as threads:
        counts = list(threads.map(lambda _: export(store, "jobs", target, "parquet"), range(8)))
    assert set(counts) == {pq.read_table(target).num_rows}
    assert list(tmp_path.iterdir()) == [target]
