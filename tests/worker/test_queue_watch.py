"""Which queues a worker serves, and what it says about those it does not."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
from urllib.request import urlopen

import pytest

from tenure import App, InvalidArgument, Policy
from tenure.errors import Forbidden, OpenError
from tenure.model.rate import Rate
from tenure.testing.conformance.world import all_events
from tenure.worker import handles, health, queue_watch
from tenure.worker.health import HealthServer
from tenure.worker.queue_watch import serves
from tests.worker.conftest import until


@pytest.fixture
def app():
    with App("memory:", sweep=False) as made:
        yield made
        assert made.store.check().clean


@pytest.fixture
def lines(caplog):
    caplog.set_level("INFO", "tenure")
    return lambda event: [str(record.msg) for record in caplog.records if str(record.msg).startswith(event + " ")]


def test_patterns():
    assert serves(["emails", "host-*"], "host-1")
    assert serves(["host-?"], "host-1")
    assert serves(["*"], "anything")
    assert not serves(["host-*"], "emails")
    assert not serves(["host-?"], "host-11")
    assert not serves(["*"], "tenure.periodic")  # the schedule's own


@pytest.mark.parametrize("pool", ["thread", "async"])
def test_queues_are_matched_as_they_appear(app, pool, monkeypatch, lines):
    monkeypatch.setattr(queue_watch, "_MATCH_EVERY", 0.05)

    @app.task
    def where(number: int) -> int:
        return number

    before = where.options(queue="host-1").delay(1)
    other = where.options(queue="emails").delay(2)
    with app.worker(["host-*"], pool=pool) as worker:
        assert before.result() == 1
        assert where.options(queue="host-2").delay(3).result(60) == 3
        assert worker.health().problem is None
        assert other.status() == "ready"
    assert len(lines("queue_matched")) == 1
    with app.worker(["nobody-*"]) as worker:  # none at all yet
        time.sleep(0.3)
        assert where.options(queue="nobody-1").delay(4).result(60) == 4


def test_a_pattern_is_checked(app):
    app.task(name="x")(lambda: None)
    for wrong in ("Host-*", "a/*", ""):
        with pytest.raises(InvalidArgument):
            app.worker([wrong])


def test_an_unknown_queue_is_warned_of_once(app, lines):
    @app.task(queue="emails")
    def send() -> None: ...

    app.store.queue("reports").enqueue(b"x")
    with app.worker(["emials", "reports", "emails", "zzz"]):
        pass
    found = lines("queue_unknown")
    assert len(found) == 2
    assert "did you mean emails?" in found[0]
    assert "queues of this app's tasks: emails" in found[1]


def test_a_queue_that_no_worker_serves_is_warned_of_once(app, lines, monkeypatch):
    monkeypatch.setattr(queue_watch, "_WARN_EVERY", 0.05)

    @app.task
    def job(number: int) -> int:
        return number

    app.store.queue("foreign").enqueue(b"not a task's")
    app.store.queue("paused").enqueue(job.codec.encode_call((1,), {}))
    app.store.queue("paused").pause()
    app.store.queue("slow").configure(Policy(rate="1/d"))
    app.store.queue("slow").enqueue_many([job.codec.encode_call((1,), {})] * 3)
    assert app.store.queue("slow").ack_many(app.store.queue("slow").claim(3).deliveries)
    with app.worker():
        handle = job.options(queue="forgotten").delay(1)
        until(lambda: lines("queue_not_served"))
        time.sleep(0.5)
    (line,) = lines("queue_not_served")
    assert "queue=forgotten" in line
    assert "--queues forgotten" in line
    assert handle.status() == "ready"


def test_a_worker_that_may_not_list_queues_works(app, lines, monkeypatch):
    @app.task
    def job(number: int) -> int:
        return number

    def refuse(tenant: str | None, limit: int, cursor: str | None) -> None:
        raise Forbidden("scope admin is needed")

    monkeypatch.setattr(app.store._backend, "queues", refuse)
    with app.worker():
        assert job.delay(1).result() == 1
    assert lines("queues_not_listed") == []
    monkeypatch.setattr(queue_watch, "_MATCH_EVERY", 0.05)
    with app.worker(["default", "host-*"]):
        assert job.delay(2).result() == 2
        time.sleep(0.3)
    assert len(lines("queues_not_listed")) == 1


@pytest.mark.parametrize("pool", ["thread", "async"])
def test_a_handler_that_waits_for_its_own_worker_is_warned(app, lines, pool, monkeypatch):
    monkeypatch.setattr(handles, "_warned", set())

    @app.task
    def inner(number: int) -> int:
        time.sleep(0.5)  # not done before it is waited for: there would be nothing to warn of
        return number

    @app.task
    def outer(queue: str) -> int:
        return int(inner.options(queue=queue).delay(1).result(60))

    @app.task
    async def outer_async() -> int:
        return int(await (await inner.aio.delay(1)).result(60))

    with app.worker(["default"], concurrency=2, pool=pool), app.worker(["elsewhere"], pool=pool):
        assert outer.delay("elsewhere").result(60) == 1
        assert lines("waits_for_own_worker") == []
        for _ in range(2):
            assert outer.delay("default").result(60) == 1
            assert outer_async.delay().result(60) == 1
    found = lines("waits_for_own_worker")
    assert len(found) == 2  # once for each pair of tasks
    assert "outer" in found[0]


def test_a_command_on_memory_says_that_nobody_else_sees_it(tmp_path):
    (tmp_path / "tasks.py").write_text(
        "from tenure import App\napp = App('memory:')\n@app.task\ndef f() -> None: ...\n"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "tenure", "worker", "tasks:app", "-q", "deflaut,host-*"], cwd=tmp_path,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        log = ""
        while "worker_started" not in log:
            line = process.stderr.readline()
            assert line, log
            log += line
        process.terminate()
        log += process.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert len(re.findall('"event": "store_in_memory"', log)) == 1
    assert "did you mean default?" in log


# ── rates ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_task_s_rate_holds_over_all_workers():
    with App("memory:", policies={"mail": Policy(max_attempts=3)}, sweep=False) as app:

        @app.task(queue="mail", rate=Rate(20, 1.0, burst=5))
        def send(number: int) -> None: ...

        send.map(range(20))
        queue = app.store.queue("mail")
        with app.worker(), app.worker():
            until(lambda: queue.counts().waiting + queue.counts().leased == 0)
        assert queue.policy().max_attempts == 3
        given = [event.time_ms for event in all_events(app.store) if event.type == "claimed"]
        assert given[-1] - given[0] >= (15 / 20 - 0.05) * 1000


def test_a_rate_needs_a_queue_of_its_own(app):
    with pytest.raises(InvalidArgument, match="give it a queue= of its own"):
        app.task(rate="10/s")(lambda: None)
    with pytest.raises(InvalidArgument, match="rate 'often'"):
        app.task(rate="often", queue="a", name="a")(lambda: None)
    app.task(rate="10/s", queue="b", name="b")(lambda: None)
    app.task(queue="b", name="c")(lambda: None)
    with pytest.raises(InvalidArgument, match=r"the jobs of several \(b, c\)"):
        app.worker().start()


# ── health ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def get(url: str) -> tuple[int, bytes]:
    try:
        with urlopen(url, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_health_over_http(app, monkeypatch):
    gate = threading.Event()

    @app.task
    def job() -> None:
        gate.wait(60)

    worker = app.worker(name="w1", patience=60)
    assert worker.health().problem == "it has not started"
    server = HealthServer(worker, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.port}"
    try:
        with pytest.raises(OpenError, match="by another program: stop it, or choose another with --metrics-port"):
            HealthServer(worker, "127.0.0.1", server.port)
        assert get(url + "/health")[0] == 503
        with worker:
            job.delay()
            until(lambda: worker.running == 1)
            code, body = get(url + "/health")
            found = json.loads(body)
            assert (code, found["status"], found["worker"], found["running"]) == (200, "ok", "w1", 1)
            assert b"tenure_tasks_total" in get(url + "/metrics")[1]
            assert get(url + "/else")[0] == 404

            monkeypatch.setattr(worker._claimer, "_failing_ms", app.clock.steady_ms() - 20_000)
            monkeypatch.setattr(worker._claimer, "last_error", "the disk is full")
            code, body = get(url + "/health")
            assert (code, "the disk is full" in json.loads(body)["status"]) == (503, True)
            monkeypatch.undo()
            gate.set()
        assert "it is stopping" in json.loads(get(url + "/health")[1])["status"]
    finally:
        server.close()


def test_the_metrics_port_in_use_is_a_clear_error(tmp_path):
    (tmp_path / "tasks.py").write_text(
        "from tenure import App\napp = App('memory:')\n@app.task\ndef f() -> None: ...\n"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "tenure", "worker", "tasks:app", "--metrics-port", str(port)], cwd=tmp_path,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 4
    assert f"cannot listen on localhost:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_clients_of_the_metrics_port_hold_threads_for_a_while_and_not_any_number(monkeypatch):
    monkeypatch.setattr(health, "_AT_ONCE", 3)
    monkeypatch.setattr(health, "_SECONDS", 1.0)
    app = App("memory:")
    server = HealthServer(app.worker(["emails"]), "127.0.0.1", 0)
    try:
        before = threading.active_count()
        silent = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(20)]
        assert silent[-1].recv(1) == b"", "refused at once"
        assert threading.active_count() <= before + 2 * 3
        with contextlib.suppress(ConnectionError):
            for _ in range(100):  # a byte now and then is no progress
                silent[0].sendall(b"G")
                time.sleep(0.1)
            pytest.fail("it still listens")
        until(lambda: threading.active_count() <= before, 20)
        assert get(f"http://127.0.0.1:{server.port}/health")[0] == 503
        for connection in silent:
            connection.close()
    finally:
        server.close()
        app.close()
