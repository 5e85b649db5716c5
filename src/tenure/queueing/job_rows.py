"""Reads and decodes the rows of one or many jobs. A damaged row gives an error in its place."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.errors import Corrupt
from tenure.storage.engine import Reader, get_each
from tenure.storage.keyspace import JOBS, STATE
from tenure.storage.records import (
    JobRecord,
    StateRecord,
    decode_jobs,
    decode_states,
    job_or_damage,
    state_or_damage,
)


def read_states(reader: Reader, prefix: bytes, jobs: Sequence[bytes]) -> Sequence[StateRecord | Corrupt | None]:
    """The states of jobs of one queue, whose keys begin with `prefix`; None for a job that does not exist."""
    if len(jobs) != 1:
        return decode_states(get_each(reader, STATE, [prefix + job for job in jobs]), jobs)
    (job,) = jobs
    try:
        return (state_or_damage(reader.get(STATE, prefix + job), job),)
    except Corrupt as exc:
        return (Corrupt(exc.detail, job.hex()),)


def read_bodies(reader: Reader, prefix: bytes, jobs: Sequence[bytes]) -> Sequence[JobRecord | Corrupt]:
    """The immutable rows of jobs of one queue; a missing row is damage."""
    if len(jobs) != 1:
        return decode_jobs(get_each(reader, JOBS, [prefix + job for job in jobs]), jobs)
    (job,) = jobs
    try:
        return (job_or_damage(reader.get(JOBS, prefix + job), job),)
    except Corrupt as exc:
        return (Corrupt(exc.detail, job.hex()),)
