# %% [markdown]
# # A queue's data pipeline, in five minutes
#
# Run it cell by cell in an editor that knows `# %%`, or whole: `python examples/pipeline.py [FOLDER]`. It needs
# `pip install 'tenure[spark]'` and Java 17. Everything is on this machine; the same code runs on a cluster.

# %%
from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import tenure
import tenure.spark
from tenure import Policy
from tenure.analysis import metrics
from tenure.spark.jobs.archive import archive, restore
from tenure.spark.jobs.audit import audit
from tenure.spark.jobs.history import history
from tenure.spark.jobs.lake import Lake
from tenure.spark.jobs.load import load
from tenure.spark.jobs.replay import replay
from tenure.spark.jobs.report import report
from tenure.spark.statements import run

folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="tenure-pipeline-"))
url = f"rocksdb:{folder / 'data'}"
spark = tenure.spark.session("pipeline", master="local[2]", conf={"spark.log.level": "ERROR"})

# %% [markdown]
# ## In: a file becomes jobs
#
# A mapping says which column gives what; rows that are no valid jobs go to a quarantine. The load has a name, so running it
# again adds nothing.

# %%
customers = folder / "customers.csv"
customers.write_text("id,plan,urgency\n" + "".join(f"{n},{'pro' if n % 3 else 'free'},{n % 12}\n" for n in range(600)))
mapping = {"priority": "urgency", "key": "concat('customer-', id)", "headers.plan": "plan"}
for attempt in ("first", "again"):
    loaded = load(
        spark,
        url,
        "welcome",
        path=str(customers),
        mapping=mapping,
        quarantine=str(folder / "rejected"),
        write_id="monday",
    )
    print(f"load, {attempt}: {loaded.written} jobs written, {loaded.rejected} rows rejected")

# %% [markdown]
# ## Work: some of it fails

# %%
with tenure.open(url) as store:
    queue = store.queue("welcome")
    queue.configure(Policy(max_attempts=1, retention=86_400))
    while claim := queue.claim(limit=100, worker="w1"):
        good = [delivery for delivery in claim if delivery.headers["plan"] == "pro"]
        queue.ack_many(good)
        for delivery in claim:
            if delivery.headers["plan"] == "free":
                queue.fail(delivery, error=f"QuotaError: customer {delivery.key} is over its quota")
    print(f"now: {queue.counts()}")

# %% [markdown]
# ## Look: the store as tables, the journal as a history

# %%
jobs = spark.read.format("tenure").option("url", url).load()
jobs.groupBy("state", jobs.headers["plan"].alias("plan")).count().orderBy("state", "plan").show()

# %%
updated = history(spark, url, str(folder / "history"))
print(f"history: run {updated.facts['run']} covers {updated.read} events")
causes = Lake(folder / "history").read(spark, "gold/causes")
assert causes is not None
run(spark, metrics.merged("causes", ("cause",)), partials=causes).show(truncate=False)

# %%
drawn = report(spark, str(folder / "history"), str(folder / "report.html"))
print(f"report: open {drawn.facts['path']}")

# %% [markdown]
# ## Mend: the quota was raised, so those that died of it come back, ten a second

# %%
plan = replay(spark, url, "error LIKE 'QuotaError%' AND priority >= 6", dry_run=True)
done = replay(spark, url, "error LIKE 'QuotaError%' AND priority >= 6", rate=10)
print(f"replay: {plan.read} would come back, {done.written} did")

# %% [markdown]
# ## Check, and put away what is over

# %%
audited = audit(spark, url)
print(f"audit: {audited.rejected} violations in {audited.read} rows")
put_away = archive(spark, url, str(folder / "archive"), datetime.now(UTC) + timedelta(minutes=1))
print(f"archive: {put_away.written} jobs written and verified, {put_away.facts['removed']} removed from the store")
back = restore(spark, url, str(folder / "archive"), "state = 'dead'")
print(f"restore: {back.written} dead jobs are back")

# %%
with tenure.open(url) as store:
    print(f"check(): {'clean' if store.check().clean else 'NOT CLEAN'}; {store.queue('welcome').counts()}")
