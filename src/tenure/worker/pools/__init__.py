"""What runs handlers. A pool takes jobs from the backlog, runs each to its outcome, and can end one that is lost.

    threads     as many threads; a handler is told that its job is lost: a thread cannot be ended from outside
    processes   as many processes, one job at a time in each; a handler whose job is lost is killed with its process
    aio         one event loop; a handler whose job is lost is cancelled

`contract.py` says what the worker asks of each of them, and has what they share.
"""
