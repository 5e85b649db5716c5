"""Questions about a store and its history, as SQL text that runs with and without Spark.

    bulk (Arrow tables) ──▶ analysis (SQL) ──▶ DuckDB, in this process: up to about a million events, no Java
                                          └──▶ tenure.spark.jobs: the same text, beyond that

laws.py       what must hold in a store and its journal: the audit
attempts.py   deliveries and lives, told from events        metrics.py  numbers over time, told from those
causes.py     error messages brought down to a class        sql.py      the DuckDB that knows Spark's functions
audit.py      the audit without Spark                       report/     the report: facts gathered, page drawn
summary.py    what every job answers with

Nothing here imports PySpark. Needs `pip install 'tenure[analysis]'`.
"""
