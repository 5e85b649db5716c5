"""The log of a folder that runs write into: a run counts once, and only what can no longer be committed is removed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tenure.analysis.commit_log import CommitLog, RunConflict, new_attempt
from tenure.analysis.object_root import ObjectRoot
from tenure.analysis.root import LocalRoot
from tenure.errors import InvalidArgument
from tests.analysis import s3_server


class Run(msgspec.Struct, kw_only=True):
    version: int = 1
    number: int
    place: str


@pytest.fixture(params=["disk", "objects"])
def log(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommitLog[Run]]:
    if request.param == "disk":
        yield CommitLog(LocalRoot(tmp_path), Run)
        return
    pytest.importorskip("obstore")
    with s3_server.endpoint() as endpoint:
        for name, value in s3_server.environment(endpoint).items():
            monkeypatch.setenv(name, value)
        yield CommitLog(ObjectRoot(f"s3://{s3_server.BUCKET}/{new_attempt()}"), Run)


def attempt(log: CommitLog[Run], place: str) -> str:
    with log.root.draft(f"{place}/part.parquet") as file:
        file.write(b"rows")
    return f"{place}/part.parquet"


def test_of_two_runs_with_one_number_one_counts(log: CommitLog[Run]) -> None:
    log.commit(Run(number=1, place="a"))
    with pytest.raises(RunConflict):
        log.commit(Run(number=1, place="b"))
    assert [run.place for run in log.entries()] == ["a"]


def test_a_hole_and_a_newer_format_are_refused(log: CommitLog[Run]) -> None:
    log.commit(Run(number=1, place="a"))
    log.commit(Run(number=3, place="c"))
    with pytest.raises(InvalidArgument, match="entry 2 is missing"):
        log.entries()
    log.commit(Run(number=2, place="b", version=2))
    with pytest.raises(InvalidArgument, match="newer Tenure"):
        log.entries()


def test_a_note_is_no_entry(log: CommitLog[Run]) -> None:
    run = Run(number=1, place="a")
    log.commit(run)
    assert not log.has_note(run, "removed")
    log.add_note(run, "removed", {"jobs": 3})
    assert log.has_note(run, "removed")
    assert log.entries() == [run]


def test_only_attempts_whose_place_is_taken_are_removed(log: CommitLog[Run]) -> None:
    logged, left = attempt(log, "jobs/run=1/aaa"), attempt(log, "jobs/run=1/bbb")
    deep, at_work = attempt(log, "silver/lives/run=1/ccc"), attempt(log, "jobs/run=2/ddd")
    log.commit(Run(number=1, place="jobs/run=1/aaa"))
    assert log.vacuum({"jobs/run=1/aaa"}, lambda label: label == "1") == 2
    assert [log.root.exists(path) for path in (logged, left, deep, at_work)] == [True, False, False, True]


def test_the_folder_of_a_run_goes_with_its_last_attempt(tmp_path: Path) -> None:
    log = CommitLog(LocalRoot(tmp_path), Run)
    attempt(log, "silver/lives/run=1/ccc")
    log.discard("silver/lives/run=1/ccc")
    assert not (tmp_path / "silver/lives/run=1").exists()


def test_the_draft_of_a_run_that_commits_now_is_left(tmp_path: Path) -> None:
    """Removed under its hands, that run failed with FileNotFoundError."""
    log = CommitLog(LocalRoot(tmp_path), Run)
    log.commit(Run(number=1, place="a"))
    now, killed = (tmp_path / "_log" / f".draft-{name}" for name in ("now", "killed"))
    for draft in (now, killed):
        draft.touch()
    os.utime(killed, (0, time.time() - 10_000))
    log.vacuum((), lambda _: False)
    assert (now.exists(), killed.exists()) == (True, False)


def test_one_run_at_a_time_holds_the_lock_of_a_disk(tmp_path: Path) -> None:
    log = CommitLog(LocalRoot(tmp_path), Run)
    with log.lock() as first, CommitLog(log.root, Run).lock() as second:
        assert (first, second) == (True, False)
    with log.lock() as third:
        assert third
