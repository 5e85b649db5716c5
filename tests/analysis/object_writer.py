"""Commits runs to a log on an object store until it is killed, and notes those that it was told are committed.

python object_writer.py ROOT NOTES        a line to its output for each step
"""

from __future__ import annotations

import json
import os
import sys

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tenure.analysis.commit_log import CommitLog, RunConflict, new_attempt
from tenure.analysis.root import open_root

FILES = 3


class Run(msgspec.Struct, kw_only=True):
    version: int = 1
    number: int
    place: str


def main(address: str, notes: str) -> None:
    root = open_root(address)
    log = CommitLog(root, Run)
    while True:
        done = log.entries()
        log.vacuum({run.place for run in done}, {str(run.number) for run in done}.__contains__)
        number = len(done) + 1
        place = f"jobs/run={number}/{new_attempt()}"
        for part in range(FILES):
            with root.draft(f"{place}/part-{part}.parquet") as file:
                pq.write_table(pa.table({"row": range(100)}), file)
            print("wrote", flush=True)
        try:
            log.commit(Run(number=number, place=place))
        except RunConflict:
            continue
        with open(notes, "ab", buffering=0) as file:  # one write, whole, whoever else writes
            os.write(file.fileno(), json.dumps([number, place]).encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
