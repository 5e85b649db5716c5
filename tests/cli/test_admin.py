"""check, cleanup, sweep, snapshot, upgrade; which store is used; how errors end."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import tenure
from tenure import errors
from tenure.cli import admin, format_upgrade
from tenure.cli.command import EXIT_CODES
from tenure.cli.main import cli
from tenure.model.report import Finding, Report
from tenure.storage.folder import Folder
from tenure.storage.keyspace import FORMAT
from tests.cli.conftest import Shell


def test_check_is_clean(shell: Shell):
    shell.enqueue("emails", "x")
    ran = shell("check")
    assert ran.code == 0
    assert ran.out.startswith("clean: 1 queue, 1 job, ")
    report = shell.json("check", "--repair").object
    assert (report["clean"], report["ok"], report["findings"]) == (True, True, [])
    assert shell("check", "--specification").out.startswith("clean: 1 queue, 1 job, ")


@pytest.mark.parametrize(("repair", "mended", "code"), [(False, None, 1), (True, None, 1), (True, "recounted", 0)])
def test_check_says_what_it_found(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, repair: bool, mended: str | None, code: int
):
    """How findings are shown and end the command; that they are found is tested with the check itself."""
    shell.enqueue("emails", "x")
    finding = Finding(rule="counters", detail="ready: 3, recounted 2", tenant="default", queue="emails", repair=mended)
    report = Report(findings=[finding], jobs=1, events=2, leases=0, queues=1, truncated=True)
    with monkeypatch.context() as patch:
        patch.setattr(tenure.Store, "check", lambda *args, **options: report)
        args = ["check", "--repair"] if repair else ["check"]
        ran = shell(*args)
        assert ran.code == code
        assert "1 finding" in ran.out
        assert "ready: 3, recounted 2" in ran.out
        assert (mended or ("nothing could be done" if repair else "rule")) in ran.out
        as_json = shell.json(*args)
        assert (as_json.code, as_json.object["findings"][0]["rule"]) == (code, "counters")


def test_cleanup_removes_what_ended(shell: Shell):
    shell("configure", "emails", "--retention", "1h")
    shell.enqueue("emails", "x")
    shell("ack", "emails", shell.claim("emails"))
    shell.kill("emails", "y", "boom")
    assert shell("cleanup").out == "removed 0 jobs\n"
    assert shell("cleanup", "--before", "1h").out == "removed 0 jobs\n"
    time.sleep(0.01)
    assert shell.json("cleanup", "--before", "now").object == {"removed": 2}
    assert shell("cleanup", "--limit", "0").code == 2


def test_sweep_does_what_is_due(shell: Shell):
    shell.enqueue("emails", "x")
    shell.claim("emails", "--lease", "10ms")
    time.sleep(0.05)
    assert shell.json("counts", "emails").object["leased"] == 1  # looking does not sweep
    swept = shell.json("sweep").object
    assert (swept["leases"], swept["jobs_back"], swept["more"]) == (1, 1, False)
    assert shell.json("counts", "emails").object["ready"] == 1
    assert "leases expired" in shell("sweep").out


def test_a_snapshot_is_a_store(shell: Shell, tmp_path: Path):
    job = shell.enqueue("emails", "x")
    assert shell("snapshot", "copy").code == 0
    shell("cancel", "emails", job)
    copy = Shell(f"rocksdb:{tmp_path / 'copy'}")
    assert copy.json("get", "emails", job).object["payload"] == "x"
    ran = shell("snapshot", "copy")
    assert ran.code in (2, 4)
    assert "copy" in ran.err


# ── upgrade ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_upgrade_has_nothing_to_do(shell: Shell, tmp_path: Path):
    shell.enqueue("emails", "x")
    assert "is already at format 2" in shell("upgrade").out
    found = shell.json("upgrade", shell.url).object
    assert (found["from"], found["format"], found["engine"]) == (FORMAT, FORMAT, "rocksdb")
    assert shell("upgrade", "memory:").code == 2


def test_upgrade_refuses_what_it_does_not_know(shell: Shell, tmp_path: Path):
    shell.enqueue("emails", "x")
    file = tmp_path / "store" / "FORMAT"
    good = file.read_text()
    for words, says in (
        ("tenure 99 rocksdb", "install a newer one"),
        ("tenure 0 rocksdb", "no step leads from format 0"),
        ("tenure 1 lmdb", "open it as lmdb:"),
        ("rubbish", "damaged"),
    ):
        file.write_text(words)
        ran = shell("upgrade")
        assert (ran.code, says in ran.err) == (4, True), ran.err
        assert file.read_text() == words
    file.write_text(good)


def test_steps_lead_to_today_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The table as the next format will use it."""
    walked: list[int] = []

    def step(start: int) -> format_upgrade.Step:
        return format_upgrade.Step(start, f"from {start}", lambda folder, progress: walked.append(start))

    steps = (step(2), step(1))
    assert [found.start for found in format_upgrade.steps_from(1, steps, target=3)] == [1, 2]
    assert format_upgrade.steps_from(3, steps, target=3) == []
    with pytest.raises(errors.FormatError, match="no step leads from format 0"):
        format_upgrade.steps_from(0, steps, target=3)

    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "FORMAT").write_text("tenure 1 rocksdb\n")
    monkeypatch.setattr(admin, "found_format", lambda folder: 1)
    monkeypatch.setattr(admin, "steps_from", lambda found: format_upgrade.steps_from(found, steps, target=3))
    ran = Shell(f"rocksdb:{folder}")("upgrade")
    assert ran.code == 0, ran.err
    assert walked == [1, 2]
    assert "format 1 → 2: from 1" in ran.err
    Folder(str(folder), "rocksdb").lock()  # let go of when it ended


# ── which store ──────────────────────────────────────────────────────────────────────────────────────────────────────


def bare(*args: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, list(args), env=env)
    return result.exit_code, result.stdout, result.stderr


def test_the_store_of_last_resort_is_named(tmp_path: Path):
    code, _, err = bare("enqueue", "emails", "x")
    assert code == 0
    assert "Using rocksdb:./data" in err
    assert (tmp_path / "data" / "FORMAT").exists()
    assert bare("queues", "--json")[2] == ""


def test_the_store_may_come_from_settings(tmp_path: Path):
    assert bare("enqueue", "emails", "x", env={"TENURE_STORAGE_PATH": "from-env"})[::2] == (0, "")
    assert (tmp_path / "from-env" / "FORMAT").exists()
    (tmp_path / "tenure.toml").write_text('[storage]\npath = "from-toml"\n')
    assert bare("enqueue", "emails", "x")[::2] == (0, "")
    assert (tmp_path / "from-toml" / "FORMAT").exists()
    (tmp_path / "other.toml").write_text('[storage]\npath = "from-other"\nengine = "lmdb"\n')
    assert bare("enqueue", "emails", "x", "--config", "other.toml")[::2] == (0, "")
    assert (tmp_path / "from-other" / "FORMAT").read_text().split()[2] == "lmdb"


def test_wrong_settings_are_named(tmp_path: Path):
    code, _, err = bare("queues", env={"TENURE_STORAGE_PAHT": "x"})
    assert code == 2
    assert "TENURE_STORAGE_PAHT" in err
    code, _, err = bare("queues", "--config", "nowhere.toml", "--json")
    assert code == 2
    assert json.loads(err)["error"] == "settings"
    for url in ("nosuch:./x", "./data", "redis://localhost"):
        code, _, err = bare("queues", "--store", url)
        assert (code, err.count("\n")) == (4, 1), err


# ── how errors end ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_error_has_an_exit_code(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    shell.enqueue("emails", "x")
    for error, code in (
        (errors.InvalidArgument("x"), 2),
        (errors.SettingsError("x"), 2),
        (errors.TooLarge("it", 2, 1), 2),
        (errors.LeaseLost(), 3),
        (errors.AlreadySettled(), 3),
        (errors.KeyConflict(0, "k", "id"), 1),
        (errors.QueueFull("emails", 2, 1), 1),
        (errors.WaitTimeout("id", 1), 1),
        (errors.JournalTrimmed("c"), 1),
        (errors.OpenError("x"), 4),
        (errors.StoreLocked("path", "them", "Stop it."), 4),
        (errors.FormatError("x"), 4),
        (errors.StoreClosed("x"), 5),
        (errors.Unavailable("disk full"), 5),
        (errors.Corrupt("bad"), 5),
        (OSError(28, "No space left on device", "f"), 5),
        (RuntimeError("what?"), 70),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(tenure.Store, "queues", lambda *args, error=error: (_ for _ in ()).throw(error))
            ran = shell("queues")
            assert (ran.code, ran.err.count("\n"), ran.out) == (code, 1, ""), error
            told = json.loads(shell.json("queues").err)
            assert set(told) == {"error", "message"}
            if isinstance(error, errors.TenureError):
                assert told["error"] == error.code


def test_debug_shows_the_traceback(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    shell.enqueue("emails", "x")
    monkeypatch.setattr(tenure.Store, "queues", lambda *args: 1 / 0)
    result = CliRunner().invoke(cli, ["queues", "--store", shell.url, "--debug"])
    assert result.exit_code == 70
    assert "Traceback" in result.stderr
    assert "ZeroDivisionError" in result.stderr
    monkeypatch.undo()


def test_every_error_class_is_mapped():
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.TenureError):
            assert next(code for base, code in EXIT_CODES if issubclass(kind, base)) != 70


def test_a_damaged_store_says_what_to_do(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    def damaged(*args: object, **options: object) -> None:
        raise errors.Corrupt("a block does not match its checksum")

    with monkeypatch.context() as patch:
        patch.setattr("tenure.open", damaged)
        ran = shell("enqueue", "emails", "x")
    assert ran.code == 5
    assert "tenure check" in ran.err
