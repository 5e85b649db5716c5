"""Tasks and the workers that run them: functions on top of queues, on any `Store`.

    @app.task → Task ── delay ──▶ codec ──▶ queue                                   the producer's side
                                              │ claim: one lease, as many jobs as there is room for
    Worker:  claimer ──▶ backlog ──▶ pool (threads, processes, one event loop) ──▶ settler ──▶ queue
                            └─ heartbeat: one extend a claim; tells handlers whose lease was lost

app.py          App: the store, the tasks, the schedule       runner.py        Worker: its threads, and their shutdown
tasks.py        Task: enqueues calls of a function            held_claims.py   claims the worker holds, and their jobs
handles.py      Handle: result, state, cancel                 claimer.py       claims as many jobs as there is room for
codec.py        arguments and results by type hints           heartbeat.py     extends leases, notices lost ones
extra_types.py  Pydantic models, registered types             settler.py       writes outcomes, many to a transaction
outcomes.py     Retry, Dead, and what an exception means      background.py    a thread that survives any exception
context.py      current_job()                                 queue_watch.py   patterns of queues, unserved queues
middleware.py   hooks around handlers                         periodic.py      each tick of a schedule once
execution.py    one job, run to its outcome                   pools/           how handlers are run and stopped
flows.py        chain, group, Flow: steps as a graph          flow_handles.py  FlowHandle: result, status, cancel, retry
parent_results.py  results of parents as arguments            type_fit.py      whether a result fits an argument
steps.py        job.step, sleep and wait_for                  schedules.py     app.schedules: made at run time
log.py          log lines that never fail                     child.py         the child process of a process pool
metrics.py      Prometheus metrics per task                   health.py        GET /health and /metrics

`tenure.App`, `Retry`, `Dead` and `current_job` are imported from here on first use.
"""
