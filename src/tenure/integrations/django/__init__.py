"""Django 6: a backend for `django.tasks`.

    TASKS = {"default": {"BACKEND": "tenure.integrations.django.TenureBackend", "OPTIONS": {"store": "rocksdb:./data"}}}

    task.enqueue() ──▶ after the transaction's commit, or as a row of the outbox ──▶ a job ──▶ manage.py tenure_worker

backend.py   enqueueing and looking      execution.py   a task in a worker      apps.py, migrations/   the outbox's table
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.integrations.django.backend import TenureBackend

__all__ = ["TenureBackend"]


def __getattr__(name: str) -> object:
    # Imported late: Django imports this package as an installed app before its models may be used.
    if name != "TenureBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tenure.integrations.django.backend import TenureBackend

    return TenureBackend
