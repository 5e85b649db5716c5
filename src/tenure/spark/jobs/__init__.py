"""The jobs around the pipelines: what reads, writes and commits. `tenure spark NAME` runs one; so does a scheduler's
Python.

    load history report audit replay migrate archive restore

Each returns a `Summary` of what it read, wrote and rejected, and tells how far it is as it goes.
"""
