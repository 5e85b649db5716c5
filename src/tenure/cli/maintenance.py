"""replay, purge, cancel, pause, resume, configure: commands that change jobs and queues."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
import msgspec

from tenure.cli import json_shapes
from tenure.cli.command import NO, command, no
from tenure.cli.output import Cell, faint, plural, strong
from tenure.cli.progress import progress_bar
from tenure.cli.session import Session
from tenure.cli.times import DURATION, PAST_TIME, moment, span
from tenure.model.job import Where
from tenure.model.lifecycle import SHOWN
from tenure.model.rate import Rate
from tenure.model.retry import Policy

#: How many ids are printed for people; the others are counted.
LISTED = 10


@command(
    "replay",
    examples=(
        ("These jobs:", "tenure replay emails JOB_ID JOB_ID"),
        (
            "Which jobs that died of a timeout since yesterday would be replayed:",
            "tenure replay emails --error Timeout --since 1d --dry-run",
        ),
        ("All of them, ten a second:", "tenure replay emails --all --rate 10"),
    ),
    short_help="Make dead jobs ready again.",
)
@click.argument("queue")
@click.argument("ids", metavar="[JOB_ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every dead job.")
@click.option("--error", "-e", help="Those whose last error contains this text.")
@click.option("--reason", type=click.Choice(["max_attempts", "failed"]), help="Those that died for this reason.")
@click.option("--since", type=PAST_TIME, help="Those that died since this moment (2h: two hours ago).")
@click.option("--before", type=PAST_TIME, help="Those that died before this moment.")
@click.option("--limit", "-n", type=int, help="At most this many.")
@click.option("--rate", type=float, help="Make this many ready a second.")
@click.option("--dry-run", is_flag=True, help="Report what would be replayed, and change nothing.")
def replay(
    session: Session,
    queue: str,
    ids: Sequence[str],
    everything: bool,
    error: str | None,
    reason: str | None,
    since: float | None,
    before: float | None,
    limit: int | None,
    rate: float | None,
    dry_run: bool,
) -> None:
    """Make dead jobs waiting again: same id, attempts from the start, a higher token.

    Select them by id, by cause of death, or with --all. Ends with 1 if a named job is not dead.
    """
    filters = any(value is not None for value in (error, reason, since, before))
    if not (ids or filters or everything):
        raise click.UsageError("Say which: job ids, --error, --reason, --since, --before, or --all.")
    where = Where(error=error, reason=reason, since=since, before=before) if filters else None
    with session.queue(queue) as target, progress_bar(f"Replaying in {queue}") as progress:
        answer = target.replay(list(ids) or None, where, limit, rate, dry_run, progress)
        if not answer.count:
            session.require_queue(queue)
    if session.json:
        session.out.emit(json_shapes.replayed(target.name, answer))
    else:
        verb = "would replay" if answer.dry_run else "replayed"
        session.out.say(f"{verb} ", strong(plural(answer.count, "dead job")), f" of {target.name}")
        for job_id in answer.ids[:LISTED]:
            session.out.say(f"  {job_id}")
        if len(answer.ids) > LISTED:
            session.out.say(faint(f"  and {len(answer.ids) - LISTED:,} more"))
        if answer.last_visible_at_ms is not None and rate:
            session.out.say(f"the last becomes ready {moment(answer.last_visible_at_ms)}")
        for job_id in answer.skipped:
            session.out.say(f"not dead, left alone: {job_id}")
    if answer.skipped:
        raise click.exceptions.Exit(NO)


@command(
    "purge",
    examples=(
        ("Remove every dead job, after asking:", "tenure purge emails dead"),
        ("In a script:", "tenure purge emails done --yes"),
    ),
    short_help="Remove all jobs in a state.",
)
@click.argument("queue")
@click.argument(
    "which", metavar="[STATE]", type=click.Choice([name for name in SHOWN if name != "leased"]), default="dead"
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def purge(session: Session, queue: str, which: str, yes: bool) -> None:
    """Remove every job in STATE: dead (the default), done, ready, scheduled or blocked. Cancel leased jobs instead."""
    if not yes:
        if session.json or not sys.stdin.isatty():
            raise click.UsageError("There is no terminal to ask for confirmation: add --yes to remove them.")
        if not click.confirm(f"Remove every {which} job of {queue}?", err=True):
            no(session, "nothing was removed")
    with session.queue(queue) as target, progress_bar(f"Purging {queue}") as progress:
        count = target.purge(which, progress)
        if not count:
            session.require_queue(queue)
    if session.json:
        session.out.emit({**json_shapes.named(target.name), "state": which, "purged": count})
    else:
        session.out.say("removed ", strong(plural(count, f"{which} job")), f" of {target.name}")


@command(
    "cancel",
    examples=(("Remove a job that has not ended:", "tenure cancel emails JOB_ID"),),
    short_help="Remove jobs that have not ended.",
)
@click.argument("queue")
@click.argument("ids", metavar="JOB_ID...", nargs=-1, required=True)
def cancel(session: Session, queue: str, ids: Sequence[str]) -> None:
    """Remove waiting or leased jobs; a worker that holds one finds out at its next call.

    Ends with 1 if one did not exist.
    """
    with session.queue(queue) as target, progress_bar(f"Cancelling in {queue}") as progress:
        outcomes = []
        for job_id in ids:
            outcomes.append(target.cancel(job_id))
            progress(len(outcomes), len(ids))
        if not any(outcomes):
            session.require_queue(queue)
    for job_id, cancelled in zip(ids, outcomes, strict=True):
        if session.json:
            session.out.emit({"id": job_id, "cancelled": cancelled})
        else:
            session.out.say("cancelled " if cancelled else "not there, or ended already: ", strong(job_id))
    if not all(outcomes):
        raise click.exceptions.Exit(NO)


@command(
    "delete",
    examples=(
        ("A queue that is empty:", "tenure delete emails"),
        ("Its waiting and dead jobs too:", "tenure delete emails --force"),
    ),
    short_help="Delete a queue.",
)
@click.argument("queue")
@click.option("--force", is_flag=True, help="Drop waiting and dead jobs.")
def delete(session: Session, queue: str, force: bool) -> None:
    """Delete a queue with its policy and its done jobs.

    Ends with 1 if it has leased jobs or, without --force, waiting or dead ones.
    """
    with session.store() as store:
        deleted = store.delete_queue(queue, session.tenant, force=force)
        if not deleted:
            session.require_queue(queue)
    if session.json:
        session.out.emit({"queue": queue, "tenant": session.tenant, "deleted": deleted})
    else:
        session.out.say("deleted ", strong(queue))


@command(
    "pause",
    examples=(("Make claims return nothing:", "tenure pause emails"),),
    short_help="Pause a queue: claims return nothing.",
)
@click.argument("queue")
def pause(session: Session, queue: str) -> None:
    """Make claims return nothing until resume. Enqueues continue, and leases stay valid."""
    _set_paused(session, queue, True)


@command(
    "resume",
    examples=(("Let claims return jobs again:", "tenure resume emails"),),
    short_help="Resume a paused queue.",
)
@click.argument("queue")
def resume(session: Session, queue: str) -> None:
    """Let claims return jobs again."""
    _set_paused(session, queue, False)


def _set_paused(session: Session, queue: str, paused: bool) -> None:
    with session.queue(queue, create=True) as target:
        target.pause() if paused else target.resume()
    if session.json:
        session.out.emit({**json_shapes.named(target.name), "paused": paused})
    else:
        session.out.say(f"{target.name} is {'paused' if paused else 'open'}")


# ── policies ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@command(
    "configure",
    examples=(
        ("See the policy:", "tenure configure emails"),
        (
            "Three attempts, ten seconds apart, and keep done jobs for a day:",
            "tenure configure emails --max-attempts 3 --backoff fixed --base 10 --retention 1d",
        ),
        ("Refuse jobs past a hundred thousand:", "tenure configure emails --max-waiting 100000"),
        ("Take any number again:", "tenure configure emails --no-max-waiting"),
        (
            "No more than eight at a time, and a hundred a minute, by all workers together:",
            "tenure configure emails --max-leased 8 --rate 100/m",
        ),
    ),
    short_help="Show or change a queue's policy.",
)
@click.argument("queue")
@click.option("--max-attempts", type=int, help="Deliveries before a job is dead.")
@click.option("--lease", type=DURATION, help="The lease of a claim that does not give one.")
@click.option(
    "--backoff", "kind", type=click.Choice(["fixed", "linear", "exponential"]), help="How waits grow between attempts."
)
@click.option("--base", type=DURATION, help="The first wait.")
@click.option("--factor", type=float, help="What each wait is multiplied by (exponential).")
@click.option("--cap", type=DURATION, help="The longest wait.")
@click.option("--jitter", type=click.Choice(["none", "equal", "full"]), help="How much of a wait is random.")
@click.option("--backoff-on-expiry/--no-backoff-on-expiry", default=None, help="Also wait when a lease expires.")
@click.option("--retention", type=DURATION, help="How long done jobs stay.")
@click.option("--result-retention", type=DURATION, help="How long done jobs with a result stay.")
@click.option("--dedup-window", type=DURATION, help="How long an idempotency key is held at least.")
@click.option("--max-waiting", type=int, help="Refuse enqueues beyond this many waiting jobs.")
@click.option("--no-max-waiting", is_flag=True, help="Take any number of waiting jobs.")
@click.option("--max-leased", type=int, help="Lease at most this many jobs at a time.")
@click.option("--no-max-leased", is_flag=True, help="Lease any number of jobs at a time.")
@click.option("--rate", help="Limit claims to this rate of jobs, as 100/s, 10/m or 5/30s.")
@click.option("--burst", type=int, help="How many jobs of the rate may be claimed at once (default: all).")
@click.option("--no-rate", is_flag=True, help="Remove the limit on the rate of claims.")
@click.option("--reset", is_flag=True, help="Start from the default policy, not from the present one.")
def configure(session: Session, queue: str, reset: bool, **given: object) -> None:
    """Change the given fields of QUEUE's policy and keep the others; with no option, show the policy.

    Existing jobs keep their max_attempts.
    """
    lifted = [name for name in ("max_waiting", "max_leased", "rate") if given.pop(f"no_{name}")]
    changes = {name: value for name, value in given.items() if value is not None}
    for name in lifted:
        if name in changes:
            option = name.replace("_", "-")
            raise click.UsageError(f"Give --{option} or --no-{option}, not both.")
        changes[name] = None
    change = bool(changes) or reset
    with session.queue(queue, create=change) as target:
        policy = target.policy()
        if change:
            policy = changed(Policy() if reset else policy, changes)
            target.configure(policy)
    if session.json:
        session.out.emit({**json_shapes.named(target.name), "policy": json_shapes.policy(policy)})
        return
    if change:
        session.out.say(f"{target.name} has a new policy")
    session.out.facts(_policy_facts(policy))


def changed(policy: Policy, changes: dict[str, object]) -> Policy:
    """Return the policy with these fields changed. A new kind of backoff gets that kind's default jitter."""
    parts = {name: changes[name] for name in ("kind", "base", "factor", "cap", "jitter") if name in changes}
    rest = {name: value for name, value in changes.items() if name not in (*parts, "burst")}
    if isinstance(rest.get("rate"), str):
        rest["rate"] = Rate.parse(str(rest["rate"]))
    if "burst" in changes:
        rate = rest.get("rate", policy.rate)
        if not isinstance(rate, Rate):
            raise click.UsageError("--burst is for a queue with a --rate.")
        rest["rate"] = msgspec.structs.replace(rate, burst=changes["burst"])
    if parts.get("kind", policy.backoff.kind) != policy.backoff.kind:
        parts.setdefault("jitter", "full" if parts["kind"] == "exponential" else "none")
    backoff = msgspec.structs.replace(policy.backoff, **parts)
    if backoff.kind == "fixed" and "cap" not in parts:  # a cap left from another kind must not shorten the wait
        backoff = msgspec.structs.replace(backoff, cap=backoff.base)
    return msgspec.structs.replace(policy, backoff=backoff, **rest)


def _policy_facts(policy: Policy) -> dict[str, Cell | None]:
    backoff = policy.backoff
    waits = f"{backoff.kind}, from {span(backoff.base)}"
    if backoff.kind == "exponential":
        waits += f" times {backoff.factor:g}"
    if backoff.kind != "fixed":
        waits += f" up to {span(backoff.cap)}"
    return {
        "max attempts": str(policy.max_attempts),
        "lease": span(policy.lease),
        "backoff": f"{waits}, jitter {backoff.jitter}",
        "backoff on expiry": "yes" if policy.backoff_on_expiry else "no",
        "retention": span(policy.retention) if policy.retention else "none: done jobs are removed at once",
        "result retention": span(policy.result_retention),
        "dedup window": span(policy.dedup_window),
        "max waiting": "no limit" if policy.max_waiting is None else f"{policy.max_waiting:,}",
        "max leased": "no limit" if policy.max_leased is None else f"{policy.max_leased:,}",
        "rate": "no limit" if policy.rate is None else str(policy.rate),
    }
