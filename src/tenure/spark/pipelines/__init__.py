"""Functions from DataFrames to DataFrames; `tenure.spark.jobs` reads and writes around them.

    migration     checksums over jobs, in any order
    job_mapping   rows of any table as jobs

Built-in functions only: a Python function a row costs thirty times as much. What is told from events (attempts, lives,
hourly numbers) and the laws of an audit are statements of `tenure.analysis`, which DuckDB runs too.
"""
