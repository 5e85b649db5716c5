"""Tasks and the workers that run them: functions on top of queues, on any `Store`.

    @app.task → Task ── delay ──▶ encoding ──▶ queue                                   the producer's side
                                                 │ claim: one lease, as many jobs as there is room for
    Worker:  claimer ──▶ backlog ──▶ pool (threads, processes, one event loop) ──▶ settler ──▶ queue
                            └─ heartbeat: one extend a claim, and word to the handlers of what was lost

app.py        App: the store, the tasks, the schedule         runner.py      Worker: the threads above, and how they end
tasks.py      Task, what a call becomes                       hold.py        claims in hand, and the works under them
handles.py    Handle: what became of it                       heartbeat.py   keeps leases, notices when they are lost
encoding.py   arguments and results by type hints             settling.py    outcomes, many to a transaction
verdicts.py   Retry, Dead, and what an exception means        pools/         who runs a handler, and how it is ended
context.py    current_job()                                   periodic.py    cron, each tick once
execute.py    one job, run to its outcome                     child.py       the other end of a process pool

`tenure.App`, `Retry`, `Dead` and `current_job` are loaded from here when they are first asked for.
"""
