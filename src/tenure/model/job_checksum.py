"""A checksum over jobs in any order: two stores hold the same jobs if count and sum are equal.

It covers id, payload, priority, headers, group, attempt, token and state, and the jobs' steps, signals and parents. A
leased job counts as waiting, since leases do not move to another store. `tenure.spark.pipelines.migration` computes the
same sums in Spark: both hash the strings that the functions below build.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from tenure.model.job import Job
from tenure.model.step import Step

#: Sixty bits of each digest are summed: the sum of a billion jobs still fits Spark's decimals.
HEX_DIGITS = 15


class Checksum(NamedTuple):
    jobs: int = 0
    total: int = 0

    def with_job(self, job: Job) -> Checksum:
        return Checksum(self.jobs + 1, self.total + job_sum(job))

    def with_part(self, part: int) -> Checksum:
        """Add the sum of a step or a parent, without counting a job."""
        return Checksum(self.jobs, self.total + part)

    def __str__(self) -> str:
        return f"{self.jobs} jobs, {self.total:x}"


def job_sum(job: Job) -> int:
    state = job.state if job.state in ("blocked", "done", "dead") else "waiting"
    headers = "".join([f"{len(name)}:{name}{len(value)}:{value}" for name, value in sorted(job.headers.items())])
    head = f"{job.tenant}/{job.queue}|{job.id}|{state}|{job.priority}|{job.attempt}|{job.token}|{headers}|{job.group or ''}|"
    return int(sha256(head.encode() + job.payload).hexdigest()[:HEX_DIGITS], 16)


def step_sum(job: Job, number: int, step: Step) -> int:
    """The sum of a job's step or signal; `number` is its position, from 0."""
    head = f"{job.tenant}/{job.queue}|{job.id}|{number}|{step.kind}|{len(step.name)}:{step.name}|"
    return int(sha256(head.encode() + step.value).hexdigest()[:HEX_DIGITS], 16)


def parent_sum(job: Job, parent: str) -> int:
    """The sum of a job and a parent that is still stored."""
    return int(sha256(f"{job.tenant}/{job.queue}|{job.id}|{parent}".encode()).hexdigest()[:HEX_DIGITS], 16)
