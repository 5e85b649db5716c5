"""What happened to jobs, told from their events: one row a delivery, one row a life.

    enqueued ── claimed ── retried ── claimed ── done          CHAINS: one row an event: `prev_*`, `next_*`, `life`
       wait        run       wait        run

An attempt is named by (job, token), since attempt numbers repeat after a release and a replay. A life by (job, life):
it begins with an enqueue, a replay or a restore and ends with the job done, dead or removed; a replay begins the next.

A history is computed in runs. What a run leaves open goes on in the next as one `carried` row a job: its last event,
with what is known of the life it is in. So a chain that crosses runs looks like one that does not.
"""

from __future__ import annotations

#: Names a job. The number stands for tenant and queue, which go along for people.
JOB = ("queue_number", "job_id")
NAMES = ("tenant", "queue")
#: What is kept of an event.
EVENT = (
    "shard", "commit", "`index`", "time", "type", "state", "priority", "attempt", "max_attempts", "token", "lease_id",
    "visible_at", "lease_until", "reason", "worker", "error",
)  # fmt: skip
#: What is known of a life that is open, beside its last event.
KNOWN = {
    "opened_by": "STRING", "opened_at": "TIMESTAMP", "first_visible_at": "TIMESTAMP", "first_claimed_at": "TIMESTAMP",
    "attempts": "BIGINT", "retried": "BIGINT", "released": "BIGINT", "expired": "BIGINT", "run_ms": "BIGINT",
    "wasted_ms": "BIGINT", "waited_ms": "BIGINT",
}  # fmt: skip

#: Events that open a wait: from `visible_at` on the job may be claimed.
_OPENERS = "('enqueued', 'replayed', 'restored')"
_ENDS_A_LIFE = "('done', 'died', 'cancelled', 'ttl_passed', 'purged')"
#: The state a job must have come from, where the event before is not known: it was before the history began.
_FROM = {
    "enqueued": "gone", "restored": "gone", "unblocked": "blocked", "signalled": "waiting", "claimed": "waiting", "done": "leased", "retried": "leased",
    "died": "leased", "released": "leased", "expired": "leased", "cancelled": "waiting", "replayed": "dead",
    "ttl_passed": "waiting", "purged": "done", "retired": "done", "repaired": "gone",
}  # fmt: skip
_CAME_FROM = " ".join(f"WHEN '{change}' THEN '{state}'" for change, state in _FROM.items())
_ROW = ", ".join((*JOB, *NAMES, *EVENT))


def between(start: str, end: str) -> str:
    """Milliseconds."""
    return f"unix_millis({end}) - unix_millis({start})"


# ── chains ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_NEW = f"""
  SELECT {_ROW}, FALSE AS carried, CAST(CASE WHEN type = 'replayed' THEN 1 ELSE 0 END AS BIGINT) AS lives,
    CAST(NULL AS TIMESTAMP) AS wait_from, CAST(NULL AS STRING) AS prev_type,
    {", ".join(f"CAST(NULL AS {kind}) AS known_{name}" for name, kind in KNOWN.items())}
  FROM {{events}} WHERE job_id IS NOT NULL"""
_CARRIED = f"""
  SELECT {_ROW}, TRUE, life, wait_from, prev_type, {", ".join(KNOWN)} FROM {{carried}}"""


def _chains(links: str) -> str:
    return f"""
WITH links AS ({links})
SELECT {_ROW}, carried, {", ".join(f"known_{name}" for name in KNOWN)},
  CAST(sum(lives) OVER (PARTITION BY {", ".join(JOB)} ORDER BY commit, `index` ROWS UNBOUNDED PRECEDING) AS BIGINT) AS life,
  coalesce(lag(type) OVER chain, prev_type) AS prev_type,
  coalesce(lag(state) OVER chain, CASE type {_CAME_FROM} END, 'gone') AS prev_state,
  lag(time) OVER chain AS prev_time,
  CASE WHEN type = 'claimed' THEN coalesce(wait_from, lag(visible_at) OVER chain) END AS wait_from,
  lead(type) OVER chain AS next_type, lead(time) OVER chain AS next_time, lead(error) OVER chain AS next_error,
  lead(reason) OVER chain AS next_reason
FROM links WINDOW chain AS (PARTITION BY {", ".join(JOB)} ORDER BY commit, `index`)"""


#: Every job event of `{events}`, in its chain. `wait_from` of a claim: when the wait began that it ended.
CHAINS = _chains(_NEW)
#: The same, going on from `{carried}`, which is `CARRY` of the run before.
CHAINS_CARRIED = _chains(f"{_NEW} UNION ALL {_CARRIED}")

# ── attempts ─────────────────────────────────────────────────────────────────────────────────────────────────────────

#: One row a delivery of `{chains}`; `outcome` is null while it is held. A lease that ran out ended it where it is
#: `expired`: the last one that a job may have ends it as `died`.
ATTEMPTS = f"""
SELECT tenant, queue, {", ".join(JOB)}, token, life, attempt, max_attempts, priority, lease_id, worker,
  wait_from AS visible_at, time AS claimed_at, lease_until, {between("wait_from", "time")} AS wait_ms,
  next_type AS outcome, next_time AS ended_at, {between("time", "next_time")} AS run_ms, next_reason AS reason,
  next_error AS error, coalesce(prev_type IN {_OPENERS} OR prev_type = 'unblocked', FALSE) AS first, carried,
  coalesce(next_type = 'expired' OR (next_type = 'died' AND next_error LIKE 'the lease expired%'), FALSE) AS expired
FROM {{chains}} WHERE type = 'claimed'"""

# ── lives ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_OPENS = f"NOT carried AND type IN {_OPENERS}"
#: From its `visible_at` on it may be claimed for the first time.
_VISIBLE = f"{_OPENS} AND state <> 'blocked' OR NOT carried AND type = 'unblocked'"
_CLAIMS = "NOT carried AND type = 'claimed'"
_HELD = "NOT carried AND prev_type = 'claimed'"  # the event ended an attempt
#: What ends a job that is done or dead already (purged, retired) ends no life.
_ENDS = f"NOT carried AND type IN {_ENDS_A_LIFE} AND prev_state IN ('blocked', 'waiting', 'leased')"
#: Its last event: the next life begins with a replay, and with nothing else. One row of each life.
_LAST = "next_type IS NULL OR next_type = 'replayed'"
_SPENT = f"CASE WHEN {_HELD} THEN {between('prev_time', 'time')} END"
_WAITED = f"CASE WHEN {_CLAIMS} THEN {between('wait_from', 'time')} END"
_LAST_OF = (*EVENT, "wait_from", "prev_type", "next_type")


def _count(when: str, known: str) -> str:
    return f"CAST(sum(CASE WHEN {when} THEN 1 ELSE coalesce(known_{known}, 0) END) AS BIGINT) AS {known}"


def _sum(value: str, known: str) -> str:
    return f"CAST(sum(coalesce({value}, known_{known}, 0)) AS BIGINT) AS {known}"


#: One row a life that was open or began; `ended_at` is null while it is open, `last_…` is its last event. A job that
#: was dead or done when the run began, or came so from elsewhere, has no life to tell of here: it is `over`.
LIVES = f"""
WITH grouped AS (
  SELECT {", ".join(JOB)}, life, max(tenant) AS tenant, max(queue) AS queue, max(priority) AS priority,
    max(max_attempts) AS max_attempts,
    max(coalesce(CASE WHEN {_OPENS} THEN type END, known_opened_by)) AS opened_by,
    min(coalesce(CASE WHEN {_OPENS} THEN time END, known_opened_at)) AS opened_at,
    min(coalesce(CASE WHEN {_VISIBLE} THEN visible_at END, known_first_visible_at)) AS first_visible_at,
    min(coalesce(CASE WHEN {_CLAIMS} THEN time END, known_first_claimed_at)) AS first_claimed_at,
    max(known_first_claimed_at) IS NOT NULL AS claimed_before,
    {_count(_CLAIMS, "attempts")}, {_count(f"{_HELD} AND type = 'retried'", "retried")},
    {_count(f"{_HELD} AND type = 'released'", "released")}, {_count(f"{_HELD} AND type = 'expired'", "expired")},
    {_sum(_SPENT, "run_ms")}, {_sum(f"CASE WHEN type <> 'done' THEN {_SPENT} END", "wasted_ms")}, {_sum(_WAITED, "waited_ms")},
    max(CASE WHEN {_ENDS} THEN time END) AS ended_at, max(CASE WHEN {_ENDS} THEN type END) AS ended_by,
    max(CASE WHEN {_ENDS} THEN reason END) AS reason, max(CASE WHEN {_ENDS} THEN error END) AS ended_error,
    max(CASE WHEN (carried AND state = 'dead') OR (type = 'restored' AND state NOT IN ('blocked', 'waiting', 'leased')) THEN 1 ELSE 0 END)
      = 1 AS over,
    {", ".join(f"max(CASE WHEN {_LAST} THEN {name} END) AS last_{name.strip('`')}" for name in _LAST_OF)}
  FROM {{chains}} GROUP BY {", ".join(JOB)}, life
)
SELECT *, CASE WHEN ended_by = 'died' THEN 'dead' ELSE ended_by END AS outcome,
  CASE WHEN ended_at IS NOT NULL THEN ended_error ELSE last_error END AS error
FROM grouped
WHERE opened_at IS NOT NULL OR first_claimed_at IS NOT NULL OR ended_at IS NOT NULL
  OR last_state IN ('blocked', 'waiting', 'leased', 'dead')"""

_LIFE = f"{', '.join(NAMES)}, {', '.join(JOB)}, life, priority, max_attempts, {', '.join(KNOWN)}, ended_at, outcome, reason, error"
#: Lives that ended in this run.
CLOSED_LIVES = f"SELECT {_LIFE} FROM {{lives}} WHERE ended_at IS NOT NULL AND NOT over"
#: Lives that have not ended, as far as they are known.
OPEN_LIVES = f"SELECT {_LIFE} FROM {{lives}} WHERE ended_at IS NULL AND NOT over AND last_state IN ('blocked', 'waiting', 'leased')"
#: One row a job that is not gone or done, the last event of its newest life: where its chain goes on in the next run.
CARRY = f"""
SELECT {", ".join(JOB)}, {", ".join(NAMES)},
  {", ".join(f"last_{name.strip('`')} AS {name}" for name in (*EVENT, "wait_from", "prev_type"))}, life, {", ".join(KNOWN)}
FROM {{lives}} WHERE last_state IN ('blocked', 'waiting', 'leased', 'dead') AND last_next_type IS NULL"""
