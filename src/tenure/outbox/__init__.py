"""The transactional outbox: jobs that are enqueued exactly if your database transaction commits, each once.

your transaction ──▶ INSERT into tenure_outbox ──▶ COMMIT          `add`, `delay`: in your own connection
                                │
         relay ◀── take ────────┘                                  `Relay`, `tenure outbox run`
           └─▶ store.enqueue_many(key = the row's key) ──▶ DELETE  killed anywhere: repeated, and the key makes it one job

table.py      the relay's statements on the table                  row_writer.py   your program's
databases.py  from an address to such a table                      relay.py        from rows to jobs
"""

from tenure.outbox.databases import connect
from tenure.outbox.relay import Relay, Sent
from tenure.outbox.row_writer import add, create, delay
from tenure.outbox.table import OutboxTable, Waiting

__all__ = ["OutboxTable", "Relay", "Sent", "Waiting", "add", "connect", "create", "delay"]
