"""The command line: arguments and printing only; the API does the work.

main.py         the entry point               command.py        groups, common options, exit codes of errors
produce.py      enqueue                       session.py        choosing and opening the store
consume.py      claim, ack, nack, …           output.py         tables for people, lines of JSON for programs
queries.py      get, list, counts, …          json_shapes.py    the JSON objects, field by field
history.py      timeline, events              times.py          parsing and formatting durations and times
maintenance.py  replay, purge, configure, …   progress.py       the progress bar
admin.py        check, snapshot, upgrade, …   worker.py, top.py, serve.py, tokens.py, quota.py, migrate.py, spark.py
"""
