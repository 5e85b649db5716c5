"""Histories and archives on an object store: one commit a number, whoever is killed, and files that are whole."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tenure.analysis.commit_log import CommitLog, RunConflict, new_attempt
from tenure.analysis.history_folder import Entry, HistoryFolder
from tenure.analysis.object_root import ObjectRoot
from tenure.analysis.root import LocalRoot, open_root, parquet_files
from tenure.errors import InvalidArgument, OpenError, SettingsError
from tests.analysis import object_writer, s3_server
from tests.analysis.object_writer import FILES, Run
from tests.docs.blocks import DOCS, blocks

pytest.importorskip("obstore")
#: `make test-crash` kills more.
KILLS = int(os.environ.get("OBJECT_KILLS", "4"))


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectRoot]:
    with s3_server.endpoint() as endpoint:
        for name, value in s3_server.environment(endpoint).items():
            monkeypatch.setenv(name, value)
        yield ObjectRoot(f"s3://{s3_server.BUCKET}/{new_attempt()}/root")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3_server.Objects]:
    """One of ours, which can misbehave."""
    with s3_server.serving() as made:
        for name, value in s3_server.environment(made.endpoint).items():
            monkeypatch.setenv(name, value)
        yield made


def test_files_are_found_by_their_folder(root: ObjectRoot) -> None:
    for path in ("a/2", "a/1", "a/.hidden", "a/b/3", "ab/4"):
        assert root.create(path, path.encode())
    assert root.files("a") == ["a/1", "a/2"]
    assert root.read(["a/2", "ab/4"]) == [b"a/2", b"ab/4"]
    assert [root.exists(path) for path in ("a/1", "a", "c")] == [True, False, False]
    assert root.files("nothing") == []
    with pytest.raises(FileNotFoundError):
        root.read(["a/9"])


def test_many_files_are_listed_page_by_page_and_in_order(root: ObjectRoot) -> None:
    names = [f"t/run=1/aa/part-{number:05}.parquet" for number in range(250)]
    for name in random.Random(1).sample(names, len(names)):
        root.create(name, b"x")
    assert root.files("t/run=1/aa") == names
    root.create("g/t/run=2/bb/part.parquet", b"x")
    root.create("_log/000000000001.json", b"{}")
    assert root.attempts() == ["g/t/run=2/bb", "t/run=1/aa"]
    root.remove("t/run=1/aa")
    assert root.attempts() == ["g/t/run=2/bb"]


def test_of_many_who_create_one_gets_it(root: ObjectRoot) -> None:
    start = threading.Barrier(8)
    won: list[tuple[int, int]] = []

    def create(number: int) -> None:
        start.wait()
        won.extend((path, number) for path in range(5) if root.create(f"_log/{path}.json", b"%d" % number))

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path for path, _ in won) == [0, 1, 2, 3, 4]
    assert {path: int(root.read([f"_log/{path}.json"])[0]) for path, _ in won} == dict(won)


def test_a_draft_appears_whole_or_not_at_all(root: ObjectRoot) -> None:
    def fail() -> None:
        with root.draft("t/run=1/a/part.parquet") as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert root.files("t/run=1/a") == []
    content = os.urandom(12 * 1024 * 1024)  # in parts: one request carries 5 MiB
    with root.draft("t/run=1/a/part.parquet") as file:
        file.write(content)
    with root.open("t/run=1/a/part.parquet") as found:
        assert found.seek(-100, os.SEEK_END) == len(content) - 100
        assert found.read() == content[-100:]
        found.seek(7_000_000)
        assert found.read(11) == content[7_000_000:7_000_011]


def test_parquet_is_read_by_arrow_duckdb_and_polars(root: ObjectRoot) -> None:
    for part in range(2):
        with root.draft(f"bronze/run=1/a/part-{part:05}.parquet") as file:
            pq.write_table(pa.table({"number": range(part * 1000, part * 1000 + 1000)}), file)
    assert len(parquet_files(root, "bronze/run=1/a")) == 2
    rows = root.dataset(["bronze/run=1/a"])
    assert rows.count_rows() == 2000
    duckdb = pytest.importorskip("duckdb")
    assert duckdb.sql("SELECT sum(number) FROM rows WHERE number < 1500").fetchall() == [(sum(range(1500)),)]
    polars = pytest.importorskip("polars")
    assert polars.scan_pyarrow_dataset(rows).select(polars.col("number").max()).collect().item() == 1999


def test_the_example_of_the_documents_reads_a_history(
    root: ObjectRoot, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = HistoryFolder(root.address)
    with pytest.raises(InvalidArgument, match="no history"):
        folder.dataset("bronze")
    for number in (1, 2):
        place = f"bronze/run={number}/a"
        with root.draft(f"{place}/part-00000.parquet") as file:
            pq.write_table(pa.table({"number": range(10)}), file)
        folder.log.commit(
            Entry(
                number=number, store="rocksdb:x", start={"0": 0}, end={"0": 5}, last_number={"0": 9}, start_ms=None, end_ms=1,
                tables={"bronze": place}, rows={"bronze": 10}, paused={}, slo=60,
            )
        )  # fmt: skip
    monkeypatch.setenv("HISTORY", root.address)
    block = next(block for block in blocks(DOCS / "pipelines.md") if "HistoryFolder" in block.body)
    exec(block.body, {})
    assert capsys.readouterr().out == "20\n"


def test_a_server_that_replaces_anyway_is_refused(server: s3_server.Objects) -> None:
    """Some servers take If-None-Match and do not know it: two runs would overwrite each other's commits."""
    root = open_root(f"s3://{s3_server.BUCKET}/h")
    root.check_create()
    assert server.objects == {}, "what it tried is gone"
    server.conditions = False
    with pytest.raises(InvalidArgument, match="replaces objects though it is asked not to"):
        root.check_create()


def test_what_the_server_refuses_is_told_as_ours(server: s3_server.Objects) -> None:
    with pytest.raises(OpenError, match="s3://nowhere/h: there is no such bucket"):
        open_root("s3://nowhere/h").check_create()
    with pytest.raises(OpenError, match="s3://nowhere/h cannot be read or written"):
        open_root("s3://nowhere/h").files("_log")
    with pytest.raises(FileNotFoundError):
        open_root(f"s3://{s3_server.BUCKET}/h").open("nothing")


def test_a_commit_whose_answer_was_lost_counts(server: s3_server.Objects) -> None:
    log = CommitLog(open_root(f"s3://{s3_server.BUCKET}/h"), Run)
    server.lost_answers = 1
    log.commit(Run(number=1, place="mine"))
    with pytest.raises(RunConflict):
        log.commit(Run(number=1, place="another"))
    assert [run.place for run in log.entries()] == ["mine"]


@pytest.mark.parametrize("address", ["http://example.org/x", "memory://x", "ftp://host/x", "s3:///no-bucket"])
def test_addresses_that_cannot_keep_a_log_are_refused(address: str) -> None:
    with pytest.raises(InvalidArgument, match="can refuse to replace an object"):
        open_root(address)


@pytest.mark.parametrize("package", ["obstore", "fsspec"])
def test_without_its_packages_the_extra_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SettingsError, match=rf"s3:// addresses: the package {package} .*'tenure\[objectstore\]'"):
        open_root("s3://bucket/history")


def test_paths_are_folders() -> None:
    assert isinstance(open_root("file:///x/y"), LocalRoot)
    assert open_root("/x/y").address == "/x/y"


@pytest.mark.crash
@pytest.mark.timeout(300 + 30 * KILLS)
def test_two_writers_that_are_killed_again_and_again(root: ObjectRoot, tmp_path: Path) -> None:
    """Each run that a writer was told is committed is in the log, once, with all its files."""
    dice = random.Random(20)
    told = tmp_path / "told"
    command = [sys.executable, object_writer.__file__, root.address, str(told)]
    log = CommitLog(root, Run)
    writers: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(KILLS):
            while len(writers) < 2:
                writers.append(subprocess.Popen(command, stdout=subprocess.PIPE))
            for writer in writers:
                assert writer.stdout is not None
                writer.stdout.readline()  # it is at work: after a step of its own, at a moment of the dice's
            victim = writers.pop(dice.randrange(2))
            threading.Event().wait(dice.random() * 0.2)
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            assert victim.stdout is not None
            victim.stdout.close()
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()
    entries = log.entries()
    assert len({run.place for run in entries}) == len(entries)
    committed = {run.number: run.place for run in entries}
    claimed = [json.loads(line) for line in told.read_text().splitlines()]
    assert claimed, "the writers did something"
    for number, place in claimed:
        assert committed[number] == place
    for run in entries:
        assert root.dataset([run.place]).count_rows() == FILES * 100
    log.vacuum({run.place for run in entries}, lambda label: int(label) <= len(entries))
    at_end = [place for place in root.attempts() if place not in committed.values()]
    assert all(f"/run={len(entries) + 1}/" in place for place in at_end), "what can no longer be committed is gone"
    print(f"{KILLS} kills of two writers: {len(entries)} runs, {len(claimed)} told, none lost, none twice")
