"""The entry point, which lists every command under its theme."""

from __future__ import annotations

import os
import sys

import click

import tenure
from tenure.cli import (
    admin,
    analysis,
    consume,
    dashboard,
    export,
    flow,
    history,
    maintenance,
    migrate,
    outbox,
    produce,
    queries,
    quota,
    schedule,
    serve,
    spark,
    steps,
    tokens,
    top,
    worker,
)
from tenure.cli.command import Root, common_options


@click.group(cls=Root, context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100})
@click.version_option(tenure.__version__, "--version", prog_name="tenure")
@common_options
def cli() -> None:
    """A durable, lease-based job queue: a job is settled only by the holder of its live lease.

    The store is named by --store, or by TENURE_STORAGE_ENGINE and TENURE_STORAGE_PATH, or by tenure.toml;
    without any of these it is rocksdb:./data. Durations are seconds, or have a unit: 30, 250ms, 5m, 2h, 7d.
    """


cli.add_theme("Produce", (produce.enqueue, outbox.outbox))
cli.add_theme(
    "Consume",
    (consume.claim, consume.ack, consume.nack, consume.fail, consume.release, consume.extend, consume.progress),
)
cli.add_theme("Work", (worker.worker, worker.run))
cli.add_theme(
    "Inspect",
    (
        top.top,
        queries.queues,
        queries.counts,
        queries.list_,
        queries.get,
        queries.dead,
        queries.upcoming,
        queries.groups,
        steps.steps,
        history.timeline,
        history.explain,
        history.events,
    ),
)
cli.add_theme(
    "Manage",
    (
        maintenance.replay,
        maintenance.purge,
        maintenance.cancel,
        maintenance.pause,
        maintenance.resume,
        maintenance.configure,
        maintenance.delete,
        quota.quota,
        flow.flow,
        steps.signal,
        schedule.schedule,
    ),
)
cli.add_theme("Maintain", (admin.check, admin.cleanup, admin.sweep, admin.snapshot, admin.upgrade, migrate.migrate))
cli.add_theme("Pipelines", (export.export, analysis.audit, analysis.report, spark.spark))
cli.add_theme("Serve", (serve.serve, dashboard.dashboard, tokens.token))


def _open_standard_streams() -> None:
    """Open /dev/null for standard streams that the caller has closed.

    Otherwise the store's files take their numbers, and a library that reports to standard error writes into them.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), mode, closefd=False))  # noqa: SIM115


def main() -> None:
    _open_standard_streams()
    if not sys.stdout.isatty():
        # With PYTHONUNBUFFERED, which containers often set, a text stream loses what does not fit into one write to a
        # pipe.
        encoding, errors = sys.stdout.encoding, sys.stdout.errors
        sys.stdout = open(sys.stdout.fileno(), "w", encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
    cli.main(prog_name="tenure")
