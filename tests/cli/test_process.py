"""Real processes: exit codes, pipes, a store that another process has, Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tenure

TENURE = [sys.executable, "-c", "from tenure.cli.main import main; main()"]


def run(*args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TENURE, *args], input=stdin, capture_output=True, text=True, timeout=60)


def piped(line: str) -> subprocess.CompletedProcess[str]:
    """A line of bash, in which $tenure is the program."""
    program = f"{sys.executable} -c 'from tenure.cli.main import main; main()'"
    return subprocess.run(
        ["bash", "-c", line.replace("$tenure", program) + '; echo "${PIPESTATUS[@]}"'],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_job_s_life_over_processes(tmp_path: Path):
    store = f"--store=rocksdb:{tmp_path / 'data'}"
    ran = run("enqueue", "emails", "-", store, "--json", stdin="hello")
    assert (ran.returncode, ran.stderr) == (0, "")
    job = json.loads(ran.stdout)["id"]
    claimed = json.loads(run("claim", "emails", store, "--json").stdout)
    assert claimed["id"] == job
    assert run("ack", "emails", claimed["receipt"], store).returncode == 0
    ran = run("claim", "emails", store)
    assert (ran.returncode, ran.stderr) == (1, "")
    ran = run("ack", "emails", claimed["receipt"], store, "--json")
    assert ran.returncode == 3
    assert json.loads(ran.stderr)["error"] == "lease_lost"  # the job is gone, and with it what was known of it


def test_a_pipe_from_claim_to_ack(tmp_path: Path):
    """The second process opens the store only when the first has let go of it."""
    store = f"rocksdb:{tmp_path / 'data'}"
    run("enqueue", "emails", "--lines", "-", "--store", store, stdin="1\n2\n3\n")
    receipts = f"{sys.executable} -c 'import json, sys; [print(json.loads(line)[\"receipt\"]) for line in sys.stdin]'"
    ran = piped(f"$tenure claim emails -n 9 --json --store {store} | {receipts} | $tenure ack emails - --store {store}")
    assert ran.stdout.splitlines()[-1] == "0 0 0", ran.stderr
    assert ran.stdout.count("acked") == 3


def test_a_reader_that_stops_ends_it_quietly(tmp_path: Path):
    store = f"rocksdb:{tmp_path / 'data'}"
    run("enqueue", "bulk", "--lines", "-", "--store", store, stdin="".join(f"{n:0100}\n" for n in range(5000)))
    for command in ("list bulk --all", "list bulk --all --json", "events -n 100000", "events --follow --json"):
        ran = piped(f"$tenure {command} --store {store} | head -n 1 >/dev/null")
        assert ran.stdout.splitlines()[-1] == "141 0", (command, ran.stderr)
        assert "rror" not in ran.stderr
        assert "Traceback" not in ran.stderr


def test_output_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path):
    store = f"rocksdb:{tmp_path / 'data'}"
    run("enqueue", "bulk", "x", "--store", store)
    for command in (f"queues --store {store}", f"events --json --store {store}", "--help", "queues --help"):
        ran = piped(f"$tenure {command} >/dev/full")
        assert ran.stdout == "5\n", command
        assert ran.stderr.count("\n") == 1
        assert "standard output: No space left on device" in ran.stderr


def test_closed_standard_streams_are_as_devnull(tmp_path: Path):
    """The numbers of closed streams would otherwise go to the store's files, and what is printed into these."""
    store = f"rocksdb:{tmp_path / 'data'}"
    for closed in (">&-", "2>&-", "<&- >&- 2>&-"):
        assert piped(f"$tenure enqueue bulk x --store {store} {closed}").stdout.splitlines()[-1] == "0", closed
    look = "import os; from tenure.cli import main; main.cli.main = lambda prog_name: print(os.fstat(2), file=open(9, 'w'))"
    ran = piped(f'{sys.executable} -c "{look}; main.main()" 9>&1 >&- 2>&-')
    assert ran.stdout.startswith("os.stat_result(st_mode=")
    assert json.loads(run("counts", "bulk", "--store", store, "--json").stdout)["ready"] == 3


def test_a_locked_store_names_its_owner(tmp_path: Path):
    url = f"rocksdb:{tmp_path / 'data'}"
    with tenure.open(url, sweep=False, listen=False):
        ran = run("queues", "--store", url)
        assert ran.returncode == 4
        assert f"process {os.getpid()}" in ran.stderr
        assert ran.stderr.count("\n") == 1
        ran = run("enqueue", "emails", "x", "--store", url, "--json")
        assert ran.returncode == 4
        assert json.loads(ran.stderr)["error"] == "store_locked"
    assert run("queues", "--store", url).returncode == 0


def test_a_store_that_another_process_has_is_used_through_it(tmp_path: Path):
    url = f"rocksdb:{tmp_path / 'data'}"
    with tenure.open(url, sweep=False) as store:
        assert run("enqueue", "emails", "hello", "--store", url).returncode == 0
        assert [job.payload for job in store.queue("emails").list("ready")] == [b"hello"]
        assert json.loads(run("counts", "emails", "--store", url, "--json").stdout)["ready"] == 1


@pytest.mark.parametrize("args", [("events", "--follow"), ("claim", "emails", "--wait", "60")])
def test_interrupted(tmp_path: Path, args: tuple[str, ...]):
    url = f"rocksdb:{tmp_path / 'data'}"
    run("enqueue", "other", "x", "--store", url)
    process = subprocess.Popen(
        [*TENURE, *args, "--store", url, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    if "--follow" in args:
        process.stdout.readline()
    else:
        until_owned(tmp_path / "data" / "OWNER", process.pid)
        time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == ""
    assert run("queues", "--store", url).returncode == 0


def until_owned(file: Path, pid: int) -> None:
    for _ in range(400):
        if str(pid) in file.read_text():
            return
        time.sleep(0.05)
    raise AssertionError("nobody opened the store")


def test_following_sees_what_others_do(tmp_path: Path):
    """On LMDB, where several processes share a store."""
    url = f"lmdb:{tmp_path / 'data'}"
    run("enqueue", "emails", "before", "--store", url)
    follow = [*TENURE, "events", "--follow", "--json", "--store", url]
    with subprocess.Popen(follow, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            seen = [json.loads(process.stdout.readline())["type"] for _ in range(2)]
            assert seen == ["queue_created", "enqueued"]
            job = json.loads(run("enqueue", "emails", "after", "--store", url, "--json").stdout)["id"]
            told = json.loads(process.stdout.readline())
            assert (told["type"], told["job_id"]) == ("enqueued", job)
            assert told["cursor"]
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130


def test_on_a_terminal_of_80_columns(tmp_path: Path):
    url = f"rocksdb:{tmp_path / 'data'}"
    run("enqueue", "emails", "a long payload " * 20, "--store", url)
    screen = on_terminal("list", "emails", "--store", url)
    assert "…" in screen
    assert "\x1b[" in screen  # colours, where a person looks
    # Where opening takes long, a line says so, and is drawn again in its place.
    plain = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", screen)
    assert max(map(len, re.split(r"[\r\n]+", plain))) <= 80


def on_terminal(*args: str, stderr: int | None = None) -> str:
    """What a terminal of 80 columns is sent; `stderr` says where errors and progress go instead."""
    owner, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [*TENURE, *args], stdout=terminal, stderr=stderr or terminal, stdin=terminal, env=environment
    )
    os.close(terminal)
    sent = b""
    while select.select([owner], [], [], 30)[0]:
        try:
            part = os.read(owner, 65_536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        sent += part
    os.close(owner)
    assert process.wait(timeout=30) == 0, sent
    return sent.decode()


def test_a_payload_cannot_speak_to_the_terminal(tmp_path: Path):
    url = f"rocksdb:{tmp_path / 'data'}"
    evil = "\x1b]0;owned\x07 tab\there\nsecond line \x9b31m"
    with tenure.open(url) as store:
        queue = store.queue("emails")
        job = queue.enqueue(evil.encode()).id
        queue.ack(queue.claim()[0], result=b"\xff\x1b[2J")
    for what, shown in (
        ("--payload", "\\x1b]0;owned\\x07 tab\there\r\nsecond line \\x9b31m\r\n"),
        ("--result", "\\xff\\x1b[2J\r\n"),
    ):
        assert on_terminal("get", "emails", job, what, "--store", url, stderr=subprocess.DEVNULL) == shown
    raw = on_terminal("get", "emails", job, "--payload", "--raw", "--store", url, stderr=subprocess.DEVNULL)
    assert raw.replace("\r", "") == evil
    piped = subprocess.run(
        [*TENURE, "get", "emails", job, "--payload", "--store", url], capture_output=True, timeout=60
    )
    assert piped.stdout == evil.encode(), "a pipe gets the bytes"


INTERRUPTED_AT = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from tenure_command import main
main()
"""


@pytest.mark.parametrize(
    "module", ["tenure", "tenure.model.names", "click", "tenure.cli.top", "tenure.backends.embedded"]
)
def test_ctrl_c_while_the_program_is_imported_prints_no_traceback(tmp_path: Path, module: str):
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT.format(module=module), "--store", "memory:", "queues"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from tenure.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("missing", "extra", "args"),
    [
        ("uvicorn", "server", ()),
        ("httptools", "server", ()),
        ("capnp", "capnp", ("--capnp", "localhost:0")),
    ],
)
def test_a_server_that_cannot_run_makes_no_store(tmp_path: Path, missing: str, extra: str, args: tuple[str, ...]):
    script = WITHOUT.format(missing=missing)
    ran = subprocess.run(
        [sys.executable, "-c", script, "serve", "--bind", "localhost:0", *args],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 2, ran.stderr
    assert f"the package {missing} is not installed. Install it with: pip install 'tenure[{extra}]'" in ran.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("args", "metrics", "named"),
    [
        (("--bind", "{}"), None, "--bind"),
        (("--bind", "127.0.0.1:0", "--capnp", "{}"), None, "--capnp"),
        (("--bind", "127.0.0.1:0"), "{}", "server.metrics_bind"),
    ],
    ids=["bind", "capnp", "metrics"],
)
def test_a_server_whose_port_is_taken_makes_no_store(
    tmp_path: Path, args: tuple[str, ...], metrics: str | None, named: str
):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        ran = subprocess.run(
            [*TENURE, "serve", *(word.format(place) for word in args)],
            cwd=tmp_path, capture_output=True, text=True, timeout=60,
            env={**os.environ} if metrics is None else {**os.environ, "TENURE_SERVER_METRICS_BIND": metrics.format(place)},
        )  # fmt: skip
    assert ran.returncode, ran.stderr
    assert f"choose another with {named}" in ran.stderr
    assert f"cannot listen on {place}: Address already in use by another program" in ran.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("args", [("--capnp", "unix:./x"), ("--bind", "nonsense"), ("--tls-cert", "nosuch.pem")])
def test_a_server_with_invalid_arguments_makes_no_store(tmp_path: Path, args: tuple[str, ...]):
    ran = subprocess.run([*TENURE, "serve", *args], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2, ran.stderr
    assert not (tmp_path / "data").exists()
