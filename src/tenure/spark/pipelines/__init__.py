"""What is computed, as functions from DataFrames to DataFrames; `tenure.spark.jobs` reads and writes around them.

    chains      events of jobs, each beside the one before and the one after it
    silver      attempts and lives
    gold        hourly partials that can be merged, and their merging
    causes      errors, normalised
    audit       laws, as joins that find what breaks them
    moving      checksums over jobs, whatever their order
    loading     rows of any table as jobs

They use Spark's built-in functions only: a Python function a row costs thirty times as much.
"""
