"""`tenure worker`, `run` and `top`, as a person types them."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

import tenure
from tests.backends.redis.servers import free_ports
from tests.worker.conftest import until

TENURE = [sys.executable, "-m", "tenure"]
TASKS = """
import os
from tenure import App

app = App("lmdb:./data")

@app.task(queue="emails")
def send(to: str, subject: str = "hello") -> dict[str, str]:
    print(f"to {to}", flush=True)
    return {"to": to, "subject": subject}

@app.task
async def later(n: int) -> int:
    return n + VERSION

@app.task(max_attempts=1)
def fail() -> None:
    raise ValueError("broken")

VERSION = 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TENURE, *args], input=stdin, capture_output=True, text=True, timeout=100)


class Screen:
    """A program on a terminal of 100 columns."""

    def __init__(self, *args: str) -> None:
        self._owner, terminal = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "24"}
        environment.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [*TENURE, *args], stdout=terminal, stderr=terminal, stdin=terminal, env=environment,
            start_new_session=True,
        )  # fmt: skip
        os.close(terminal)
        self.sent = ""

    def until(self, pattern: str, seconds: float = 60.0) -> str:
        end = time.monotonic() + seconds
        while not re.search(pattern, self.sent):
            assert time.monotonic() < end, f"{pattern} was not shown: {self.sent!r}"
            if select.select([self._owner], [], [], 0.2)[0]:
                try:
                    self.sent += os.read(self._owner, 65_536).decode(errors="replace")
                except OSError:
                    break
        found = re.search(pattern, self.sent)
        assert found, f"{pattern} was not shown: {self.sent!r}"
        return found[0]

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        end = time.monotonic() + 30
        while self.process.poll() is None and time.monotonic() < end:
            if select.select([self._owner], [], [], 0.1)[0]:
                try:
                    self.sent += os.read(self._owner, 65_536).decode(errors="replace")
                except OSError:
                    break
        os.close(self._owner)
        return self.process.wait(30)


def test_run_here(folder):
    done = run("run", "tasks:app.send", '{"to": "ada"}')
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("to ada\n{\n")
    assert json.loads(done.stdout.partition("\n")[2]) == {"to": "ada", "subject": "hello"}
    assert run("run", "tasks:later", "-", stdin='{"n": 4}').stdout == "5\n"
    failed = run("run", "tasks:app.fail")
    assert failed.returncode == 1
    assert failed.stderr.rstrip().endswith("ValueError: broken")
    assert not (folder / "data").exists()


RESULTS = """
from tenure import App

app = App("lmdb:./data")

class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents

app.register_type(Money, encode=lambda money: money.cents, decode=Money)

@app.task
def money() -> Money:
    return Money(250)

@app.task
def nothing() -> float:
    return float("nan")

@app.task
def anything() -> object:
    return object()

@app.task(encoding="msgpack")
def pairs():
    return {(1, 2): 3}
"""


def test_run_here_refuses_a_result_that_a_worker_would_refuse(folder):
    (folder / "results.py").write_text(RESULTS)
    assert run("run", "results:money").stdout == "250\n"
    for task, message in (
        ("nothing", "its result cannot be kept: JSON has no NaN and no infinity"),
        ("anything", "its result cannot be kept: no way to encode an object of type object"),
        ("pairs", "its result cannot be shown as JSON"),
    ):
        failed = run("run", f"results:{task}")
        assert (failed.returncode, failed.stdout) == (1, "")
        assert failed.stderr.startswith(f"tenure: task results.{task}: {message}")


WRONG = [
    (("run", "tasks:app.nope"), 2, "no task is named 'nope'. Tasks of this app: tasks.fail, tasks.later, tasks.send"),
    (("run", "tasks:app.send", '{"to": 3}'), 2, "Expected 'str', got 'int' - at '$.to'"),
    (("run", "tasks:app.send", "{}"), 2, "missing argument 'to'"),
    (("run", "tasks:app.send", "to"), 2, "the arguments of tasks.send have to be a JSON object"),
    (("run", "tasks:app.send", '{"to": "x"}', "--delay", "5"), 2, "go with --enqueue"),
    (("run", "tasks"), 2, "names no task: write MODULE:APP.TASK"),
    (("run", "nowhere:app.x"), 2, "there is no module 'nowhere' here"),
    (("worker", "nowhere:app"), 2, "there is no module 'nowhere' here: run the command where nowhere.py is"),
    (
        ("worker", "../tasks:app"),
        2,
        "'../tasks' is no module: write tasks:app, package.tasks:app or path/to/tasks.py:app",
    ),
    (("worker", ".tasks:app"), 2, "'.tasks' is no module"),
    (("worker", "tasks:ap"), 2, "module 'tasks' has no 'ap': did you mean tasks:app?"),
    (("worker", "tasks:send"), 2, "tasks:send is a Task, not an App"),
    (("worker", "broken:app"), 2, "ZeroDivisionError"),
    (("run", "broken:app.x"), 2, "broken could not be imported: its error is above"),
    (("worker", "tasks:app", "--queues", "No Such"), 2, "queue 'No Such'"),
]
IN_TURN = """
import json, sys
from click.testing import CliRunner
from tenure.cli.main import cli
for args in json.load(sys.stdin):
    ran = CliRunner().invoke(cli, args)
    print(json.dumps([ran.exit_code, ran.stderr]))
"""


def test_what_is_wrong_is_told(folder):
    (folder / "broken.py").write_text("1 / 0\n")
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN], input=json.dumps([args for args, _, _ in WRONG]), capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(said) == len(WRONG), done.stderr
    for (args, code, told), (ended, error) in zip(WRONG, said, strict=True):
        assert (ended, told in error, "bug" in error) == (code, True, False), (args, error)


def test_enqueue_for_a_worker_and_wait(folder):
    done = run("run", "tasks:app.send", '{"to": "ada"}', "--enqueue", "--key", "k", "--priority", "7", "--json")
    first = json.loads(done.stdout)
    assert first["queue"] == "emails"
    assert json.loads(run("run", "tasks:app.send", '{"to": "ada"}', "--enqueue", "--key", "k", "--json").stdout) == {
        **first,
        "duplicate": True,
    }
    looked = json.loads(run("top", "--once", "--json", "--store", "lmdb:data").stdout)
    assert (looked["queue"], looked["ready"], looked["in_per_second"]) == ("emails", 1, None)
    assert "emails" in run("top", "--once", "--store", "lmdb:data").stdout
    port = free_ports(1)[0]
    with subprocess.Popen([*TENURE, "worker", "tasks", "--metrics-port", str(port)], stderr=subprocess.PIPE) as worker:
        try:
            done = run("run", "tasks:later", '{"n": 1}', "--enqueue", "--wait", "60")
            assert done.stdout == "2\n", done.stderr
            done = run("run", "tasks:app.fail", "--enqueue", "--wait", "60")
            assert done.returncode == 1
            assert "ValueError: broken" in done.stderr
            with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                assert 'tenure_tasks_total{outcome="done",task="tasks.later"} 1.0' in answer.read().decode()
            with urlopen(f"http://127.0.0.1:{port}/health") as answer:
                assert json.loads(answer.read())["status"] == "ok"
        finally:
            worker.terminate()
            worker.communicate(timeout=60)
    assert worker.returncode == 0


def test_a_worker_for_any_queue(folder):
    """Jobs of queues and tenants that the app does not name; both options at once are refused."""
    assert run("worker", "tasks:app", "--any", "--queues", "emails").returncode == 2
    with tenure.open("lmdb:data", sweep=False) as store:
        jobs = [
            store.queue(queue, tenant).enqueue(b'{"task":"tasks.later","args":{"n":1}}').id
            for queue, tenant in (("emails", "default"), ("else", "acme"), ("where", "zebra"))
        ]
        with subprocess.Popen([*TENURE, "worker", "tasks:app", "--any"], stderr=subprocess.PIPE) as worker:
            try:
                until(lambda: all(getattr(store.get(job), "state", "done") == "done" for job in jobs))
            finally:
                worker.terminate()
                _, said = worker.communicate(timeout=60)
        assert worker.returncode == 0, said


def test_the_line_a_person_sees(folder):
    screen = Screen("worker", "tasks:app", "--name", "web-1")
    screen.until("0 of 4 running")
    with tenure.open("lmdb:data", sweep=False) as store:
        store.queue("emails").enqueue(b'{"task":"tasks.send","args":{"to":"ada"}}')
        store.queue("default").enqueue(b'{"task":"tasks.fail"}', max_attempts=1)
    screen.until("to ada")
    screen.until("task_dead.*\n?.*ValueError: broken")  # a line of the log, above
    screen.until("in\\s+fail\\W")  # and the handler's traceback below it, line by line
    screen.until("1 done · (\x1b\\[\\d+m)?1 dead")
    assert screen.end() == 0
    assert "stopped" in screen.sent
    assert screen.sent.count("Traceback") == 1


def test_top_on_a_terminal(folder):
    with tenure.open("lmdb:data", sweep=False) as store:
        queue = store.queue("emails")
        queue.enqueue_many([b"x"] * 5)
        claim = queue.claim(2, 60, worker="web-1")
        screen = Screen("top", "--store", "lmdb:data", "--every", "0.1")
        screen.until("1 queue · 3 waiting · 1 worker with jobs")
        screen.until("web-1 .*2")
        queue.ack_many(claim.deliveries)
        queue.enqueue_many([b"y"] * 7)
        screen.until("1 queue · 10 waiting · 0 workers")
        assert screen.end() == 130
    assert "Traceback" not in screen.sent


def test_top_says_once_which_store_it_found(folder):
    """Each further time would scroll its first line away."""
    run("enqueue", "emails", "x", "--store", "rocksdb:data")
    screen = Screen("top", "--every", "0.1")
    screen.until(r"0\.0\s+0\.0[\s\S]+(0\.0\s+0\.0[\s\S]+){3}")
    assert screen.end() == 130
    assert screen.sent.count("Using rocksdb:./data") == 1


def test_top_in_a_pipe(folder):
    with tenure.open("lmdb:data", sweep=False) as store:
        store.queue("emails").enqueue_many([b"x"] * 5)
        with subprocess.Popen(
            [*TENURE, "top", "--store", "lmdb:data", "--every", "0.2", "--json"], stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                assert json.loads(process.stdout.readline())["in_per_second"] == 0
                store.queue("emails").enqueue_many([b"x"] * 5)
                until(lambda: json.loads(process.stdout.readline())["in_per_second"] > 0)  # type: ignore[union-attr]
            finally:
                process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130


@pytest.mark.parametrize("program", ["worker", "worker --pool process", "run"])
def test_ctrl_c_while_the_app_is_imported_prints_no_traceback(folder, program):
    (folder / "tasks.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)\n" + TASKS)
    ran = run(*program.split(), "tasks:app.later" if program == "run" else "tasks:app")
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


def test_ctrl_c_while_the_processes_of_a_pool_start_is_not_an_error(folder):
    """Ctrl-C reaches the whole group: children that still import must not die of it."""
    (folder / "sitecustomize.py").write_text(
        "import os, signal, sys\nif 'tenure.worker.child' in sys.orig_argv: os.killpg(0, signal.SIGINT)\n"
    )
    with subprocess.Popen(
        [*TENURE, "worker", "tasks:app", "--pool", "process", "-n", "1"],
        stderr=subprocess.PIPE, text=True, start_new_session=True, env=os.environ | {"PYTHONPATH": str(folder)},
    ) as worker:  # fmt: skip
        _, log = worker.communicate(timeout=60)
    assert worker.returncode == 0, log
    assert "Traceback" not in log


def test_reload_without_a_terminal_passes_sigint_on(folder):
    """`kill -INT` or an editor's stop button reaches the supervisor alone."""
    with subprocess.Popen(
        [*TENURE, "worker", "tasks:app", "--reload"], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as supervisor:
        assert supervisor.stderr is not None
        until(lambda: "worker_started" in supervisor.stderr.readline())  # type: ignore[union-attr]
        supervisor.send_signal(signal.SIGINT)
        supervisor.communicate(timeout=60)
    assert supervisor.returncode == 0


def test_reload(folder):
    with subprocess.Popen(
        [*TENURE, "worker", "tasks:app", "--reload"], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as supervisor:
        try:
            answer = run("run", "tasks:later", '{"n": 1}', "--enqueue", "--wait", "60")
            assert answer.stdout == "2\n", answer.stderr
            (folder / "tasks.py").write_text(TASKS.replace("VERSION = 1", "VERSION = 10"))

            def renewed() -> bool:
                return run("run", "tasks:later", '{"n": 1}', "--enqueue", "--wait", "60").stdout == "11\n"

            until(renewed, 60)
        finally:
            supervisor.terminate()
        _, log = supervisor.communicate(timeout=60)
    assert supervisor.returncode == 0
    assert "tasks.py changed: starting again" in log
