"""Pools run handlers. A pool takes jobs from the backlog, runs each to its outcome, and can end one that is lost.

    threads     threads; a handler is notified that its job is lost: a thread cannot be ended from outside
    processes   processes, one job at a time in each; a handler whose job is lost is killed with its process
    aio         one event loop; a handler whose job is lost is cancelled

`contract.py` has the interface between worker and pools, and the code that they share.
"""
