"""Enqueues the plain jobs of several requests into one queue: one transaction, an outcome for each request.

A server often has several such requests at the same time. The plan of a plain job reads no row that another one writes,
so they are one batch (`enqueue.planned`), and each request's outcome is stored with it. If the batch is refused (the
queue is full, a quota is used up) or one of the requests is a repeat, nothing is written, and the caller runs each
request alone: none is refused because of another.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenure.model.failure import ANSWERS
from tenure.model.job import Enqueued
from tenure.model.names import QueueName
from tenure.model.request import PlainRequests, RequestedJobs, all_plain, payloads_of
from tenure.queueing.core import Core
from tenure.queueing.enqueue import planned
from tenure.queueing.outcomes import ENQUEUED, enqueue_digest, keep_outcome
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace


class _SeenBefore(Exception):
    """One of the requests is a repeat. Nothing was written."""


def enqueue_merged(core: Core, name: QueueName, requests: Sequence[RequestedJobs]) -> list[list[Enqueued]] | None:
    """The enqueued jobs of each request. None: they cannot share a transaction, and nothing was written."""
    ids = [keyspace.digest(request.id) for request in requests]
    if len(set(ids)) < len(ids) or core.traits.cuts_batches or not all(all_plain(one.jobs) for one in requests):
        return None
    payloads = [payload for request in requests for payload in payloads_of(request.jobs)]
    arguments = [enqueue_digest(name, request.jobs) for request in requests]

    def run(unit: UnitOfWork) -> list[list[Enqueued]]:
        if any(unit.tx.get_many(keyspace.REQUESTS, [keyspace.request(key, 0) for key in ids])):
            raise _SeenBefore
        enqueued = plan(unit)
        answers, begin = [], 0
        for key, argument, request in zip(ids, arguments, requests, strict=True):
            answers.append(enqueued[begin : begin + len(request.jobs)])
            begin += len(request.jobs)
            keep_outcome(unit, key, argument, False, ENQUEUED.encode(answers[-1]))
        return answers

    try:
        now, plan = planned(core, name, PlainRequests(payloads))
        return core.write(run, now)
    except (_SeenBefore, *ANSWERS):
        return None
