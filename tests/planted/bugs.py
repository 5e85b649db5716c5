"""Bugs to plant: each is one replacement of text in a copy of `src`, and a line on what it breaks.

Several are mistakes of the systems that this one learnt from (DESIGN 7), or were found here by reviews.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Bug(NamedTuple):
    name: str
    #: Below src/tenure.
    file: str
    right: str
    wrong: str

    def fits(self) -> bool:
        """Whether the text that it replaces is there, once. Who changes that text changes the bug with it."""
        return (ROOT / "src" / "tenure" / self.file).read_text().count(self.right) == 1


BUGS = (
    Bug("a lease that has ended still settles", "queueing/settle.py", "if record.expires_at_ms <= unit.now:\n                outcomes", "if not record.open:\n                outcomes"),
    Bug("a job id alone settles a job", "queueing/settle.py",
        "if state.lease != lease or state.token != token or state.state != _LEASED:",
        "if state.lease[:1] != lease[:1] or state.state != _LEASED:"),
    Bug("a lease that has ended is extended", "queueing/settle.py",
        "if queue is None or record is None or record.expires_at_ms <= unit.now:", "if queue is None or record is None:"),
    Bug("extending leaves the old end among what is due", "queueing/settle.py",
        "tx.delete(keyspace.DUE, keyspace.due(Due.LEASE, record.expires_at_ms, queue.number, lease))", "pass"),
    Bug("a retried job is in no index", "queueing/settle.py",
        "tx.put(keyspace.READY, keyspace.ready(number, state.priority,", "(lambda *_: None)(keyspace.READY, keyspace.ready(number, state.priority,"),
    Bug("a retried job loses its priority", "queueing/settle.py",
        "tx.put(keyspace.READY, keyspace.ready(number, state.priority,", "tx.put(keyspace.READY, keyspace.ready(number, 0,"),
    Bug("a dead job is in no index", "queueing/settle.py", 'tx.put(keyspace.DEAD, keyspace.ended(number, now, job), b"")',
        "pass"),
    Bug("a death does not name the event before it", "queueing/settle.py",
        "Change.DIED, number, job, state, lease=held_by, previous=state.last_event,",
        "Change.DIED, number, job, state, lease=held_by,"),
    Bug("a kept result is in no index", "queueing/settle.py",
        'tx.put(keyspace.DONE, keyspace.ended(number, now, job), b"")', "pass"),
    Bug("a release counts as a delivery", "queueing/settle.py", "state = state._replace(attempt=state.attempt - 1)",
        "state = state._replace(attempt=state.attempt)"),
    Bug("a token is given twice", "queueing/grant.py", "attempt, token = state.attempt + 1, next_token(state.token, first)", "attempt, token = state.attempt + 1, state.token or 1"),
    Bug("the epoch is not raised", "queueing/epoch.py", '"the store\'s epoch").value + 1', '"the store\'s epoch").value'),
    Bug("deliveries are not counted", "queueing/grant.py", "attempt, token = state.attempt + 1, next_token(", "attempt, token = state.attempt or 1, next_token("),
    Bug("leased jobs are not counted", "queueing/grant.py", "adds[leased] = adds.get(leased, 0) + count", "pass"),
    Bug("the claim of a segment tells the wrong attempt", "queueing/grant.py", "records.pack_event_middle(token, attempt,", "records.pack_event_middle(token, attempt - 1,"),
    Bug("the last ack leaves the lease's end among what is due", "queueing/leases.py", ", (DUE, due(_LEASE_DUE, expires, queue, lease), None))", ")"),
    Bug("a lease ends one job too early", "queueing/leases.py", "if record.open <= closed:", "if record.open <= closed + 1:"),
    Bug("a lease that ends takes jobs that another holds", "queueing/leases.py",
        "if state.state == _LEASED and state.lease == lease and state.token == token:", "if state.state == _LEASED:"),
    Bug("an expiry gives the attempt back", "queueing/sweep.py", "again = state._replace(visible_at_ms=verdict.retry_at_ms)",
        "again = state._replace(visible_at_ms=verdict.retry_at_ms, attempt=state.attempt - 1)"),
    Bug("leases are taken over a second early", "queueing/sweep.py", "unit.now - core.engine.traits.grace_ms, limit, after)",
        "unit.now + 1000, limit, after)"),
    Bug("a paused queue delivers", "queueing/claim.py",
        "    if queue is None or queue.paused:\n        if queue is None and", "    if queue is None:\n        if queue is None and"),
    Bug("jobs are delivered five seconds early", "queueing/claim.py", "until = commit(unit.now + 1)\n    if not step", "until = commit(unit.now + 5000)\n    if not step"),
    Bug("keys are not looked up", "queueing/enqueue.py", "find_duplicates(unit, queue, self.requests, ids, self.keyed) if self.keyed else _NONE", "_NONE"),
    Bug("a replay starts tokens again", "queueing/admin.py", "replays=state.replays + 1,", "replays=state.replays + 1, token=0,"),
    Bug("a replayed job stays among the dead", "queueing/admin.py",
        "tx.delete(keyspace.DEAD, keyspace.ended(number, state.ended_at_ms, job))", "pass"),
    Bug("a replay keeps the attempts", "queueing/admin.py", "attempt=0,\n", "attempt=state.attempt,\n"),
    Bug("a cancelled job stays with its lease", "queueing/removal.py",
        "close_jobs(tx, queue, state.lease, record, 1, lost=job)", "pass"),
    Bug("removed jobs are not counted", "queueing/removal.py", "unit.count(queue, Counter.REMOVED, 1)", "pass"),
    Bug("one delivery more than max_attempts", "model/retry.py", "if attempt >= max_attempts:", "if attempt > max_attempts:"),
    Bug("time goes back with the caller's clock", "queueing/unit_of_work.py",
        "now_ms if now_ms > time_ms else time_ms", "now_ms"),
    Bug("a store that is opened again believes the calendar", "queueing/store_time.py",
        "offset = max(wall, last_time(tx) + 1) - steady", "offset = wall - steady"),
    Bug("a repeated request is done again", "queueing/outcomes.py",
        "            seen = read_outcome(unit.tx, key)\n            if seen is not None:\n                return self._again(seen, answer)\n            result",
        "            result"),
    Bug("a queue has one leased job more than its limit", "queueing/limits.py", "return (queue.policy.max_leased or 0) - leased",
        "return (queue.policy.max_leased or 0) - leased + 1"),
    Bug("a group has one leased job more than its limit", "queueing/group_selection.py",
        "policy.max_leased is None else policy.max_leased - leased", "policy.max_leased is None else policy.max_leased - leased + 1"),
    Bug("a job that is let go keeps its place in its group", "queueing/groups.py",
        "unit.groups.of(queue, group_id(name), name).leased -= 1", "pass"),
    Bug("a job does not wait for parents that are leased", "queueing/flow_links.py",
        "return (not dead and state != State.DONE)", "return (not dead and state not in (State.DONE, State.LEASED))"),
    Bug("a dead parent leaves its child blocked", "queueing/flows.py", "elif outcome is State.GONE or policy == _CANCEL:",
        "elif outcome is State.GONE:"),
    Bug("a parent that died and was replayed counts twice", "queueing/flows.py",
        "# It counts now; done after a replay, it must not count again.\n                self._edges.cut(edge)", "pass"),
    Bug("a parent that is kept counts for no child", "queueing/flows.py", "self.ended[edge[20:]] += 1\n        elif", "pass\n        elif"),
    Bug("the journal skips a number", "queueing/unit_of_work.py", "number + len(events), self.now", "number + len(events) + 1, self.now"),
)  # fmt: skip
