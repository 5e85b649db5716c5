"""A store that has a bit of everything, for pages to show."""

from __future__ import annotations

import random

import tenure
from tenure import GroupPolicy, ManualClock, NewJob, Policy, Store
from tenure.model.schedule import Schedule
from tenure.server.dashboard.history import History

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
    emails.record_step(claim[0], "charge", b'{"paid": true}')
    emails.signal(jobs["leased"], "approval", b"yes")
    jobs["ready"] = emails.enqueue_many([b"one", b"two", b"three"])[0].id
    images = store.queue("images", tenant=tenant)
    images.enqueue_many([b"\x89PNG" + bytes(200)] * 40)
    images.claim(limit=8, worker="thumbnailer", lease=120)
    reports = store.queue("reports", tenant=tenant)
    reports.enqueue(b"monthly", delay=86_400)
    reports.pause()
    exports = store.queue("exports", tenant=tenant)
    exports.configure(Policy(group=GroupPolicy(max_leased=2), groups={"globex": GroupPolicy(max_leased=9, weight=3)}))
    for group, count in (("customer-17", 6), ("globex", 10), ("initech", 1)):
        exports.enqueue_many([NewJob(b"export", group=group) for _ in range(count)])
    exports.claim(limit=8, worker="exporter", lease=600)
    jobs["grouped"] = next(job.id for job in exports.list("ready") if job.group == "customer-17")
    exports.enqueue(b"export of all")
    for name, cron, every_ms in (
        ("nightly-report", "0 2 * * *", None),
        ("weekly", "@weekly", None),
        ("poll", None, 90_000),
    ):
        store.add_schedule(
            Schedule(
                name=name,
                tenant=tenant,
                queue="reports",
                payload=b"all",
                cron=cron,
                every_ms=every_ms,
                tz="Europe/Berlin",
            )
        )
    store.pause_schedule("weekly", tenant)
    return jobs | a_flow(store, tenant)


def a_flow(store: Store, tenant: str, pages: int = 5) -> dict[str, str]:
    """A crawl, its pages, an index over them and a report: some are done, one is leased, one is dead."""
    site = store.queue("site", tenant=tenant)
    site.configure(Policy(retention=3600, max_attempts=1))
    names = [f"page-{n}" for n in range(pages)]
    made = site.enqueue_many(
        [
            NewJob(b"crawl", name="crawl"),
            *(NewJob(b"parse", name=name, after=["#crawl"], on_parent_dead="wait") for name in names),
            NewJob(b"index", name="index", after=[f"#{name}" for name in names], on_parent_dead="wait"),
            NewJob(b"report", after=["#index"], queue="site-reports", on_parent_dead="wait"),
        ]
    )
    site.ack(site.claim(worker="crawler-1")[0], result=b"5 pages")
    first, second, *_ = site.claim(limit=3, worker="crawler-1", lease=600)
    site.ack(first, result=b"parsed")
    site.nack(second, error=TRACE.format(n=9))
    return {"crawl": made[0].id, "index": made[-2].id, "report": made[-1].id}


def _retrying(queue: tenure.Queue) -> str:
    made = queue.enqueue(b"flaky")
    queue.nack(queue.claim(worker="mailer-2")[0], error=TRACE.format(n=1), delay=900)
    return made.id


def an_hour(store: Store, clock: ManualClock, history: History) -> None:
    """An hour of work in several queues of two tenants, minute by minute, so that charts have something to show."""
    dice = random.Random(7)
    loads = {
        ("acme", "emails"): 40,
        ("acme", "images"): 25,
        ("acme", "reports"): 3,
        ("globex", "invoices"): 15,
        ("globex", "imports"): 60,
    }
    queues = {name: store.queue(name[1], tenant=name[0]) for name in loads}
    for name in (("acme", "reports"), ("globex", "imports")):
        queues[name].configure(Policy(max_attempts=1))
    for minute in range(60):
        for name, queue in queues.items():
            busy = 2.5 if name[1] == "imports" and 30 <= minute < 42 else 1.0
            queue.enqueue_many(
                [b'{"id": 17, "to": "ada@example.org"}'] * int(loads[name] * busy * dice.uniform(0.6, 1.4))
            )
        clock.advance(dice.uniform(2, 20))
        for name, queue in queues.items():
            claim = queue.claim(
                limit=int(loads[name] * dice.uniform(0.8, 1.35)), worker=f"{name[1]}-{minute % 3 + 1}", lease=120
            )
            clock.advance(dice.uniform(0.5, 4))
            for place, delivery in enumerate(claim):
                if place == 0 and dice.random() < 0.2:
                    queue.nack(delivery, error=TRACE.format(n=minute))
                else:
                    queue.ack(delivery)
        clock.advance(60 - clock.wall_ms() / 1000 % 60 - 1)
        history.infos(history.moment())
        history.tick()
        clock.advance(1.5)
    for name, queue in queues.items():
        queue.claim(limit=2, worker=f"{name[1]}-1", lease=300)
    queues["acme", "reports"].enqueue(b"monthly", delay=86_400)
    queues["acme", "reports"].pause()
    history.infos(history.moment())
