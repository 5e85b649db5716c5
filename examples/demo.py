"""`make demo`, or `python examples/demo.py [--keep]`: the queue at work for ten seconds, then its history with Spark.

Everything it prints was measured, or read from a real store: embedded RocksDB in a temporary folder, with every write
synced to disk. Each scene is a function; in order, they are a tour of the API.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import tenure
from tenure import Backoff, Delivery, LeaseLost, NewJob, Policy, Queue, Store, Where
from tenure.cli import spark_session
from tenure.model.lease import Settle

console = Console(highlight=False, emoji=False)
scenes = iter(range(1, 100))

POLICY = Policy(max_attempts=3, lease=30, backoff=Backoff.fixed(0.4), retention=3600)
LEASE = 1.5  # seconds: short, so that a dead worker is noticed while you watch
BULK = 20_000
DAY, WAVES = 4_500, 30
ERRORS = ("SmtpError: mailbox ada@example.org is full", "Timeout: no answer after 30 s", "ValueError: bad picture 17")
REPORT = Path(tempfile.gettempdir()) / "tenure-demo-report.html"


def main() -> int:
    arguments = argparse.ArgumentParser(description="See the queue work.")
    arguments.add_argument("--keep", action="store_true", help="keep the store, to look at it with the command line")
    keep = arguments.parse_args().keep
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="tenure-demo-"))
    url = f"rocksdb:{folder / 'data'}"
    try:
        with tenure.open(url) as store:
            console.print(f"\n[bold]Tenure[/]  {store.url}, each write durable on {store.durability}")
            emails = store.queue("emails")
            emails.configure(POLICY)
            produce(emails)
            consume(emails)
            invoice = fail_until_dead(emails)
            lose_a_worker(store.queue("reports"))
            replay(emails, invoice)
            many(store.queue("bulk"))
        clean = look_back(url, invoice)
        clean = pipeline(url, folder) and clean
        took = time.monotonic() - started
        next_steps(url if keep else "rocksdb:./data", keep, took)
        return 0 if clean else 1
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


# ── the scenes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def produce(emails: Queue) -> None:
    scene("Producing", "A job is bytes. It can wait, be urgent, and be sent twice without being done twice.")
    emails.enqueue(b"newsletter")
    emails.enqueue(b"password reset", priority=9)
    emails.enqueue(b"reminder", delay=2)
    first = emails.enqueue(b"order 17", key="order-17", priority=5)
    again = emails.enqueue(b"order 17", key="order-17", priority=5)
    say(
        f"enqueued newsletter, password reset (priority 9), reminder (in 2 s), order 17 (key order-17): {numbers(emails)}"
    )
    same = "the same job" if again.id == first.id else "ANOTHER JOB"
    say(f"order 17 once more, as after a timeout: duplicate={again.duplicate}, {same}")


def consume(emails: Queue) -> None:
    scene("Claiming", "One claim is one lease. Urgent jobs come first, and nothing is handed out early.")
    claim = emails.claim(limit=10, worker="w1")
    say("claimed, in this order: " + ", ".join(f"{text(d)} ({d.priority})" for d in claim))
    settled = emails.ack_many(claim)
    say(f"acked {len(settled.done)} in one transaction; left: {numbers(emails)}")
    began = time.monotonic()
    with emails.claim(wait=5, worker="w1") as late:
        waited = time.monotonic() - began
        for delivery in late:
            early = delivery_age(delivery) < 2
            say(
                f"waited {waited:.2f} s for the {text(delivery)}, {'EARLY' if early else 'due 2 s after it was enqueued'}"
            )
            emails.ack(delivery)


def fail_until_dead(emails: Queue) -> str:
    scene(
        "Failing",
        "max_attempts=3 is three deliveries, whatever ends them. Then the job is dead, and stays to be looked at.",
    )
    job = emails.enqueue(b"invoice", max_attempts=3)
    while claim := emails.claim(wait=2, worker="w1"):
        delivery = claim[0]
        emails.nack(delivery, error="MailboxFull: ada@example.org")
        after = emails.get(job.id)
        if after is None:
            raise SystemExit("the job is gone")
        then = "back in 0.4 s" if after.state != "dead" else f"dead ({after.reason})"
        say(f"attempt {delivery.attempt} of {delivery.max_attempts}, token {delivery.token}: failed, {then}")
        if after.state == "dead":
            break
    return job.id


def lose_a_worker(reports: Queue) -> None:
    scene(
        "Losing a worker",
        "A worker that dies says nothing. Its lease ends, another takes over, and the late answer is refused.",
    )
    reports.enqueue(b"monthly report")
    held: list[Delivery] = []

    def work_and_die() -> None:
        held.extend(reports.claim(lease=LEASE, worker="worker-a"))

    worker = threading.Thread(target=work_and_die)
    worker.start()
    worker.join()
    stale = held[0]
    say(f"worker-a claims the {text(stale)} for {LEASE} s (token {stale.token}) and is never heard of again")
    began = time.monotonic()
    takeover = reports.claim(wait=10, worker="worker-b")[0]
    waited = time.monotonic() - began
    say(f"worker-b gets it after {waited:.2f} s: attempt {takeover.attempt}, token {takeover.token}")
    try:
        reports.ack(stale)
        say("[red]worker-a's stale ack was TAKEN[/]")
    except LeaseLost as lost:
        say(f"worker-a wakes up and acks: [yellow]{type(lost).__name__}[/], {shown(lost)}")
    reports.ack(takeover, result=b"42 pages")
    done = reports.get(takeover.id)
    say(
        f"worker-b acks: {done.state if done else 'gone'}, result {done.result.decode() if done and done.result else None!r}"
    )


def replay(emails: Queue, invoice: str) -> None:
    scene("Replaying", "The mailbox has room again. Dead jobs come back by what they died of, with the same id.")
    would = emails.replay(where=Where(error="MailboxFull"), dry_run=True)
    did = emails.replay(where=Where(error="MailboxFull"))
    say(f"dead jobs with MailboxFull: {would.count}; replayed: {did.count}")
    delivery = emails.claim(wait=2, worker="w2")[0]
    emails.ack(delivery)
    same = "the same id" if delivery.id == invoice else "ANOTHER ID"
    say(
        f"claimed {text(delivery)} again: {same}, attempt {delivery.attempt}, token {delivery.token} (it never goes back); acked"
    )


def many(bulk: Queue) -> None:
    scene(
        "Many",
        f"{BULK:,} jobs in batches of 1,000, then four threads at once. Each job must be handed out exactly once.",
    )
    began = time.monotonic()
    for start in range(0, BULK, 1000):
        bulk.enqueue_many([NewJob(b"%d" % number) for number in range(start, start + 1000)])
    enqueued = time.monotonic() - began
    seen: list[bytes] = []

    def work() -> None:
        while claim := bulk.claim(limit=500):
            seen.extend(delivery.payload for delivery in claim)
            bulk.ack_many(claim)

    workers = [threading.Thread(target=work) for _ in range(4)]
    began = time.monotonic()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    consumed = time.monotonic() - began
    once = sorted(map(int, seen)) == list(range(BULK))
    say(f"enqueued in {enqueued:.2f} s ({BULK / enqueued:,.0f} a second)")
    say(
        f"claimed and acked in {consumed:.2f} s ({BULK / consumed:,.0f} a second); each exactly once: {'yes' if once else '[red]NO[/]'}"
    )


def look_back(url: str, invoice: str) -> bool:
    scene("Inspecting", "The store was closed and is opened again: what was acknowledged is there.")
    with tenure.open(url) as store:
        counts = table("queue", "ready", "scheduled", "leased", "done", "dead", "enqueued", "removed")
        for info in store.queues():
            found = info.counts
            row = (found.ready, found.scheduled, found.leased, found.done, found.dead, found.enqueued, found.removed)
            counts.add_row(info.queue, *(Text(f"{n:,}", style="" if n else "dim") for n in row))
        show(counts)
        say("The life of the invoice, from the journal:")
        show(timeline(store, invoice))
        report = store.check()
        verdict = "[green]clean[/]" if report.clean else f"[red]{len(report.findings)} findings[/]"
        say(f"check(): {verdict} ({report.jobs:,} jobs, {report.events:,} events, every index and counter recounted)")
        return report.clean


def timeline(store: Store, job_id: str) -> Table:
    events: Any = store.queue("emails").timeline(job_id)
    life = table("after", "what", "state", "attempt", "token", "detail")
    for event in events:
        life.add_row(
            f"{(event.time_ms - events[0].time_ms) / 1000:.3f} s",
            event.type,
            event.state or "",
            str(event.attempt or ""),
            str(event.token or ""),
            event.reason or event.text or "",
        )
    return life


def pipeline(url: str, folder: Path) -> bool:
    scene(
        "The pipeline",
        f"{DAY:,} more jobs, some of which fail. Then Spark reads the journal: a history, an audit of it, and a report.",
    )
    try:
        spark_session.require()
    except tenure.SettingsError as missing:
        say(f"[yellow]left out:[/] {shown(missing)}")
        return True
    with tenure.open(url) as store:
        a_busy_day(store)
        say(
            ", ".join(
                f"{info.tenant}/{info.queue}: {info.counts.dead} dead" for info in store.queues() if info.counts.dead
            )
        )
    say("starting Spark, which takes a few seconds ...")
    from tenure.spark import session
    from tenure.spark.jobs.audit import audit
    from tenure.spark.jobs.history import history
    from tenure.spark.jobs.report import report

    with spark_session.hushed():
        spark = session("tenure demo", master="local[2]", conf={"spark.log.level": "ERROR"})
    try:
        updated = history(spark, url, str(folder / "history"), slo=1)
        say(f"history: {updated.read:,} events read, {updated.written:,} rows written in {updated.seconds:.1f} s")
        audited = audit(spark, url)
        found = "[green]clean[/]" if not audited.rejected else f"[red]{audited.rejected} violations[/]"
        say(f"audit: {found} ({audited.facts['rules']} laws over {audited.read:,} rows of one snapshot)")
        drawn = report(spark, str(folder / "history"), str(REPORT), title="Tenure demo")
        say(f"report: open [cyan]{drawn.facts['path']}[/] in a browser")
    finally:
        with spark_session.hushed():
            spark.stop()
    return not audited.rejected


def a_busy_day(store: Store) -> None:
    """Run waves of jobs for two tenants, with workers that succeed, fail, give up and vanish."""
    chance = random.Random(1)
    queues = [store.queue("mail"), store.queue("thumbnails"), store.queue("mail", tenant="acme")]
    for queue in queues:
        queue.configure(Policy(max_attempts=3, lease=1, backoff=Backoff.fixed(0.3)))
    for wave in range(WAVES):
        for queue in queues:
            queue.enqueue_many([NewJob(b"x", priority=chance.randrange(3)) for _ in range(DAY // WAVES // len(queues))])
            claim = queue.claim(limit=chance.randrange(60, 140), worker=f"w{wave % 4}")
            time.sleep(chance.uniform(0.01, 0.09))
            verdicts = []
            for delivery in claim:
                verb = chance.choices(["ack", "nack", "fail", "vanish"], [85, 10, 2, 3])[0]
                if verb != "vanish":
                    error = None if verb == "ack" else chance.choice(ERRORS)
                    verdicts.append(Settle(verb, delivery.proof, None, error))
            queue.settle_many(verdicts)


def next_steps(url: str, keep: bool, took: float) -> None:
    scene("Your turn", f"That was {took:.0f} seconds. The same from the shell:")
    program = shutil.which("tenure") or str(Path(sys.executable).with_name("tenure"))
    program = "tenure" if shutil.which("tenure") else _near(Path(program))
    store = "" if url == "rocksdb:./data" else f" --store {url}"
    for line in (
        f"{program} enqueue emails 'hello' --delay 5 --priority 9{store}",
        f"{program} claim emails --lease 60 --wait 10{store}",
        f"{program} ack emails RECEIPT{store}",
        f"{program} queues{store}",
        f"{program} --help",
    ):
        console.print(f"    [cyan]{line}[/]", soft_wrap=True)
    if keep:
        say(f"This demo's store was kept: {url}")
    else:
        say("make demo ARGS=--keep keeps this demo's store, to look into with the same commands.")
    console.print()


# ── output ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def scene(title: str, why: str) -> None:
    console.print(f"\n[bold cyan]{next(scenes)}  {title}[/]")
    console.print(Padding(Text(why, style="dim"), (0, 0, 0, 3)))


def say(line: str) -> None:
    console.print(Padding(line, (0, 0, 0, 3)))


def shown(error: Exception) -> str:
    return str(error).replace("[", r"\[")


def table(*titles: str) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for index, title in enumerate(titles):
        made.add_column(title, justify="left" if index == 0 or title in ("what", "state", "detail") else "right")
    return made


def show(made: Table) -> None:
    console.print(Padding(made, (0, 0, 0, 3)))


def numbers(queue: Queue) -> str:
    counts = queue.counts()
    return f"{counts.ready} ready, {counts.scheduled} scheduled"


def text(delivery: Delivery) -> str:
    return delivery.payload.decode()


def delivery_age(delivery: Delivery) -> float:
    return time.time() - delivery.created_at.timestamp()


def _near(program: Path) -> str:
    """Return the program's path as typed from here."""
    try:
        return str(program.relative_to(Path.cwd()))
    except ValueError:
        return str(program)


if __name__ == "__main__":
    sys.exit(main())
