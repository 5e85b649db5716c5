"""The rows of jobs, read and decoded: one row or many, damage being an answer for the job it befell."""

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


def read_state(reader: Reader, prefix: bytes, job: bytes) -> StateRecord | Corrupt | None:
    """The state of a job of the queue whose keys begin with `prefix`; None if there is none."""
    try:
        return state_or_damage(reader.get(STATE, prefix + job), job)
    except Corrupt as exc:
        return Corrupt(exc.detail, job.hex())


def read_states(reader: Reader, prefix: bytes, jobs: Sequence[bytes]) -> Sequence[StateRecord | Corrupt | None]:
    """The states of these jobs of one queue, whose keys begin with `prefix`; None where there is none."""
    if len(jobs) == 1:
        return (read_state(reader, prefix, jobs[0]),)
    return decode_states(get_each(reader, STATE, [prefix + job for job in jobs]), jobs)


def read_ready(reader: Reader, prefix: bytes, keys: Sequence[bytes]) -> Iterable[JobRows]:
    """The jobs that these ready rows of one queue point at. Their bodies have to be there."""
    if len(keys) == 1:
        job = keys[0][READY_JOB]
        state = read_state(reader, prefix, job)
        try:
            return ((keys[0], job, state, job_or_damage(reader.get(JOBS, prefix + job), job)),)
        except Corrupt as exc:
            return ((keys[0], job, state, Corrupt(exc.detail, job.hex())),)
    jobs = [key[READY_JOB] for key in keys]
    rows = [prefix + job for job in jobs]
    states = decode_states(get_each(reader, STATE, rows), jobs)
    return zip(keys, jobs, states, decode_jobs(get_each(reader, JOBS, rows), jobs), strict=True)
