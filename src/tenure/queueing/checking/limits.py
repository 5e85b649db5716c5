"""Every bucket belongs to a queue or tenant with a rate, and a queue's bucket is not overdrawn."""

from __future__ import annotations

from tenure.errors import Corrupt
from tenure.queueing.checking.survey import Fault, Survey
from tenure.storage import keyspace, records
from tenure.storage.keyspace import Limit


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


_TENANTS = {int(Limit.TENANT_RATE): "rate", int(Limit.TENANT_REQUESTS): "requests"}


def _has_rate(survey: Survey, meter: int, name: str) -> bool:
    for _, raw in survey.reader.scan(keyspace.META, *keyspace.quota_range(), 1_000_000):
        try:
            record = records.decode_struct(records.QuotaRecord, raw, "a quota")
        except Corrupt:
            return True  # the damaged quota may be this one
        if record.number == meter:
            return record.quota.rate_of(name) is not None
    return False


def _wrong(survey: Survey, key: bytes, value: bytes, now_ms: int) -> str:
    kind, number = keyspace.split_limit(key)
    queue = survey.queues.get(number)
    full_at = records.decode_bucket(value)
    if kind in _TENANTS:
        return "" if _has_rate(survey, number, _TENANTS[kind]) else f"a bucket of meter {number}, which has no rate"
    if kind != Limit.QUEUE_RATE:
        return f"a row of an unknown kind, {kind}"
    if keyspace.QUEUES in survey.unreadable or any(f.mend == "queue_row" for f in survey.faults):
        return ""
    if queue is None or queue.rate is None:
        return f"a bucket of queue number {number}, which has no rate"
    if queue.rate.free(full_at, now_ms) < 0:
        return f"more was taken from the bucket of queue {queue.name} than it holds"
    return ""
