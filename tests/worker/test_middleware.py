"""Hooks around handlers, in every pool; and the job's name on the handler's own log lines."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import MutableMapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tenure
from tenure import App, TaskFailed, current_job
from tenure.worker.log import JobLogFilter
from tenure.worker.middleware import Middleware
from tests.docs.blocks import DOCS, blocks
from tests.worker.conftest import until

each_pool = pytest.mark.parametrize("pool", ["thread", "async"])


class Recorder(Middleware):
    def __init__(self, name: str, calls: list[tuple[object, ...]]) -> None:
        self.name, self.calls = name, calls

    def before(self, job):
        assert current_job() is job
        self.calls.append((self.name, "before", job.task.rpartition(".")[2], threading.get_ident()))

    def after(self, job, result):
        assert current_job() is job
        self.calls.append((self.name, "after", result, threading.get_ident()))

    def on_error(self, job, error):
        assert current_job() is job
        self.calls.append((self.name, "on_error", type(error).__name__, threading.get_ident()))


@each_pool
def test_hooks_run_where_the_handler_runs_and_in_order(pool):
    calls: list[tuple[object, ...]] = []
    with App("memory:", sweep=False, middleware=[Recorder("a", calls), Recorder("b", calls)]) as app:

        @app.task(max_attempts=1)
        def plain(fail: bool) -> int:
            calls.append(("handler", threading.get_ident()))
            if fail:
                raise ValueError("no")
            return 7

        @app.task(max_attempts=1)
        async def later(fail: bool) -> int:
            await asyncio.sleep(0)
            return plain.function(fail)

        @app.task(max_attempts=1)
        def wrong() -> int:
            return "text"  # type: ignore[return-value]

        with app.worker(pool=pool, concurrency=1):
            for task, name in ((plain, "plain"), (later, "later")):
                calls.clear()
                assert task.delay(False).result() == 7
                assert [call[:-1] for call in calls] == [
                    ("a", "before", name), ("b", "before", name), ("handler",), ("b", "after", 7), ("a", "after", 7),
                ]  # fmt: skip
                assert len({call[-1] for call in calls}) == 1  # one thread
                calls.clear()
                with pytest.raises(TaskFailed):
                    task.delay(True).result()
                assert [call[:2] for call in calls if call[0] != "handler"] == [
                    ("a", "before"), ("b", "before"), ("b", "on_error"), ("a", "on_error"),
                ]  # fmt: skip
            calls.clear()
            with pytest.raises(TaskFailed, match="not what it is annotated to return"):
                wrong.delay().result()
            assert [call[1:3] for call in calls[2:]] == [("on_error", "Dead"), ("on_error", "Dead")]


@each_pool
def test_a_hook_that_raises(pool, caplog):
    """`before` fails the delivery; what comes after the handler changes nothing."""

    class Broken(Middleware):
        where = ""

        def before(self, job):
            if self.where == "before":
                raise ConnectionError("no database")

        def after(self, job, result):
            raise RuntimeError("after")

        def on_error(self, job, error):
            raise RuntimeError("on_error")

    broken = Broken()
    with App("memory:", sweep=False, middleware=[broken]) as app:

        @app.task(max_attempts=1)
        def job() -> int:
            return 1

        with app.worker(pool=pool, concurrency=1):
            assert job.delay().result() == 1
            broken.where = "before"
            with pytest.raises(TaskFailed, match="ConnectionError: no database"):
                job.delay().result()
            broken.where = ""
            assert job.delay().result() == 1
    failed = [str(record.msg) for record in caplog.records if "middleware_failed" in str(record.msg)]
    assert [re.findall(r"hook=(\w+)", line)[0] for line in failed] == ["after", "on_error", "after"]


def test_hooks_run_in_the_bench_too():
    from tenure.testing.bench import Bench

    calls: list[tuple[object, ...]] = []
    app = App("memory:", middleware=[Recorder("a", calls)])

    @app.task
    def job() -> int:
        return 1

    with Bench(app) as bench:
        job.delay()
        ran = bench.run_next()
        assert ran is not None
        assert ran.ok
    assert [call[1] for call in calls] == ["before", "after"]


# ── the examples of docs/workers.md ──────────────────────────────────────────────────────────────────────────────────


def example(word: str) -> str:
    (found,) = [
        block.body for block in blocks(DOCS / "workers.md") if word in block.body and "Middleware" in block.body
    ]
    return found


@contextlib.contextmanager
def stand_in(name: str, **attributes: Any):
    """The real package where it is installed, else a module with just these functions."""
    try:
        __import__(name)
        yield sys.modules[name]
    except ImportError:
        parts = name.split(".")
        modules = {".".join(parts[: end + 1]): ModuleType(part) for end, part in enumerate(parts)}
        vars(modules[name]).update(attributes)
        sys.modules.update(modules)
        try:
            yield modules[name]
        finally:
            for one in modules:
                del sys.modules[one]


def test_the_example_for_sentry(monkeypatch):
    sent: list[BaseException] = []
    tags: dict[str, str] = {}

    class Scope(contextlib.AbstractContextManager[Any]):
        def __exit__(self, *exc: object) -> None: ...

        def set_tag(self, name: str, value: str) -> None:
            tags[name] = value

    with stand_in("sentry_sdk", new_scope=Scope, capture_exception=sent.append) as sentry:
        monkeypatch.setattr(sentry, "new_scope", Scope)
        monkeypatch.setattr(sentry, "capture_exception", sent.append)
        names: dict[str, Any] = {}
        exec(example("sentry_sdk"), names)
        app = names["app"]
        app.use("memory:")

        @app.task(max_attempts=1, name="fails")
        def fails() -> None:
            raise ValueError("seen")

        with app, app.worker(), pytest.raises(TaskFailed):
            fails.delay().result()
        assert [str(error) for error in sent] == ["seen"]
        assert tags["task"] == "fails"


def test_the_example_for_django(monkeypatch):
    closed: list[int] = []

    def close_old_connections() -> None:
        closed.append(threading.get_ident())

    with stand_in("django.db", close_old_connections=close_old_connections) as database:
        monkeypatch.setattr(database, "close_old_connections", close_old_connections)
        names: dict[str, Any] = {}
        exec(example("django.db"), names)
        app = names["app"]
        app.use("memory:")

        @app.task(name="thread")
        def thread() -> int:
            return threading.get_ident()

        with app, app.worker():
            ran_in = thread.delay().result()
        assert closed == [ran_in, ran_in]  # connections belong to threads: before and after, in the handler's own


# ── log lines ────────────────────────────────────────────────────────────────────────────────────────────────────────


@each_pool
def test_the_handlers_own_lines_name_their_job(pool, caplog):
    import structlog

    lines: list[dict[str, Any]] = []

    def keep(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
        lines.append(dict(event))
        return ""

    own = structlog.wrap_logger(logging.getLogger("mine"), processors=[structlog.contextvars.merge_contextvars, keep])
    caplog.set_level(logging.INFO)
    caplog.handler.addFilter(JobLogFilter())
    with App("memory:", sweep=False) as app:

        @app.task(name="plain")
        def plain() -> None:
            own.info("by structlog")
            logging.getLogger("mine").info("by logging")

        @app.task(name="later")
        async def later() -> None:
            await asyncio.sleep(0.001)
            plain.function()

        with app.worker(pool=pool):
            handles = {handle.id: handle for handle in (*plain.map([()] * 5), *later.map([()] * 5))}
            for handle in handles.values():
                handle.result()
        logging.getLogger("mine").info("outside")
    assert {line["job_id"] for line in lines} == set(handles)
    assert {(line["task"], line["attempt"]) for line in lines} == {("plain", 1), ("later", 1)}
    records: list[Any] = [record for record in caplog.records if record.name == "mine" and record.msg == "by logging"]
    assert {record.job_id for record in records} == set(handles)
    (outside,) = [record for record in caplog.records if record.msg == "outside"]
    assert (outside.job_id, outside.task) == ("-", "-")


TASKS = """
import logging, structlog
from tenure import App
app = App("lmdb:./data")

@app.task(max_attempts=1)
def fails(deep: int) -> None:
    logging.getLogger("shop").info("about to fail")
    structlog.get_logger().info("said by structlog")
    raise ValueError("broken")
"""


def _has_died(log: Path) -> bool:
    return "task_dead" in log.read_text() and "broken" in log.read_text()


@pytest.mark.parametrize(("pool", "form"), [("thread", "console"), ("process", "json")])
def test_tracebacks_and_ids_in_the_command_s_log(pool, form, tmp_path):
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "tenure.toml").write_text(f'[log]\nformat = "{form}"\n')
    with tenure.open(f"lmdb:{tmp_path / 'data'}", sweep=False) as store:
        job = store.queue("default").enqueue(b'{"task":"tasks.fails","args":{"deep":1}}', max_attempts=1).id
    log = tmp_path / "log"
    with log.open("w") as file, subprocess.Popen(
        [sys.executable, "-m", "tenure", "worker", "tasks:app", "--pool", pool, "-n", "1"], cwd=tmp_path, stdout=file,
        stderr=file,
    ) as process:  # fmt: skip
        try:
            until(functools.partial(_has_died, log))
        finally:
            process.terminate()
            process.wait(60)
    text = log.read_text()
    if form == "json":
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        (dead,) = [line for line in lines if line["event"] == "task_dead"]
        assert dead["error"] == "ValueError: broken"
        assert dead["exception"].splitlines()[0] == "Traceback (most recent call last):"
        assert 'raise ValueError("broken")' in dead["exception"]
        (own,) = [line for line in lines if line["event"] == "about to fail"]
        assert (own["job_id"], own["task"], own["logger"]) == (job, "tasks.fails", "shop")
    else:
        assert re.search(r"task_dead .*error='?ValueError: broken", text)
        assert re.search(r'^  File ".*tasks.py", line \d+, in fails$', text, re.MULTILINE)
        assert re.search(r"^ValueError: broken$", text, re.MULTILINE)
        assert re.search(rf"about to fail .*{job}", text)
    assert re.search(rf"said by structlog.*{job}", text)
