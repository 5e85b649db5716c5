"""The worker's import: `tenure.integrations.django.worker:default` is the app of the backend `default` in TASKS.

Needs DJANGO_SETTINGS_MODULE, as set by `manage.py tenure_worker`. A process of a pool imports it, too.
"""

from __future__ import annotations

import django
from django.apps import apps
from django.tasks import task_backends
from django.utils.connection import ConnectionDoesNotExist

from tenure.errors import InvalidArgument
from tenure.integrations.django.backend import TenureBackend

if not apps.ready:
    django.setup()


def __getattr__(alias: str) -> object:
    if alias.startswith("__"):
        raise AttributeError(alias)
    try:
        backend = task_backends[alias]
    except ConnectionDoesNotExist:
        raise AttributeError(f"TASKS has no backend {alias!r}") from None
    if not isinstance(backend, TenureBackend):
        raise InvalidArgument(f"TASKS[{alias!r}] is a {type(backend).__name__}, not a TenureBackend")
    app = globals()[alias] = backend.app  # a process of a pool imports it from here
    return app
