"""The laws of a store and of its journal, as SQL that finds what breaks them.

over the tables of one snapshot                         over the journal of the same snapshot
index        a job's index or due row is missing        gap            an event is missing, or time goes back
stray        an index or due row has no such job        chain          an event does not follow the job's one before
groups       a group's counts are not a recount, or     transition     a change that the lifecycle does not know
             a job's index row is under another group   overlap        claimed while another lease held it
lease        a leased job is not its lease's            stale_settle   settled by another token or lease than claimed
lease_open   a lease's open count is wrong              late_settle    settled after its lease had ended
lease_empty  a lease that holds nothing is there        attempts       delivered more often than it may be
counters     a counter is not a recount                 token          the token did not grow as it must, or moved
conservation enqueued − removed is not what is there    balance        entered − left is not what the journal has open
journal      table and journal disagree on a job
lost         the journal has a job the tables lack
parents      a blocked job waits for none of its parents, or for other than it counts; one that is not counts some
steps        the steps of a job are not those that it counts, or the job is not there

Six of them are the invariants of the design: 1 `index`, 2 `stray lease lease_open`, 3 `lease_empty` (and its `index`),
4 `counters`, 5 `conservation`, 6 `journal lost`. One fault breaks one law: what follows from it is not said again.

Three statements: `MARKED` tells each job's newest event and every event that breaks a law of its chain, `GROUPED` the jobs
that have a group; `VIOLATIONS`, over these and the tables, is the answer: rows of `rule, tenant, queue, job_id, lease_id,
evidence`.
"""

from __future__ import annotations

import re

from tenure.model.lifecycle import TRANSITIONS
from tenure.model.tokens import TOKEN_COUNT

RULES = (
    "index", "stray", "groups", "parents", "steps", "lease", "lease_open", "lease_empty", "counters", "conservation", "journal", "lost",
    "gap", "chain", "transition", "overlap", "stale_settle", "late_settle", "attempts", "token", "balance",
)  # fmt: skip
#: What each table is asked for: payloads stay where they are.
NEEDED = {
    "jobs": ("tenant", "queue", "queue_number", "id", "state", "priority", "attempt", "max_attempts", "token",
             "visible_at", "ended_at", "due_at", "lease_id", "last_commit", "last_index"),
    "events": ("shard", "commit", "index", "number", "time", "type", "tenant", "queue", "queue_number", "job_id",
               "state", "priority", "attempt", "max_attempts", "token", "lease_id", "lease_until", "error",
               "previous_commit", "previous_index"),
    "leases": ("tenant", "queue", "queue_number", "id", "expires_at", "open"),
    "indexes": ("tenant", "queue", "queue_number", "index", "time", "priority", "id", "group_id"),
    "groups": ("tenant", "queue", "queue_number", "id", "group", "waiting", "leased"),
    "parents": ("tenant", "queue", "queue_number", "job_id", "met", "unmet"),
    "steps": ("tenant", "queue", "queue_number", "job_id", "number", "count"),
    "lease_jobs": ("queue_number", "lease_id", "job_id", "token", "cancelled"),
    "counters": ("tenant", "queue", "queue_number", "counter", "value"),
}  # fmt: skip
#: Views of the same tables: where a law needs no more, or something else, a store is asked for these columns only.
VIEWS = {
    "states": ("jobs", ("queue_number", "state")),
    "members": ("jobs", ("tenant", "queue", "queue_number", "id", "state", "priority", "visible_at", "group")),
    "journal": ("events", ("shard", "commit", "number", "time", "type", "queue_number", "lease_id", "lease_until")),
}


def _say(text: str) -> str:
    """A sentence as SQL: `[expression]` is replaced by its value, or by "nothing" where that is null."""
    pieces = re.split(r"\[(.*?)\]", text)
    parts = [
        f"coalesce(CAST({piece} AS STRING), 'nothing')" if number % 2 else f"'{piece}'"
        for number, piece in enumerate(pieces)
        if piece
    ]
    return " || ".join(parts)


def _epoch(token: str) -> str:
    """What two tokens of one epoch have in common (`model.tokens`)."""
    return f"({token} - {token} % {TOKEN_COUNT + 1})"


def _time(name: str) -> str:
    return f"date_format({name}, 'yyyy-MM-dd HH:mm:ss.SSS')"


# ── a job's chain of events ──────────────────────────────────────────────────────────────────────────────────────────

_SETTLES = "type IN ('done', 'retried', 'died', 'released')"
_HELD = "was_commit IS NOT NULL AND was_state = 'leased'"
_CAME_FROM = "CASE WHEN was_commit IS NOT NULL THEN was_state WHEN previous_commit IS NULL THEN 'gone' END"
_UNTIL = "greatest(was_lease_until, extended_to)"
_AT = "[type] at [commit]/[`index`]"
_STEPS = ", ".join(
    f"'{change.name.lower()} {start.name.lower()} {end.name.lower()}'"
    for change, (starts, ends) in TRANSITIONS.items()
    for start in starts
    for end in ends
)
_JUDGED = ", ".join(f"'{change.name.lower()}'" for change in TRANSITIONS)

#: (law, condition under which an event breaks it, message). An event is reported under the first law it breaks.
_CHAIN_LAWS = (
    ("overlap", f"type = 'claimed' AND {_HELD}", f"{_AT}: lease [was_lease_id] still held it"),
    (
        "stale_settle",
        f"{_HELD} AND ({_SETTLES} OR type = 'expired') AND (token <> was_token OR lease_id IS DISTINCT FROM was_lease_id)",
        f"{_AT} with token [token], and it was claimed with token [was_token]",
    ),
    (
        "attempts",
        "type = 'claimed' AND attempt > max_attempts",
        f"{_AT}: attempt [attempt] of [max_attempts]",
    ),
    (
        "transition",  # no verdict about unknown events (trimmed, or of a type of another version)
        (
            f"({_CAME_FROM}) IS NOT NULL AND type IN ({_JUDGED})"
            f" AND type || ' ' || ({_CAME_FROM}) || ' ' || state NOT IN ({_STEPS})"
        ),
        f"{_AT}: from [coalesce(was_state, 'gone')] to [state]",
    ),
    (
        "chain",
        (
            "CASE WHEN was_commit IS NOT NULL THEN NOT (previous_commit = was_commit AND previous_index = was_index)"
            " ELSE NOT (previous_commit IS NULL OR previous_commit < oldest) END"
        ),
        f"{_AT} names [previous_commit]/[previous_index] as the one before it, which is [was_commit]/[was_index]",
    ),
    (
        "token",
        (
            "was_commit IS NOT NULL AND type <> 'repaired'"
            " AND token <> coalesce(was_token, 0) + CASE WHEN type = 'claimed' THEN 1 ELSE 0 END"
            f" AND NOT (type = 'claimed' AND token > was_token AND {_epoch('token')} > {_epoch('was_token')})"
        ),
        f"{_AT}: token [token] after [was_token]",
    ),
    (
        "late_settle",
        f"{_HELD} AND {_SETTLES} AND NOT coalesce(error LIKE 'the lease expired%', FALSE) AND time >= {_UNTIL}",
        f"{_AT}, at [{_time('time')}], and its lease had ended at [{_time(_UNTIL)}]",
    ),
)
_RULE = " ".join(f"WHEN {breaks} THEN '{law}'" for law, breaks, _ in _CHAIN_LAWS)
_EVIDENCE = " ".join(f"WHEN rule = '{law}' THEN {_say(says)}" for law, _, says in _CHAIN_LAWS)
_BEFORE = ", ".join(
    f"lag({name}) OVER job AS was_{name.strip('`')}"
    for name in ("commit", "`index`", "type", "state", "token", "attempt", "lease_id", "lease_until")
)

MARKED = f"""
WITH beside AS (
  SELECT tenant, queue, queue_number, job_id, lease_id, state, token, attempt, max_attempts, priority, commit, `index`,
    time, type, error, previous_commit, previous_index, {_BEFORE}, lead(commit) OVER job IS NULL AS newest
  FROM {{events}} WHERE job_id IS NOT NULL
  WINDOW job AS (PARTITION BY queue_number, job_id ORDER BY commit, `index`)
), known AS (
  SELECT *, coalesce(was_state, CASE WHEN previous_commit IS NULL THEN 'gone' ELSE 'there' END) AS before FROM beside
), counted AS (
  SELECT *, CAST(sum(
      CASE WHEN before = 'gone' AND state <> 'gone' THEN 1 ELSE 0 END
      + CASE WHEN was_commit IS NULL AND before = 'there' THEN 1 ELSE 0 END
      - CASE WHEN state = 'gone' AND before <> 'gone' THEN 1 ELSE 0 END
    ) OVER (PARTITION BY queue_number, job_id ORDER BY commit, `index` ROWS UNBOUNDED PRECEDING) AS BIGINT) AS kept
  FROM known
), extended AS (
  SELECT queue_number, lease_id, max(lease_until) AS extended_to
  FROM {{journal}} WHERE type = 'extended' GROUP BY queue_number, lease_id
), judged AS (
  SELECT *, CASE {_RULE} END AS rule
  FROM counted LEFT JOIN extended USING (queue_number, lease_id)
  CROSS JOIN (SELECT coalesce(min(commit), 0) AS oldest FROM {{journal}}) AS first_row
)
SELECT tenant, queue, queue_number, job_id, lease_id, state, token, attempt, priority, commit, `index`, newest, kept, rule,
  CASE {_EVIDENCE} END AS evidence
FROM judged WHERE newest OR rule IS NOT NULL
"""

# ── all of it ────────────────────────────────────────────────────────────────────────────────────────────────────────

_NOBODY = "CAST(NULL AS STRING)"
_STATE = "CASE WHEN state IN ('ready', 'scheduled') THEN 'waiting' ELSE state END"
_OF_JOB = "tenant, queue, queue_number, id"

#: The jobs that have a group: few of all, looked at by several laws.
GROUPED = "SELECT * FROM {members} WHERE `group` IS NOT NULL"

#: Index rows that must be there, against those that are; due rows of keys and claims may be left over.
#: A job of a group that has no row of its own is expected under any group: `_GROUPS` tells what is wrong.
_INDEXES = f"""
must AS (
  SELECT {_OF_JOB}, CAST(NULL AS INT) AS priority, 'due_lease' AS `index`, expires_at AS time, {_NOBODY} AS group_id
  FROM {{leases}}
  UNION ALL
  SELECT j.tenant, j.queue, j.queue_number, j.id, j.priority, 'group_ready', j.visible_at, g.id
  FROM {{grouped}} AS j LEFT JOIN {{groups}} AS g ON j.queue_number = g.queue_number AND j.`group` = g.`group`
  WHERE {_STATE} = 'waiting'
  UNION ALL
  SELECT {_OF_JOB}, CASE WHEN kind = 1 AND {_STATE} = 'waiting' THEN priority END,
    CASE WHEN kind = 1 AND {_STATE} = 'waiting' THEN 'ready' WHEN kind = 1 AND state IN ('done', 'dead') THEN state
      WHEN kind = 2 AND due_at IS NOT NULL AND state = 'done' THEN 'due_retention'
      WHEN kind = 2 AND due_at IS NOT NULL THEN 'due_ttl' END,
    CASE WHEN kind = 2 THEN due_at WHEN {_STATE} = 'waiting' THEN visible_at ELSE ended_at END, {_NOBODY}
  FROM {{jobs}} CROSS JOIN (VALUES (1), (2)) AS kinds(kind)
), there AS (
  SELECT {_OF_JOB}, `index`, time, priority, 1 AS must, 0 AS found, group_id, {_NOBODY} AS found_group_id
  FROM must WHERE `index` IS NOT NULL
  UNION ALL
  SELECT {_OF_JOB}, `index`, time, priority, 0, 1, {_NOBODY}, group_id FROM {{indexes}}
  WHERE `index` NOT IN ('due_dedup', 'due_claim', 'due_write', 'due_request', 'due_turn')
), uneven AS (
  SELECT {_OF_JOB}, `index`, sum(must) > sum(found) AS missing, sum(must) = sum(found) AS misplaced,
    {_say("[`index`] at [" + _time("time") + "]")} || coalesce(' priority ' || CAST(priority AS STRING), '') AS place
  FROM there GROUP BY {_OF_JOB}, `index`, time, priority
  HAVING sum(must) <> sum(found) OR max(group_id) <> max(found_group_id)
), indexes_broken AS (
  SELECT CASE WHEN missing THEN 'index' WHEN misplaced THEN 'groups' ELSE 'stray' END AS rule, tenant, queue,
    CASE WHEN `index` <> 'due_lease' THEN id END AS job_id, CASE WHEN `index` = 'due_lease' THEN id END AS lease_id,
    CASE WHEN missing THEN 'has no row ' || place WHEN misplaced THEN 'its row ' || place || ' is under another group'
      ELSE 'a row ' || place || ' that nothing explains' END AS evidence
  FROM uneven
)"""

#: What a group's row counts, against its jobs. An idle group may have a row, for the bucket of its rate.
_GROUPS = f"""
group_recounts AS (
  SELECT tenant AS j_tenant, queue AS j_queue, queue_number, `group`,
    sum(CASE WHEN {_STATE} = 'waiting' THEN 1 ELSE 0 END) AS there_waiting,
    sum(CASE WHEN state = 'leased' THEN 1 ELSE 0 END) AS there_leased
  FROM {{grouped}} GROUP BY tenant, queue, queue_number, `group`
), groups_compared AS (
  SELECT coalesce(tenant, j_tenant) AS tenant, coalesce(queue, j_queue) AS queue, `group`,
    coalesce(waiting, 0) AS waiting, coalesce(leased, 0) AS leased,
    coalesce(there_waiting, 0) AS there_waiting, coalesce(there_leased, 0) AS there_leased
  FROM {{groups}} FULL JOIN group_recounts USING (queue_number, `group`)
), groups_broken AS (
  SELECT 'groups' AS rule, tenant, queue, {_NOBODY} AS job_id, {_NOBODY} AS lease_id,
    {
    _say(
        "group [`group`] is counted as [waiting] waiting and [leased] leased, and [there_waiting] and [there_leased] are there"
    )
} AS evidence
  FROM groups_compared WHERE waiting <> there_waiting OR leased <> there_leased
)"""

#: What a job owns, against what it counts: parents that a job waits for, and steps, which are numbered from 0.
_OWNED = f"""
owned AS (
  SELECT 'parents' AS rule, tenant, queue, queue_number, job_id, unmet AS counted, CASE WHEN met THEN 0 ELSE 1 END AS found,
    0 AS blocked, CAST(NULL AS BIGINT) AS number
  FROM {{parents}}
  UNION ALL
  SELECT 'parents', tenant, queue, queue_number, id, CAST(NULL AS BIGINT), 0, 1, CAST(NULL AS BIGINT)
  FROM {{jobs}} WHERE state = 'blocked'
  UNION ALL
  SELECT 'steps', tenant, queue, queue_number, job_id, `count`, 1, 0, number FROM {{steps}}
), owned_sums AS (
  SELECT rule, tenant, queue, queue_number, job_id, max(counted) AS counted, sum(found) AS found, max(blocked) = 1 AS blocked,
    max(number) AS last, sum(number) AS numbers
  FROM owned GROUP BY rule, tenant, queue, queue_number, job_id
), owners AS (
  SELECT queue_number, id AS job_id, TRUE AS there FROM {{jobs}}
), owned_broken AS (
  SELECT rule, tenant, queue, job_id, {_NOBODY} AS lease_id,
    CASE WHEN there IS NULL THEN {_say("rows of its [rule] are there, and it is not")}
      WHEN rule = 'steps' AND (counted IS NULL OR counted <> found OR last <> found - 1 OR 2 * numbers <> found * (found - 1))
        THEN {_say("it counts [counted] steps, and [found] are there, the last numbered [last]")}
      WHEN rule = 'parents' AND blocked AND (counted IS NULL OR counted <> found OR found = 0)
        THEN {_say("it is blocked and counts [counted] parents that it waits for, and [found] are there")}
      WHEN rule = 'parents' AND NOT blocked AND counted IS NOT NULL
        THEN {_say("it is not blocked, and counts [counted] parents that it waits for")} END AS evidence
  FROM owned_sums LEFT JOIN owners USING (queue_number, job_id)
)"""

#: Leased jobs whose lease is not there, or was not given them with their token; leases that count wrongly.
_LEASES = f"""
held AS (
  SELECT tenant, queue, queue_number, id AS job_id, lease_id, token FROM {{jobs}} WHERE state = 'leased'
), given AS (
  SELECT queue_number, lease_id, job_id, token AS given_token FROM {{lease_jobs}} WHERE NOT cancelled
), there_leases AS (
  SELECT queue_number, id AS lease_id, TRUE AS lease_there FROM {{leases}}
), leased_broken AS (
  SELECT 'lease' AS rule, tenant, queue, job_id, lease_id,
    CASE WHEN lease_there IS NULL THEN 'its lease is not there'
      WHEN given_token IS NULL THEN 'its lease was not given it'
      WHEN given_token <> token THEN {_say("it has token [token], and its lease was given it with [given_token]")}
    END AS evidence
  FROM held LEFT JOIN there_leases USING (queue_number, lease_id) LEFT JOIN given USING (queue_number, lease_id, job_id)
), holding AS (
  SELECT queue_number, lease_id, count(*) AS held FROM held GROUP BY queue_number, lease_id
), leases_counted AS (
  SELECT tenant, queue, id AS lease_id, open, coalesce(held, 0) AS held
  FROM {{leases}} AS l LEFT JOIN holding AS h ON l.queue_number = h.queue_number AND l.id = h.lease_id
), leases_broken AS (
  SELECT CASE WHEN held = 0 THEN 'lease_empty' ELSE 'lease_open' END AS rule, tenant, queue, {_NOBODY} AS job_id, lease_id,
    {_say("[held] jobs name it, and it counts [open] open")} AS evidence
  FROM leases_counted WHERE held = 0 OR held <> open
)"""

#: Counters against a recount; and enqueued − removed against all that is there.
_COUNTERS = f"""
recounted AS (
  SELECT queue_number, {_STATE} AS counter, count(*) AS recount FROM {{states}} GROUP BY queue_number, {_STATE}
), recounts AS (
  SELECT queue_number, counter, recount FROM recounted
  UNION ALL SELECT queue_number, '(all)', CAST(sum(recount) AS BIGINT) FROM recounted GROUP BY queue_number
), stored AS (
  SELECT tenant, queue, queue_number, counter, value FROM {{counters}} WHERE counter IN ('blocked', 'waiting', 'leased', 'done', 'dead')
  UNION ALL
  SELECT tenant, queue, queue_number, '(all)', CAST(sum(
    CASE WHEN counter = 'enqueued' THEN value WHEN counter = 'removed' THEN -value END) AS BIGINT)
  FROM {{counters}} GROUP BY tenant, queue, queue_number
), compared AS (
  SELECT tenant, queue, counter, coalesce(value, 0) AS value, coalesce(recount, 0) AS recount
  FROM stored FULL JOIN recounts USING (queue_number, counter)
), counters_broken AS (
  SELECT CASE WHEN counter = '(all)' THEN 'conservation' ELSE 'counters' END AS rule, tenant, queue, {_NOBODY} AS job_id,
    {_NOBODY} AS lease_id,
    CASE WHEN counter = '(all)' THEN {_say("enqueued - removed is [value], and [recount] jobs are there")}
      ELSE {_say("[counter] is counted as [value], and [recount] are there")} END AS evidence
  FROM compared WHERE value <> recount
)"""

#: The journal as a whole: every number there once, and time never going back. By rows of the journal, which are fewer
#: than events: a row's own numbers are dense if their count says so.
_GAPS = f"""
journal_rows AS (
  SELECT shard, commit, min(number) AS first, max(number) AS last, count(*) AS events, min(time) AS time, max(time) AS until
  FROM {{journal}} GROUP BY shard, commit
), in_order AS (
  SELECT *, lag(last) OVER shard_order AS last_before, lag(commit) OVER shard_order AS commit_before,
    lag(until) OVER shard_order AS time_before
  FROM journal_rows WINDOW shard_order AS (PARTITION BY shard ORDER BY commit)
), gaps_broken AS (
  SELECT 'gap' AS rule, {_NOBODY} AS tenant, {_NOBODY} AS queue, {_NOBODY} AS job_id, {_NOBODY} AS lease_id,
    CASE WHEN first <> last_before + 1 OR commit <> commit_before + 1
        THEN {_say("row [commit] begins with event [first], and follows row [commit_before], which ends with [last_before]")}
      WHEN last - first + 1 <> events THEN {_say("row [commit] has [events] events, numbered [first] to [last]")}
      WHEN time < time_before THEN {_say("row [commit] is earlier than the one before it")} END AS evidence
  FROM in_order
)"""

_DIFFERS = _say(
    "it is [state], token [token], attempt [attempt], by event [last_commit]/[last_index]; its newest, [commit]/[`index`], "
    "says [e_state], token [e_token], attempt [e_attempt]"
)
#: The sixth invariant: each job as its newest event says, none missing on either side.
_JOURNAL = f"""
newest AS (
  SELECT tenant AS e_tenant, queue AS e_queue, queue_number, job_id, state AS e_state, token AS e_token,
    attempt AS e_attempt, priority AS e_priority, commit, `index`, kept
  FROM {{marked}} WHERE newest
), stored_jobs AS (
  SELECT tenant, queue, queue_number, id AS job_id, {_STATE} AS state, token, attempt, priority, last_commit, last_index
  FROM {{jobs}}
), journal_compared AS (
  SELECT *, state IS NULL AND e_state <> 'gone' AS lost
  FROM newest FULL JOIN stored_jobs USING (queue_number, job_id)
  CROSS JOIN (SELECT coalesce(min(commit), 0) AS oldest FROM {{journal}}) AS first_row
), journal_broken AS (
  SELECT CASE WHEN lost THEN 'lost' ELSE 'journal' END AS rule, coalesce(tenant, e_tenant) AS tenant,
    coalesce(queue, e_queue) AS queue, job_id, {_NOBODY} AS lease_id,
    CASE WHEN lost THEN {_say("its newest event, [commit]/[`index`], leaves it [e_state], and it is not there")}
      WHEN state IS NOT NULL AND e_state IS NOT NULL AND (state <> e_state OR token <> e_token OR attempt <> e_attempt
          OR priority <> e_priority OR last_commit <> commit OR last_index <> `index`)
        THEN {_DIFFERS}
      WHEN state IS NOT NULL AND e_state IS NULL AND last_commit >= oldest
        THEN {_say("it names event [last_commit]/[last_index], and the journal tells nothing of it")} END AS evidence
  FROM journal_compared
)"""

#: Conservation of the journal itself: what entered and did not leave is what its newest events leave open.
_BALANCE = f"""
chains_broken AS (
  SELECT rule, tenant, queue, job_id, lease_id, evidence FROM {{marked}} WHERE rule IS NOT NULL
), sums AS (
  SELECT e_tenant AS tenant, e_queue AS queue, sum(kept) AS kept, sum(CASE WHEN e_state <> 'gone' THEN 1 ELSE 0 END) AS open
  FROM newest GROUP BY e_tenant, e_queue
), balance_broken AS (
  SELECT 'balance' AS rule, tenant, queue, {_NOBODY} AS job_id, {_NOBODY} AS lease_id,
    {_say("entered - left is [kept], and [open] jobs are open")} AS evidence
  FROM sums ANTI JOIN chains_broken USING (tenant, queue) WHERE kept <> open
)"""

_BROKEN = (
    "indexes_broken", "groups_broken", "owned_broken", "leased_broken", "leases_broken", "counters_broken", "gaps_broken", "chains_broken",
    "journal_broken", "balance_broken",
)  # fmt: skip
VIOLATIONS = (
    f"WITH {','.join((_INDEXES, _GROUPS, _OWNED, _LEASES, _COUNTERS, _GAPS, _JOURNAL, _BALANCE))} "
    + " UNION ALL ".join(
        f"SELECT rule, tenant, queue, job_id, lease_id, evidence FROM {name} WHERE evidence IS NOT NULL"
        for name in _BROKEN
    )
)
#: The same, in an order that both engines agree on.
ORDERED = "SELECT * FROM {violations} ORDER BY rule, tenant NULLS FIRST, queue NULLS FIRST, job_id NULLS FIRST, lease_id NULLS FIRST, evidence"
