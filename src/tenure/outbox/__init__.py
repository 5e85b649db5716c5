"""The transactional outbox: jobs that are enqueued exactly if your database transaction commits, each of them once.

your transaction ──▶ INSERT into tenure_outbox ──▶ COMMIT          `add`, `delay`: in your own connection
                                │
         relay ◀── take ────────┘                                  `Relay`, `tenure outbox run`
           └─▶ store.enqueue_many(key = the row's key) ──▶ DELETE  killed anywhere: repeated, and the key makes it one job

table.py      what the relay does to the table of a database       writing.py   what your program does to it
connecting.py from an address to such a table                      relay.py     from rows to jobs
"""

from tenure.outbox.connecting import connect
from tenure.outbox.relay import Relay, Sent
from tenure.outbox.table import OutboxTable, Waiting
from tenure.outbox.writing import add, create, delay

__all__ = ["OutboxTable", "Relay", "Sent", "Waiting", "add", "connect", "create", "delay"]
