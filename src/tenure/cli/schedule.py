"""schedule: add, list, pause, resume, remove and run schedules."""

from __future__ import annotations

import click
import msgspec

from tenure.cli.command import Family, command
from tenure.cli.output import Cell, strong
from tenure.cli.session import Session
from tenure.cli.times import DURATION, local, now_ms, span
from tenure.errors import InvalidArgument, NotFound
from tenure.model.names import DEFAULT_TENANT
from tenure.model.schedule import Missed, Schedule, interval_ms


@click.group("schedule", cls=Family, short_help="Jobs enqueued by a cron expression or an interval.")
def schedule() -> None:
    """Schedules stored in the store: workers enqueue the job of each once at every tick."""


@command(
    "add",
    examples=(
        (
            "A task, every Monday at nine in Berlin:",
            """tenure schedule add weekly --task tasks.report --args '{"of": "week"}' --cron '0 9 * * 1' --tz Europe/Berlin""",
        ),
        (
            "A payload of your own, every half minute:",
            "tenure schedule add poll --queue polls --payload now --every 30",
        ),
    ),
    short_help="Add a schedule.",
)
@click.argument("name")
@click.option("--queue", default="default", show_default=True, help="The queue that its jobs go to.")
@click.option("--task", help="The task to call.")
@click.option("--args", "arguments", help="The task's arguments, a JSON object.")
@click.option("--payload", help="The job's payload, in place of a task.")
@click.option("--cron", help="When: a cron expression, or @daily and the like.")
@click.option("--every", type=DURATION, help="When: so often (30, 5m).")
@click.option("--tz", default="UTC", show_default=True, help="The time zone of the cron expression.")
@click.option(
    "--missed",
    type=click.Choice(["skip", "catch_up"]),
    default="skip",
    show_default=True,
    help="How to treat ticks at which no worker ran.",
)
@click.option("--priority", "-p", type=int, default=0, show_default=True, help="0 to 9; 9 is claimed first.")
@click.option("--max-attempts", type=int, help="Deliveries before a job is dead (the queue's policy, if not given).")
@click.option("--replace", is_flag=True, help="Overwrite a schedule of the same name.")
def add(
    session: Session,
    name: str,
    queue: str,
    task: str | None,
    arguments: str | None,
    payload: str | None,
    cron: str | None,
    every: float | None,
    tz: str,
    missed: Missed,
    priority: int,
    max_attempts: int | None,
    replace: bool,
) -> None:
    """Add the schedule NAME: a call of a task, or a payload, by a cron expression or an interval."""
    made = Schedule(
        name=name, tenant=session.tenant or DEFAULT_TENANT, queue=queue, payload=_payload(task, arguments, payload),
        cron=cron, every_ms=interval_ms(every), tz=tz, missed=missed, priority=priority, max_attempts=max_attempts,
        created_at_ms=now_ms(),
    ).checked()  # fmt: skip
    with session.store() as store:
        store.add_schedule(made, replace=replace)
    if session.json:
        session.out.emit(_shape(made))
    else:
        session.out.say(f"added {strong(name)}: next at {_next(made)}")


def _payload(task: str | None, arguments: str | None, payload: str | None) -> bytes:
    if (task is None) == (payload is None) or (payload is not None and arguments is not None):
        raise click.UsageError("Give --task (and its --args), or --payload.")
    if payload is not None:
        return payload.encode()
    try:
        args = msgspec.json.decode(arguments or "{}", type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, ValueError):
        raise InvalidArgument(f"--args {arguments!r} is not a JSON object") from None
    return msgspec.json.encode({"task": task, "args": args})


@command(
    "list",
    examples=(("What is scheduled, and when it is next:", "tenure schedule list"),),
    short_help="List schedules.",
)
def list_schedules(session: Session) -> None:
    """List the tenant's schedules, with their next ticks."""
    with session.store() as store:
        found = store.schedules(session.tenant or DEFAULT_TENANT)
    if session.json:
        session.out.emit_all(_shape(each) for each in found)
        return
    rows: list[list[Cell]] = [
        [strong(each.name), each.queue, _when(each), "paused" if each.paused else _next(each)] for each in found
    ]
    if rows:
        session.out.table(["schedule", "queue", "when", "next"], rows)
    else:
        session.out.say("no schedules")


def _when(each: Schedule) -> str:
    if each.every_ms is not None:
        return f"every {span(each.every_ms)}"
    return f"{each.cron} {each.tz}"


def _next(each: Schedule) -> str:
    upcoming = each.next(now_ms())
    return "never" if upcoming is None else local(upcoming)


def _shape(each: Schedule) -> dict[str, object]:
    return {
        "name": each.name, "tenant": each.tenant, "queue": each.queue, "cron": each.cron, "every_ms": each.every_ms,
        "tz": each.tz, "missed": each.missed, "paused": each.paused, "next_ms": each.next(now_ms()),
    }  # fmt: skip


@command("pause", examples=(("Stop it for now:", "tenure schedule pause weekly"),), short_help="Pause a schedule.")
@click.argument("name")
def pause(session: Session, name: str) -> None:
    """Enqueue nothing for the schedule NAME until it is resumed."""
    _change(session, name, "paused")


@command("resume", examples=(("Continue:", "tenure schedule resume weekly"),), short_help="End a schedule's pause.")
@click.argument("name")
def resume(session: Session, name: str) -> None:
    """Resume the schedule NAME. Ticks that passed meanwhile are not made up for."""
    _change(session, name, "resumed")


@command("remove", examples=(("Remove it:", "tenure schedule remove weekly"),), short_help="Remove a schedule.")
@click.argument("name")
def remove(session: Session, name: str) -> None:
    """Remove the schedule NAME. The jobs that it enqueued stay."""
    _change(session, name, "removed")


def _change(session: Session, name: str, change: str) -> None:
    tenant = session.tenant or DEFAULT_TENANT
    with session.store() as store:
        verbs = {"paused": store.pause_schedule, "resumed": store.resume_schedule, "removed": store.remove_schedule}
        if not verbs[change](name, tenant):
            raise NotFound(f"there is no schedule {name!r}")
    if session.json:
        session.out.emit({change: name})
    else:
        session.out.say(f"{change} {strong(name)}")


@command("run", examples=(("Run it now:", "tenure schedule run weekly"),), short_help="Enqueue its job now.")
@click.argument("name")
def run(session: Session, name: str) -> None:
    """Enqueue the job of the schedule NAME now, also if it is paused."""
    with session.store() as store:
        added = store.run_schedule(name, session.tenant or DEFAULT_TENANT)
    if session.json:
        session.out.emit({"id": added.id})
    else:
        session.out.say(f"enqueued {added.id}")


for each in (add, list_schedules, pause, resume, remove, run):
    schedule.add_command(each)
