"""Every bucket belongs to a queue that has a rate, and no more was taken from it than it holds."""

from __future__ import annotations

from leasehold.errors import Corrupt
from leasehold.queueing.checking.survey import Fault, Survey
from leasehold.storage import keyspace, records
from leasehold.storage.keyspace import Limit


def check(survey: Survey, now_ms: int) -> None:
    for rows in survey.rows(keyspace.LIMITS):
        for key, value in rows:
            try:
                wrong = _wrong(survey, key, value, now_ms)
            except Corrupt as exc:
                survey.add(Fault("damaged", exc.detail, "delete_row", space=keyspace.LIMITS, key=key))
            else:
                if wrong:
                    survey.add(Fault("limit", wrong, "delete_row", space=keyspace.LIMITS, key=key))


def _wrong(survey: Survey, key: bytes, value: bytes, now_ms: int) -> str:
    kind, number = keyspace.split_limit(key)
    queue = survey.queues.get(number)
    if kind != Limit.QUEUE_RATE:
        return f"a row of an unknown kind, {kind}"
    full_at = records.decode_bucket(value)
    if keyspace.QUEUES in survey.unreadable or any(f.mend == "queue_row" for f in survey.faults):
        return ""
    if queue is None or queue.rate is None:
        return f"a bucket of queue number {number}, which has no rate"
    if queue.rate.free(full_at, now_ms) < 0:
        return f"more was taken from the bucket of queue {queue.name} than it holds"
    return ""
