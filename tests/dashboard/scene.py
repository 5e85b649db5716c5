"""A store that has a bit of everything, for pages to show."""

from __future__ import annotations

import tenure
from tenure import Policy, Store

TRACE = """Traceback (most recent call last):
  File "tasks.py", line 41, in send
    smtp.connect(host)
ConnectionError: no route to host 10.0.0.{n}"""


def furnish(store: Store, tenant: str = "acme") -> dict[str, str]:
    """Returns ids of jobs by what they are."""
    emails = store.queue("emails", tenant=tenant)
    emails.configure(Policy(max_attempts=2, retention=3600))
    jobs = {}
    for n in range(7):
        made = emails.enqueue(b'{"to": "ada", "subject": "Invoice 17"}', max_attempts=1)
        emails.nack(emails.claim(worker="mailer-1")[0], error=TRACE.format(n=n))
        jobs["dead"] = made.id
    bad = emails.enqueue(b"\xff\xfe\x00binary")
    emails.fail(emails.claim(worker="mailer-2")[0], error="ValueError: no such address 'bob@'")
    jobs["failed"] = bad.id
    for _ in range(12):
        emails.enqueue(b"hello")
        emails.ack(emails.claim(worker="mailer-1")[0], result=b'{"sent": true}')
    jobs["retrying"] = _retrying(emails)
    jobs["scheduled"] = emails.enqueue(b'{"to": "grace"}', delay=3600, key="order-18").id
    jobs["leased"] = emails.enqueue(b'{"to": "edsger", "lines": [1, 2, 3]}', priority=9, headers={"trace": "4bf92f"}).id
    claim = emails.claim(worker="mailer-1", lease=300)
    emails.extend(claim, 600)
    emails.progress(claim[0], 0.4, "rendering")
    jobs["ready"] = emails.enqueue_many([b"one", b"two", b"three"])[0].id
    images = store.queue("images", tenant=tenant)
    images.enqueue_many([b"\x89PNG" + bytes(200)] * 40)
    images.claim(limit=8, worker="thumbnailer", lease=120)
    reports = store.queue("reports", tenant=tenant)
    reports.enqueue(b"monthly", delay=86_400)
    reports.pause()
    return jobs


def _retrying(queue: tenure.Queue) -> str:
    made = queue.enqueue(b"flaky")
    queue.nack(queue.claim(worker="mailer-2")[0], error=TRACE.format(n=1), delay=900)
    return made.id
