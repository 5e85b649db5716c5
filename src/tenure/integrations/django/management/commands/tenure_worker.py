"""`manage.py tenure_worker`: `tenure worker` for a backend of `django.tasks`. All options are passed on."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.tasks import DEFAULT_TASK_BACKEND_ALIAS


class Command(BaseCommand):
    help = "Run the tasks of a backend. Options after -- are those of 'tenure worker' (--concurrency, --pool, …)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", default=DEFAULT_TASK_BACKEND_ALIAS, help="The alias in TASKS (default).")
        parser.add_argument("options", nargs="*", help="Options of 'tenure worker', after --.")

    def handle(self, *args: Any, **given: Any) -> None:
        # The worker replaces this process, so that signals reach it, and its exit code is the command's.
        app = f"tenure.integrations.django.worker:{given['backend']}"
        os.execv(sys.executable, [sys.executable, "-m", "tenure", "worker", app, *given["options"]])  # noqa: S606
