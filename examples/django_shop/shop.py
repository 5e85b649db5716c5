"""An order and its mail are one transaction: the mail is sent exactly if the order was placed."""

from __future__ import annotations

from django.db import connection, transaction
from django.tasks import TaskResult, task


@task(queue_name="mail")
def confirm(order: int, to: str) -> str:
    return f"order {order} confirmed to {to}"


def place(order: int, to: str, *, stock: int) -> TaskResult:
    """Write the order and its task in one transaction.

    Raises ValueError, with nothing written, if there is no stock.
    """
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (%s, %s)", (order, to))
        result = confirm.enqueue(order, to)
        if stock < 1:
            raise ValueError("sold out")
    return result
