"""The installed app, `tenure.integrations.django`, with the outbox's table and `manage.py tenure_worker`."""

from __future__ import annotations

from django.apps import AppConfig


class TenureConfig(AppConfig):
    name = "tenure.integrations.django"
    label = "tenure"
    verbose_name = "Tenure"
