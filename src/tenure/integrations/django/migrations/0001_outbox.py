"""Create the outbox's table, to which tasks are written with OPTIONS = {"outbox": True}. Reversed: drop it."""

from __future__ import annotations

from typing import Any

from django.db import migrations

from tenure import outbox
from tenure.outbox.schema import DEFAULT_TABLE


def create(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor in ("sqlite", "postgresql"):  # the databases that an outbox supports
        outbox.create(schema_editor.connection)


def drop(apps: Any, schema_editor: Any) -> None:
    schema_editor.execute(f"DROP TABLE IF EXISTS {DEFAULT_TABLE}")


class Migration(migrations.Migration):
    initial = True
    operations = [migrations.RunPython(create, drop, elidable=False)]  # noqa: RUF012 - as Django declares it
