"""A Django application whose tasks are enqueued with the commit of its own database.

    python manage.py                        place two orders, one of which is rolled back, and send the mails
    python manage.py migrate                in production: creates the outbox's table,
    python manage.py tenure_worker          runs the tasks,
    tenure outbox run sqlite:shop.db        and enqueues the committed rows

Needs Django 6, and therefore Python 3.12.
"""

from __future__ import annotations

import os
import sys
import tempfile


def main() -> None:
    from django.core.management import call_command
    from django.db import connection
    from django.tasks import task_backends
    from settings import FOLDER
    from shop import place

    from tenure import outbox

    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, buyer TEXT)")
    result = place(17, "ada@example.org", stock=1)
    try:
        place(18, "bob@example.org", stock=0)
    except ValueError as error:
        print("order 18:", error)
    app = task_backends["default"].app
    table = outbox.connect(f"sqlite:{FOLDER / 'shop.db'}")
    print("jobs made of rows:", outbox.Relay(table, app.store).drain().enqueued)
    table.close()
    with app, app.worker():
        queue = app.store.queue("mail")
        job = queue.find(result.id)
        assert job is not None
        queue.wait_for(job, timeout=60)
        result.refresh()
    print(result.status, "-", result.return_value)


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    if len(sys.argv) > 1:
        from django.core.management import execute_from_command_line

        execute_from_command_line(sys.argv)
    else:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["SHOP_FOLDER"] = folder
            import django

            django.setup()
            main()
