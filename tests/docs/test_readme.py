"""What the README shows, done."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.redis.servers import free_ports
from tests.docs.blocks import README, ROOT, blocks

EXAMPLES = [
    block
    for block in blocks(README)
    if block.language == "python" and "spark" not in block.marks  # tests/spark has a session to run that one on
]
#: The quick start with tasks: the file, and the commands.
#: What a clone needs for a wheel to be built of it.
KEPT = {"src", "pyproject.toml", "README.md", "LICENSE", "tools"}
TASKS, TASK_COMMANDS = (block for block in blocks(README) if "tasks" in block.marks)
SHELL = [
    line[2:]
    for block in blocks(README)
    if block.language == "console" and "tasks" not in block.marks
    for line in block.body.splitlines()
    if line.startswith("$ tenure") and "serve" not in line
]
SERVER = [
    line[2:]
    for block in blocks(README)
    for line in block.body.splitlines()
    if "localhost:8400" in line and line.startswith("$ ")
]


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and no settings from elsewhere."""
    for name in [name for name in os.environ if name.startswith("TENURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*command: str, where: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command, cwd=where, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_first_example_has_ten_lines():
    assert len(EXAMPLES[0].body.splitlines()) == 10


def test_the_first_example_says_what_it_did(fresh: Path):
    for _ in range(2):  # a reader may well run it twice
        done = run(sys.executable, "-W", "error", "-c", EXAMPLES[0].body, where=fresh)
        assert (done.stdout, done.stderr) == ("attempt 1: to ada\n0 left\n", "")


@pytest.mark.parametrize("block", EXAMPLES[1:], ids=lambda block: f"line {block.line}")
def test_the_other_examples_run(block, fresh: Path):
    done = run(sys.executable, "-W", "error", "-c", block.body, where=fresh)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_shell_lines_work(fresh: Path):
    assert len(SHELL) == 5
    done = run("bash", "-euo", "pipefail", "-c", "\n".join(SHELL), where=fresh)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0].startswith("enqueued ")
    assert said[1] == said[0].replace("enqueued", "acked")
    assert said[-1].startswith("clean: 1 queue, 0 jobs")


def test_two_commands_from_nothing_to_a_claim(fresh: Path):
    assert [line.split()[0] for line in SERVER] == ["tenure", "curl"]
    port = free_ports(1)[0]
    script = "\n".join(SERVER).replace("8400", str(port)) + "\nstatus=$?; kill %1; wait %1; exit $status"
    done = run("bash", "-c", script, where=fresh)
    assert done.returncode == 0, done.stderr
    job, claim = (json.loads(line) for line in done.stdout.replace("}{", "}\n{").splitlines())
    (delivery,) = claim["jobs"]
    assert delivery["id"] == job["id"]
    assert base64.b64decode(delivery["payload"]) == b"to ada"
    assert delivery["receipt"].startswith(job["id"])


def test_make_targets_that_are_named_are_there():
    makefile = (README.parent / "Makefile").read_text()
    for block in blocks(README):
        for line in block.body.splitlines():
            if line.startswith("$ make "):
                assert f"\n{line.split()[2]}:" in makefile


def test_it_is_installed_as_the_readme_says(fresh: Path):
    """Into a folder beside, and without the dependencies, which `make release-check` installs too."""
    lines = [
        line.split("#")[0].strip()
        for block in blocks(README)
        if "install" in block.marks
        for line in block.body.splitlines()
    ]
    assert [line.split()[:3] for line in lines] == [
        ["$", "pip", verb] for verb in ("install", "install", "wheel", "install")
    ]
    shutil.copytree(
        ROOT, fresh / "tenure",
        ignore=lambda folder, names: {n for n in names if n not in KEPT} if Path(folder) == ROOT else {"__pycache__"},
    )  # fmt: skip
    for line in (lines[0], *lines[2:]):  # the second differs in its dependencies only
        quiet = line.removeprefix("$ pip ").replace("install", "install --no-deps --target there --upgrade", 1)
        quiet += "" if quiet.endswith(".whl") else " --no-build-isolation"
        done = run("bash", "-c", f"{sys.executable} -m pip --disable-pip-version-check -q {quiet}", where=fresh)
        assert done.returncode == 0, done.stderr
        assert (fresh / "there" / "tenure" / "__init__.py").exists()


def test_tasks_from_an_empty_folder_to_a_worker_in_another_process(fresh: Path):
    """As a new user would, but for the installation, which the environment of the tests stands in for."""
    assert len(TASKS.body.splitlines()) <= 12
    install, *commands = [line.removeprefix("$ ") for line in TASK_COMMANDS.body.splitlines()]
    assert install.startswith("pip install ")
    assert len(commands) == 2
    (fresh / "tasks.py").write_text(TASKS.body)
    done = run("bash", "-c", commands[0], where=fresh)
    assert (done.returncode, done.stderr) == (0, "")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash", "-c", f"exec {commands[1]}"], cwd=fresh, env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as worker:  # fmt: skip
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "sending 'hello' to ada@example.org\n"
        finally:
            worker.terminate()
        _, log = worker.communicate(timeout=30)
    assert worker.returncode == 0, log
    assert '"done": 1' in log.splitlines()[-1]
