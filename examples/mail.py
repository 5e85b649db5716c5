"""A mail sender: retries temporary failures, gives up on permanent ones, and sends each order's mail once.

    python examples/mail.py              enqueue three mails, run a worker on them, show the outcomes
    tenure worker examples/mail.py    in production: a separate worker

The mail server is a class in this file, so that the example needs none: it is busy once, and refuses one address.
"""

from __future__ import annotations

import sqlite3
import sys

from tenure import App, Backoff, Dead, TaskFailed, current_job

app = App("memory:" if __name__ == "__main__" else "rocksdb:./data")


class Busy(Exception):
    """The server is busy: try again later."""


class Server:
    """Stands in for an SMTP server."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self._busy = True

    def send(self, to: str, text: str, message_id: str) -> None:
        if self._busy:
            self._busy = False
            raise Busy("452 too many connections")
        if to.endswith("@nowhere.invalid"):
            raise ValueError("550 no such user")
        self.sent.append(message_id)


server = Server()


class Outbox:
    """Records which jobs' mails were sent: a handler may run twice, and its mail must not be sent twice."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("create table if not exists sent (job text primary key)")

    def was_sent(self, job: str) -> bool:
        return self._db.execute("select 1 from sent where job = ?", (job,)).fetchone() is not None

    def note_sent(self, job: str) -> None:
        self._db.execute("insert or ignore into sent values (?)", (job,))


outbox = Outbox(":memory:")


@app.task(queue="mail", max_attempts=5, timeout=30, retry_on=Busy, backoff=Backoff.fixed(0.1))
def send(to: str, text: str) -> str:
    """Check whether it was sent, send it, record it.

    If a worker dies between the last two, the mail is sent again with the same message id, by which mail programs show
    it once.
    """
    job = current_job()
    if outbox.was_sent(job.id):
        return "sent before"
    try:
        server.send(to, text, message_id=f"<{job.id}@example.org>")
    except ValueError as error:
        raise Dead(f"{to}: {error}") from None
    outbox.note_sent(job.id)
    return f"sent at attempt {job.attempt}"


def main() -> int:
    handles = [
        send.delay("ada@example.org", "Your order is on its way."),
        send.options(key="order-17").delay("grace@example.org", "Your order is on its way."),
        send.options(key="order-17").delay("grace@example.org", "Your order is on its way."),  # a double click
        send.delay("nobody@nowhere.invalid", "Hello?"),
    ]
    with app.worker(concurrency=1):
        for handle in handles:
            try:
                print(f"{handle.id[-6:]}  {handle.result(timeout=20)}")
            except TaskFailed as failed:
                print(f"{handle.id[-6:]}  dead: {failed.error}")
    print(f"the server took {len(server.sent)} mails")
    return 0


if __name__ == "__main__":
    sys.exit(main())
