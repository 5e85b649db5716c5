"""The command line: arguments and printing only. What a verb does is the store's affair.

main.py     the entry point        frame.py    groups, common options, errors to exit codes
produce.py  enqueue                session.py  which store, and opening it
consume.py  claim, ack, …          output.py   tables for people, lines of JSON for programs
look.py     get, list, counts, …   shapes.py   the JSON objects, field by field
mend.py     replay, purge, …       times.py    durations and moments, read and shown
admin.py    check, snapshot, …     working.py  the progress bar
"""
