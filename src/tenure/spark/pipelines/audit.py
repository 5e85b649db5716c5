"""Laws, each as a join or a window that finds what breaks it; every one of `rule, tenant, queue, job_id, lease_id, evidence`.

over the tables of one snapshot                         over the journal of the same snapshot
index        a job's index or due row is missing        gap            an event is missing, or time goes back
stray        an index or due row has no such job        chain          an event does not follow the job's one before
lease        a leased job is not its lease's            transition     a change that the lifecycle does not know
lease_open   a lease's open count is wrong              overlap        claimed while another lease held it
lease_empty  a lease that holds nothing is there        stale_settle   settled by another token or lease than claimed
counters     a counter is not a recount                 late_settle    settled after its lease had ended
conservation enqueued − removed is not what is there    attempts       delivered more often than it may be
journal      table and journal disagree on a job        token          the token did not grow by one, or moved
lost         the journal has a job the tables lack      balance        entered − left is not what the journal has open

Six of them are the invariants of the design: 1 `index`, 2 `stray lease lease_open`, 3 `lease_empty` (and its `index`),
4 `counters`, 5 `conservation`, 6 `journal lost`. One fault breaks one law: what follows from it is not said again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tenure.model.lifecycle import TRANSITIONS

RULES = (
    "index", "stray", "lease", "lease_open", "lease_empty", "counters", "conservation", "journal", "lost",
    "gap", "chain", "transition", "overlap", "stale_settle", "late_settle", "attempts", "token", "balance",
)  # fmt: skip
COLUMNS = ("rule", "tenant", "queue", "job_id", "lease_id", "evidence")
#: What each table is asked for: payloads stay where they are.
NEEDED = {
    "jobs": ("tenant", "queue", "queue_number", "id", "state", "priority", "attempt", "max_attempts", "token",
             "visible_at", "ended_at", "due_at", "lease_id", "last_commit", "last_index"),
    "events": ("shard", "commit", "index", "number", "time", "type", "tenant", "queue", "queue_number", "job_id",
               "state", "priority", "attempt", "max_attempts", "token", "lease_id", "lease_until", "error",
               "previous_commit", "previous_index"),
    "leases": ("tenant", "queue", "queue_number", "id", "expires_at", "open"),
    "indexes": ("tenant", "queue", "queue_number", "index", "time", "priority", "id"),
    "lease_jobs": ("queue_number", "lease_id", "job_id", "token", "cancelled"),
    "counters": ("tenant", "queue", "queue_number", "counter", "value"),
}  # fmt: skip
#: Narrow views of the same tables, where a law needs no more: a job that reads a store asks it for these columns only.
VIEWS = {
    "states": ("jobs", ("queue_number", "state")),
    "journal": ("events", ("shard", "commit", "number", "time", "type", "queue_number", "lease_id", "lease_until")),
}
Tables = Mapping[str, DataFrame]
Keep = Callable[[DataFrame], DataFrame]
"""Makes a table that is looked at more than once be worked out once."""
_WAITS = ("ready", "scheduled")


def violations(tables: Tables, keep: Keep = lambda rows: rows) -> DataFrame:
    """Everything in these tables, of one moment, that breaks a law."""
    whole = {**{view: tables[table] for view, (table, _) in VIEWS.items()}, **tables}
    return reduce(DataFrame.unionByName, [*_tables(whole), *_journal(whole, keep)])


# ── the tables ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _tables(tables: Tables) -> list[DataFrame]:
    return [
        indexes(tables["jobs"], tables["leases"], tables["indexes"]),
        leased(tables["jobs"], tables["leases"], tables["lease_jobs"]),
        leases(tables["jobs"], tables["leases"]),
        counters(tables["states"], tables["counters"]),
    ]


def indexes(jobs: DataFrame, leases: DataFrame, rows: DataFrame) -> DataFrame:
    """Index rows that must be there, against those that are; due rows of keys and claims may be left over."""
    state = _state(F.col("state"))
    of_state = F.struct(
        F.when(state == "waiting", "ready").when(state.isin("done", "dead"), state).alias("index"),
        F.when(state == "waiting", F.col("visible_at")).otherwise(F.col("ended_at")).alias("time"),
        F.when(state == "waiting", F.col("priority")).alias("priority"),
    )
    due = F.struct(
        F.when(F.col("due_at").isNotNull(), F.when(state == "done", "due_retention").otherwise("due_ttl")).alias(
            "index"
        ),
        F.col("due_at").alias("time"),
        F.lit(None).cast("int").alias("priority"),
    )
    names = ("tenant", "queue", "queue_number", "id")
    key = (*names, "index", "time", "priority")
    must = jobs.select(*names, F.explode(F.array(of_state, due)).alias("row")).select(*names, "row.*")
    must = must.where(F.col("index").isNotNull())
    of_leases = leases.select(
        *names,
        F.lit("due_lease").alias("index"),
        F.col("expires_at").alias("time"),
        F.lit(None).cast("int").alias("priority"),
    )
    there = rows.where(~F.col("index").isin("due_dedup", "due_claim", "due_write", "due_request")).select(*key)
    told = (
        must.unionByName(of_leases).withColumns({"must": F.lit(1), "is": F.lit(0)})
        .unionByName(there.withColumns({"must": F.lit(0), "is": F.lit(1)}))
        .groupBy(*key).agg(F.sum("must").alias("must"), F.sum("is").alias("is"))
        .where(F.col("must") != F.col("is"))
    )  # fmt: skip
    at = F.concat_ws(" ", F.col("index"), F.lit("at"), F.col("time").cast("string"), _labelled("priority"))
    missing = F.col("must") > F.col("is")
    by_lease = F.col("index") == "due_lease"
    return told.select(
        F.when(missing, "index").otherwise("stray").alias("rule"),
        "tenant",
        "queue",
        F.when(~by_lease, F.col("id")).alias("job_id"),
        F.when(by_lease, F.col("id")).alias("lease_id"),
        F.when(missing, F.concat(F.lit("has no row "), at))
        .otherwise(F.concat(F.lit("a row "), at, F.lit(" that nothing explains")))
        .alias("evidence"),
    )


def leased(jobs: DataFrame, leases: DataFrame, given: DataFrame) -> DataFrame:
    """Leased jobs whose lease is not there, or was not given them with their token."""
    held = jobs.where(F.col("state") == "leased").select(
        "tenant", "queue", "queue_number", F.col("id").alias("job_id"), "lease_id", "token"
    )
    there = leases.select("queue_number", F.col("id").alias("lease_id"), F.lit(True).alias("lease_there"))
    gave = given.where(~F.col("cancelled")).select(
        "queue_number", "lease_id", "job_id", F.col("token").alias("given_token")
    )
    joined = held.join(there, ["queue_number", "lease_id"], "left").join(
        gave, ["queue_number", "lease_id", "job_id"], "left"
    )
    why = F.when(F.col("lease_there").isNull(), F.lit("its lease is not there")).when(
        F.col("given_token").isNull(), F.lit("its lease was not given it")
    ).when(F.col("given_token") != F.col("token"), _say("it has token {}, and its lease was given it with {}", F.col("token"), F.col("given_token")))  # fmt: skip
    return _violations(joined.withColumn("evidence", why).where(F.col("evidence").isNotNull()), "lease")


def leases(jobs: DataFrame, leases: DataFrame) -> DataFrame:
    held = jobs.where(F.col("state") == "leased").groupBy("queue_number", "lease_id").agg(F.count("*").alias("held"))
    counted = (
        leases.withColumnRenamed("id", "lease_id").join(held, ["queue_number", "lease_id"], "left").fillna(0, ["held"])
    )
    wrong = counted.where((F.col("held") == 0) | (F.col("held") != F.col("open")))
    return _violations(
        wrong.withColumns(
            {
                "rule": F.when(F.col("held") == 0, "lease_empty").otherwise("lease_open"),
                "evidence": _say("{} jobs name it, and it counts {} open", F.col("held"), F.col("open")),
                "job_id": F.lit(None).cast("string"),
            }
        )
    )


def counters(jobs: DataFrame, counted: DataFrame) -> DataFrame:
    """Counters against a recount; and enqueued − removed against all that is there."""
    recount = jobs.groupBy("queue_number", _state(F.col("state")).alias("counter")).agg(F.count("*").alias("recount"))
    total = jobs.groupBy("queue_number").agg(F.count("*").alias("recount")).withColumn("counter", F.lit("(all)"))
    signed = F.when(F.col("counter") == "enqueued", F.col("value")).when(F.col("counter") == "removed", -F.col("value"))
    names = ("tenant", "queue", "queue_number")
    balance = counted.groupBy(*names).agg(F.sum(signed).alias("value")).withColumn("counter", F.lit("(all)"))
    kept = counted.where(F.col("counter").isin("waiting", "leased", "done", "dead")).select(*names, "counter", "value")
    both = (
        kept.unionByName(balance.select(*names, "counter", "value"))
        .join(recount.unionByName(total.select(*recount.columns)), ["queue_number", "counter"], "full")
        .fillna(0, ["value", "recount"])
        .where(F.col("value") != F.col("recount"))
    )
    whole = F.col("counter") == "(all)"
    evidence = F.when(whole, _say("enqueued - removed is {}, and {} jobs are there", F.col("value"), F.col("recount"))).otherwise(
        _say("{} is counted as {}, and {} are there", F.col("counter"), F.col("value"), F.col("recount"))
    )  # fmt: skip
    nobody = F.lit(None).cast("string")
    return _violations(
        both.withColumns(
            {
                "rule": F.when(whole, "conservation").otherwise("counters"),
                "evidence": evidence,
                "job_id": nobody,
                "lease_id": nobody,
            }
        )
    )


# ── the journal ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _journal(tables: Tables, keep: Keep) -> list[DataFrame]:
    rows = tables["journal"]
    oldest = rows.agg(F.coalesce(F.min("commit"), F.lit(0)).alias("oldest"))
    # Few rows of many: a job's newest, and those that break a law.
    marked = keep(judged(chain(tables["events"]), oldest, rows).where(F.col("newest") | F.col("rule").isNotNull()))
    broken = _violations(marked.where(F.col("rule").isNotNull()))
    newest = marked.where("newest")
    return [gaps(rows), broken, against_jobs(newest, tables["jobs"], oldest), balance(newest, broken)]


def chain(events: DataFrame) -> DataFrame:
    """Job events beside the one before; `newest` of each job, with what its events say it left in its queue."""
    job = Window.partitionBy("queue_number", "job_id")
    order = job.orderBy("commit", "index")
    before = ("commit", "index", "type", "state", "token", "attempt", "lease_id", "lease_until")
    rows = events.where(F.col("job_id").isNotNull()).select(
        *[name for name in NEEDED["events"] if name != "shard"],
        *[F.lag(name).over(order).alias(f"was_{name}") for name in before],
        F.lead("commit").over(order).isNull().alias("newest"),
    )
    known = F.coalesce(F.col("was_state"), F.when(F.col("previous_commit").isNull(), F.lit("gone")).otherwise("there"))
    entered = F.when((known == "gone") & (F.col("state") != "gone"), 1).otherwise(0)
    met = F.when(F.col("was_commit").isNull() & (known == "there"), 1).otherwise(0)
    left = F.when((F.col("state") == "gone") & (known != "gone"), 1).otherwise(0)
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return rows.withColumn("kept", F.sum(entered + met - left).over(so_far))


def gaps(events: DataFrame) -> DataFrame:
    """The journal as a whole: every number there once, and time never going back."""
    order = Window.partitionBy("shard").orderBy("commit")
    # By rows of the journal, which are fewer than events: a row's own numbers are dense if their count says so.
    rows = events.groupBy("shard", "commit").agg(
        F.min("number").alias("first"), F.max("number").alias("last"), F.count("*").alias("count"),
        F.min("time").alias("time"), F.max("time").alias("until"),
    )  # fmt: skip
    looked = rows.select(
        "*",
        F.lag("last").over(order).alias("before"),
        F.lag("commit").over(order).alias("commit_before"),
        F.lag("until").over(order).alias("time_before"),
    )
    gap = (F.col("first") != F.col("before") + 1) | (F.col("commit") != F.col("commit_before") + 1)
    hole = F.col("last") - F.col("first") + 1 != F.col("count")
    back = F.col("time") < F.col("time_before")
    why = (
        F.when(gap, _say("row {} begins with event {}, and follows row {}, which ends with {}", F.col("commit"), F.col("first"), F.col("commit_before"), F.col("before")))
        .when(hole, _say("row {} has {} events, numbered {} to {}", F.col("commit"), F.col("count"), F.col("first"), F.col("last")))
        .when(back, _say("row {} is earlier than the one before it", F.col("commit")))
    )  # fmt: skip
    nobody = F.lit(None).cast("string")
    bare = dict.fromkeys(("tenant", "queue", "job_id", "lease_id"), nobody)
    return _violations(looked.withColumn("evidence", why).where(F.col("evidence").isNotNull()).withColumns(bare), "gap")


def judged(chained: DataFrame, oldest: DataFrame, journal: DataFrame) -> DataFrame:
    """Laws of a job's chain of events: `rule` is the first that an event breaks, null if it breaks none."""
    ends = (
        journal.where(F.col("type") == "extended")
        .groupBy("queue_number", "lease_id")
        .agg(F.max("lease_until").alias("extended_to"))
    )
    settles = F.col("type").isin("done", "retried", "died", "released")
    held = F.col("was_state") == "leased"
    known = F.col("was_commit").isNotNull()
    follows = (F.col("previous_commit") == F.col("was_commit")) & (F.col("previous_index") == F.col("was_index"))
    first = F.col("previous_commit").isNull() | (F.col("previous_commit") < F.col("oldest"))
    claims = F.col("type") == "claimed"
    token_was = F.coalesce(F.col("was_token"), F.lit(0))
    by_expiry = F.coalesce(F.col("error").startswith("the lease expired"), F.lit(False))
    until = F.greatest(F.col("was_lease_until"), F.col("extended_to"))
    moved = F.when(claims, F.col("token") != token_was + 1).otherwise(F.col("token") != token_was)
    where = _say("{} at {}/{}", F.col("type"), F.col("commit"), F.col("index"))
    laws: list[tuple[str, Column, Column]] = [
        ("overlap", known & claims & held, _say("{}: lease {} still held it", where, F.col("was_lease_id"))),
        ("stale_settle", known & held & (settles | (F.col("type") == "expired")) & (
            (F.col("token") != F.col("was_token")) | ~F.col("lease_id").eqNullSafe(F.col("was_lease_id"))
        ), _say("{} with token {}, and it was claimed with token {}", where, F.col("token"), F.col("was_token"))),
        ("attempts", claims & (F.col("attempt") > F.col("max_attempts")),
         _say("{}: attempt {} of {}", where, F.col("attempt"), F.col("max_attempts"))),
        ("transition", ~_allowed(F.when(known, F.col("was_state")).when(F.col("previous_commit").isNull(), "gone")),
         _say("{}: from {} to {}", where, F.coalesce(F.col("was_state"), F.lit("gone")), F.col("state"))),
        ("chain", F.when(known, ~follows).otherwise(~first),
         _say("{} names {}/{} as the one before it, which is {}/{}", where, F.col("previous_commit"),
              F.col("previous_index"), F.col("was_commit"), F.col("was_index"))),
        ("token", known & (F.col("type") != "repaired") & moved,
         _say("{}: token {} after {}", where, F.col("token"), F.col("was_token"))),
        ("late_settle", known & held & settles & ~by_expiry & (F.col("time") >= until),
         _say("{}, at {}, and its lease had ended at {}", where, F.col("time").cast("string"), until.cast("string"))),
    ]  # fmt: skip
    rule = evidence = F.lit(None).cast("string")
    for name, breaks, says in reversed(laws):
        broken = F.coalesce(breaks, F.lit(False))
        rule, evidence = F.when(broken, name).otherwise(rule), F.when(broken, says).otherwise(evidence)
    # Only what may be late is looked up among the leases that were extended: few.
    marked = chained.crossJoin(F.broadcast(oldest)).join(F.broadcast(ends), ["queue_number", "lease_id"], "left")
    return marked.select(
        "tenant", "queue", "queue_number", "job_id", "lease_id", "state", "token", "attempt", "priority", "commit",
        "index", "newest", "kept", rule.alias("rule"), evidence.alias("evidence"),
    )  # fmt: skip


def _allowed(before: Column) -> Column:
    """Whether the lifecycle knows the step; of what is not known (trimmed, another version's type) nothing is said."""
    steps = [
        f"{change.name.lower()} {start.name.lower()} {end.name.lower()}"
        for change, (starts, ends) in TRANSITIONS.items()
        for start in starts
        for end in ends
    ]
    step = F.concat_ws(" ", F.col("type"), before, F.col("state"))
    judged = before.isNotNull() & F.col("type").isin(*[change.name.lower() for change in TRANSITIONS])
    return ~judged | step.isin(*steps)


def against_jobs(newest: DataFrame, jobs: DataFrame, oldest: DataFrame) -> DataFrame:
    """The sixth invariant: each job as its newest event says, none missing on either side."""
    told = newest.select(
        F.col("tenant").alias("e_tenant"), F.col("queue").alias("e_queue"), "queue_number", "job_id",
        F.col("state").alias("e_state"), F.col("token").alias("e_token"), F.col("attempt").alias("e_attempt"),
        F.col("priority").alias("e_priority"), "commit", "index",
    )  # fmt: skip
    tables = jobs.withColumnRenamed("id", "job_id").select(
        "tenant", "queue", "queue_number", "job_id", _state(F.col("state")).alias("state"), "token", "attempt",
        "priority", "last_commit", "last_index",
    )  # fmt: skip
    both = told.join(tables, ["queue_number", "job_id"], "full").crossJoin(F.broadcast(oldest))
    gone = F.col("state").isNull()
    lost = gone & (F.col("e_state") != "gone")
    differs = ~gone & F.col("e_state").isNotNull() & (
        (F.col("state") != F.col("e_state")) | (F.col("token") != F.col("e_token")) | (F.col("attempt") != F.col("e_attempt"))
        | (F.col("priority") != F.col("e_priority")) | (F.col("last_commit") != F.col("commit")) | (F.col("last_index") != F.col("index"))
    )  # fmt: skip
    untold = ~gone & F.col("e_state").isNull() & (F.col("last_commit") >= F.col("oldest"))
    why = (
        F.when(lost, _say("its newest event, {}/{}, leaves it {}, and it is not there", F.col("commit"), F.col("index"), F.col("e_state")))
        .when(differs, _say("it is {}, token {}, attempt {}, by event {}/{}; its newest, {}/{}, says {}, token {}, attempt {}",
              F.col("state"), F.col("token"), F.col("attempt"), F.col("last_commit"), F.col("last_index"), F.col("commit"),
              F.col("index"), F.col("e_state"), F.col("e_token"), F.col("e_attempt")))
        .when(untold, _say("it names event {}/{}, and the journal tells nothing of it", F.col("last_commit"), F.col("last_index")))
    )  # fmt: skip
    return _violations(
        both.withColumns(
            {
                "rule": F.when(lost, "lost").otherwise("journal"),
                "evidence": why,
                "tenant": F.coalesce("tenant", "e_tenant"),
                "queue": F.coalesce("queue", "e_queue"),
                "lease_id": F.lit(None).cast("string"),
            }
        ).where(F.col("evidence").isNotNull())
    )


def balance(newest: DataFrame, broken: DataFrame) -> DataFrame:
    """Conservation of the journal itself: what entered and did not leave is what its newest events leave open."""
    still = F.when(F.col("state") != "gone", 1).otherwise(0)
    sums = newest.groupBy("tenant", "queue").agg(F.sum("kept").alias("kept"), F.sum(still).alias("still"))
    said = broken.select("tenant", "queue").distinct()
    nobody = F.lit(None).cast("string")
    return _violations(
        sums.where(F.col("kept") != F.col("still"))
        .join(said, ["tenant", "queue"], "left_anti")
        .withColumns(
            {
                "job_id": nobody,
                "lease_id": nobody,
                "evidence": _say("entered - left is {}, and {} jobs are open", F.col("kept"), F.col("still")),
            }
        ),
        "balance",
    )


# ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _state(shown: Column) -> Column:
    return F.when(shown.isin(*_WAITS), "waiting").otherwise(shown)


def _say(text: str, *values: Column) -> Column:
    parts = text.split("{}")
    pieces: list[Column] = [F.lit(parts[0])]
    for value, after in zip(values, parts[1:], strict=True):
        pieces += [F.coalesce(value.cast("string"), F.lit("nothing")), F.lit(after)]
    return F.concat(*pieces)


def _labelled(name: str) -> Column:
    return F.when(F.col(name).isNotNull(), F.concat(F.lit(f"{name} "), F.col(name).cast("string")))


def _violations(rows: DataFrame, rule: str | None = None) -> DataFrame:
    named = rows if rule is None else rows.withColumn("rule", F.lit(rule))
    return named.select(*COLUMNS)
