"""worker and run: run an app's tasks from a shell."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click
import msgspec

from tenure.cli import reload
from tenure.cli.command import BUG, NO, USAGE, command
from tenure.cli.output import strong
from tenure.cli.session import Session
from tenure.cli.times import DURATION, FUTURE_TIME
from tenure.cli.worker_line import WorkerLine
from tenure.errors import InvalidArgument, TaskFailed

if TYPE_CHECKING:
    from tenure.worker.app import App
    from tenure.worker.runner import Worker
    from tenure.worker.tasks import Task


@command(
    "worker",
    examples=(
        ("Run the tasks of `app` in tasks.py, four at a time:", "tenure worker tasks:app"),
        ("Only some queues, with more threads:", "tenure worker tasks:app --queues emails,reports --concurrency 16"),
        ("Every queue whose name matches, also those that appear later:", "tenure worker tasks:app --queues 'host-*'"),
        ("Any queue of any tenant, each in its turn:", "tenure worker tasks:app --any"),
        ("Handlers that compute, each in a process of its own:", "tenure worker tasks:app --pool process"),
        ("While you write them: start again whenever a file changes:", "tenure worker tasks:app --reload"),
    ),
    short_help="Run an app's tasks.",
)
@click.argument("app_name", metavar="MODULE:APP")
@click.option("--concurrency", "-n", type=click.IntRange(1, 10_000), default=4, show_default=True, help="Jobs at once.")
@click.option(
    "--pool",
    type=click.Choice(["thread", "process", "async"]),
    default="thread",
    show_default=True,
    help="What runs handlers: threads; processes, for those that compute; one event loop.",
)
@click.option("--queues", "-q", help="Comma-separated names or patterns (default: those of its tasks).")
@click.option("--any", "anywhere", is_flag=True, help="Any queue of any tenant, each in its turn.")
@click.option("--lease", type=DURATION, help="How long a claim holds without a heartbeat (the queues' policy).")
@click.option(
    "--grace",
    type=DURATION,
    default=30.0,
    show_default=True,
    help="How long handlers may take to finish when it is stopped.",
)
@click.option(
    "--patience",
    type=DURATION,
    default=60.0,
    show_default=True,
    help="Give up when no claim has succeeded for this long.",
)
@click.option("--recycle", type=click.IntRange(min=1), help="Replace a process of the pool after so many jobs.")
@click.option("--name", help="Its name in leases and logs (default: host and process id).")
@click.option("--no-schedule", is_flag=True, help="Leave periodic tasks to other workers.")
@click.option("--reload", "reloading", is_flag=True, help="Restart when a Python file changes: for development.")
@click.option("--metrics-port", type=click.IntRange(1, 65_535), help="Serve /metrics (Prometheus) and /health there.")
@click.option(
    "--metrics-host", default="localhost", show_default=True, help="The address to serve them on; 0.0.0.0 for all."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Default: info; on a terminal, where a status line is shown, warning.",
)
def worker(
    session: Session,
    app_name: str,
    concurrency: int,
    pool: Any,
    queues: str | None,
    anywhere: bool,
    lease: float | None,
    grace: float,
    patience: float,
    recycle: int | None,
    name: str | None,
    no_schedule: bool,
    reloading: bool,
    metrics_port: int | None,
    metrics_host: str,
    log_level: str | None,
) -> None:
    """Run the tasks of APP, a variable of MODULE, until it is stopped.

    On Ctrl-C or SIGTERM it stops claiming, lets handlers finish within the grace period, and releases jobs that had not
    started; a second signal ends it at once. Ends with 0, with 1 if handlers were cut off, with 5 if the store was out
    of reach.
    """
    if reloading:
        raise click.exceptions.Exit(reload.supervise(session))
    from tenure.worker import log

    if anywhere and queues is not None:
        raise click.UsageError("Give --any or --queues, not both.")
    app = _app(session, app_name)
    named = None if queues is None else [part.strip() for part in queues.split(",") if part.strip()]
    made = app.worker(
        "*" if anywhere else named,
        concurrency=concurrency, pool=pool, lease=lease, grace=grace, patience=patience, recycle=recycle, name=name,
        schedule=not no_schedule,
    )  # fmt: skip
    if metrics_port is not None:
        from tenure.worker.health import HealthServer

        HealthServer(made, metrics_host, metrics_port)
    with contextlib.suppress(AttributeError):
        # Show handlers' output when it is printed, also in a file or a container's log.
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with _output(session, made, log_level):
        if app.store.url.startswith("memory:"):
            log.warning(
                "store_in_memory", url=app.store.url,
                advice="only this process sees this store: no other program can enqueue to this worker. "
                "Name one on disk or a server with --store, or in App(...).",
            )  # fmt: skip
        code = made.run()
    if code == BUG or code > NO:
        session.out.problem("worker", f"{made.reason}.")
    if code == NO and pool == "thread":
        # Threads that were cut off cannot be ended, and Python would wait for what they may have started.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)
    app.close()
    raise click.exceptions.Exit(code)


@contextmanager
def _output(session: Session, made: Worker, log_level: str | None) -> Iterator[None]:
    """Show a status line on a terminal, log lines elsewhere."""
    for_people = sys.stderr.isatty() and not session.json
    from tenure.worker import log

    level = "debug" if session.debug else log_level or ("warning" if for_people else "info")
    form = "json" if session.json else session.settings.log.format
    if not for_people:
        log.configure(level, form)
        yield
        return
    with WorkerLine(made):
        log.configure(level, form)  # after the status line exists, so that log lines are written above it
        yield


@command(
    "run",
    examples=(
        (
            "Run a task here, and print what it returns:",
            """tenure run tasks:app.send '{"to": "ada", "subject": "hi"}'""",
        ),
        ("Enqueue it for a worker:", """tenure run tasks:app.send '{"to": "ada"}' --enqueue"""),
        ("Enqueue it, and wait for its result:", "tenure run tasks:report --enqueue --wait 60"),
    ),
    short_help="Run a task here, or enqueue it.",
)
@click.argument("task_name", metavar="MODULE:APP.TASK")
@click.argument("arguments", metavar="[JSON]", default="{}")
@click.option("--enqueue", is_flag=True, help="Enqueue it for a worker instead of running it here.")
@click.option("--wait", type=DURATION, help="After --enqueue: wait this long for its result.")
@click.option("--delay", type=DURATION, help="With --enqueue: not before this long from now.")
@click.option("--at", type=FUTURE_TIME, help="With --enqueue: not before this moment.")
@click.option("--key", help="With --enqueue: one job, however often it is enqueued with this key.")
@click.option("--priority", type=click.IntRange(0, 9), help="With --enqueue: 9 goes first.")
def run(
    session: Session,
    task_name: str,
    arguments: str,
    enqueue: bool,
    wait: float | None,
    delay: float | None,
    at: float | None,
    key: str | None,
    priority: int | None,
) -> None:
    """Run a task with the arguments of a JSON object (- reads it from stdin). Prints what it returns as JSON."""
    options = {"delay": delay, "at": at, "key": key, "priority": priority}
    if not enqueue and any(value is not None for value in (*options.values(), wait)):
        raise click.UsageError("--wait, --delay, --at, --key and --priority go with --enqueue.")
    task = _task(session, task_name)
    given = (sys.stdin.read() if arguments == "-" else arguments).encode()
    payload = task.codec.encode_named(given)
    if not enqueue:
        _run_here(session, task, payload)
        return
    with task.app:
        # Each option has its own type.
        handle = task.options(**options).enqueue_payload(payload)  # type: ignore[arg-type]
        if wait is not None:
            try:
                _print(session, task, handle.result(wait))
            except TaskFailed as exc:
                session.out.problem(exc.code, f"{exc}")
                raise click.exceptions.Exit(NO) from None
            return
    if session.json:
        session.out.emit({"id": handle.id, "duplicate": handle.duplicate, "queue": task.queue})
    else:
        session.out.say("enqueued ", strong(handle.id), " (seen before)" if handle.duplicate else "")


def _run_here(session: Session, task: Task[Any, Any, Any], payload: bytes) -> None:
    import asyncio

    from tenure.worker.codec import is_json, open_envelope

    args, kwargs = task.codec.decode_call(open_envelope(payload).args, is_json(payload))
    try:
        result = asyncio.run(task(*args, **kwargs)) if task.is_async else task(*args, **kwargs)
    except Exception as exc:  # noqa: BLE001 - an error of the task, shown as Python shows it
        traceback.print_exception(exc)
        raise click.exceptions.Exit(NO) from None
    try:
        task.codec.encode_result(result)  # a worker would refuse what this refuses
        _print(session, task, result)
    except InvalidArgument as exc:
        session.out.problem(TaskFailed.code, f"{exc}")
        raise click.exceptions.Exit(NO) from None


def _print(session: Session, task: Task[Any, Any, Any], result: Any) -> None:
    if result is not None:
        shown = msgspec.json.format(task.codec.result_as_json(result), indent=0 if session.json else 2)
        session.out.content(shown + b"\n")


def _app(session: Session, name: str) -> App:
    from tenure.worker.app_loader import load_app

    try:
        app = load_app(name)
    except InvalidArgument:
        raise
    except Exception as exc:  # noqa: BLE001 - any error of the imported module
        _import_failed(session, name, exc)
    if session.url is not None:
        app.use(session.url)
    if session.given_tenant is not None:
        app.tenant = session.given_tenant
    return app


def _task(session: Session, name: str) -> Task[Any, Any, Any]:
    from tenure.worker.app_loader import load_task

    try:
        task = load_task(name)
    except InvalidArgument:
        raise
    except Exception as exc:  # noqa: BLE001 - as in `_app`
        _import_failed(session, name, exc)
    if session.url is not None:
        task.app.use(session.url)
    if session.given_tenant is not None:
        task.app.tenant = session.given_tenant
    return task


def _import_failed(session: Session, name: str, error: Exception) -> NoReturn:
    """Show the module's traceback, and end as for any other wrong argument."""
    traceback.print_exception(error)
    session.out.problem("import", f"{name.rpartition(':')[0] or name} could not be imported: its error is above.")
    raise click.exceptions.Exit(USAGE)
