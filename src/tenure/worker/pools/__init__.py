"""Who runs handlers. A pool takes works from the backlog, runs each to its outcome, and can end one that was lost.

    threads     as many threads; a handler is only told that it is lost, since a thread cannot be ended from outside
    processes   as many processes, one job at a time in each; a lost one is ended with its process
    aio         one event loop; a lost handler is cancelled

`contract.py` says what the runner asks of each of them.
"""
