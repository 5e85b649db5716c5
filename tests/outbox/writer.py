"""A user's program: `python writer.py ADDRESS ROWS` writes orders 0 … ROWS-1, and the job of each in the same transaction.

Killed and started again it goes on behind the last order that was committed. Every tenth transaction is first rolled back.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from typing import Any

from tenure import outbox

ORDERS_OF_A_TRANSACTION = 5


def connect(address: str) -> Any:
    if address.startswith("sqlite:"):
        return sqlite3.connect(address.removeprefix("sqlite:"), timeout=60)
    import psycopg

    while True:
        try:
            return psycopg.connect(address)
        except psycopg.OperationalError:
            time.sleep(0.05)  # the test has killed it, and will start it again


def write(connection: Any, rows: int) -> None:
    while True:
        (first,) = connection.execute("SELECT coalesce(max(id) + 1, 0) FROM orders").fetchone()
        if first >= rows:
            return
        for undone in (True, False) if first % (10 * ORDERS_OF_A_TRANSACTION) == 0 else (False,):
            for number in range(first, min(first + ORDERS_OF_A_TRANSACTION, rows)):
                connection.execute(f"INSERT INTO orders VALUES ({number})")
                outbox.add(connection, "orders", b"%d" % number)
            connection.rollback() if undone else connection.commit()


def main(address: str, rows: int) -> None:
    while True:
        connection = connect(address)
        try:
            write(connection, rows)
            return
        except Exception as exc:
            lost = any("Operational" in kind.__name__ for kind in type(exc).__mro__)
            if type(exc).__module__ == "sqlite3" or not lost:
                raise
        finally:
            connection.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
