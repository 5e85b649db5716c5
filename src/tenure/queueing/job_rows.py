"""Reads and decodes the rows of one or many jobs. A damaged row gives an error in its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tenure.errors import Corrupt
from tenure.storage.engine import Reader, get_each
from tenure.storage.keyspace import JOBS, READY_JOB, STATE
from tenure.storage.records import (
    JobRecord,
    StateRecord,
    decode_jobs,
    decode_states,
    job_or_damage,
    state_or_damage,
)

JobRows = tuple[bytes, bytes, StateRecord | Corrupt | None, JobRecord | Corrupt]
"""A ready row, the job that it points at, and the job's state and body."""


def read_states(reader: Reader, prefix: bytes, jobs: Sequence[bytes]) -> Sequence[StateRecord | Corrupt | None]:
    """The states of jobs of one queue, whose keys begin with `prefix`; None for a job that does not exist."""
    if len(jobs) == 1:
        (job,) = jobs
        try:
            return (state_or_damage(reader.get(STATE, prefix + job), job),)
        except Corrupt:
            pass  # the engine cannot read it: `get_each` gives an error in its place
    return decode_states(get_each(reader, STATE, [prefix + job for job in jobs]), jobs)


def read_ready(reader: Reader, prefix: bytes, keys: Sequence[bytes]) -> Iterable[JobRows]:
    """The jobs of these ready rows of one queue. A missing row in `jobs` is damage."""
    if len(keys) == 1:
        (key,) = keys
        job = key[READY_JOB]
        row, get = prefix + job, reader.get
        try:
            return ((key, job, state_or_damage(get(STATE, row), job), job_or_damage(get(JOBS, row), job)),)
        except Corrupt:  # the engine cannot read one of them: `get_each` tells which
            pass
    jobs = [key[READY_JOB] for key in keys]
    rows = [prefix + job for job in jobs]
    states = decode_states(get_each(reader, STATE, rows), jobs)
    return zip(keys, jobs, states, decode_jobs(get_each(reader, JOBS, rows), jobs), strict=True)
