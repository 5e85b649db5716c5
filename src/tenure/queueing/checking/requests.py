"""Every stored outcome of a request can be read, has all its parts, and has a row in `due` that ends it."""

from __future__ import annotations

from tenure.errors import Corrupt
from tenure.queueing.checking.survey import Fault, Survey
from tenure.storage import keyspace, records
from tenure.storage.keyspace import Due


def check(survey: Survey) -> None:
    key, parts = b"", 0  # the request of the last part 0, and the number of parts that follow it
    for rows in survey.rows(keyspace.REQUESTS):
        for at, value in rows:
            request, part = keyspace.split_request(at)
            try:
                if part == 0:
                    key, parts = request, 0
                    parts = _check_outcome(survey, request, value)
                elif request == key and part <= parts:
                    records.unseal("a part of a request's outcome", value)
                else:
                    _stray(survey, at, "a part that belongs to no outcome")
            except Corrupt as exc:
                survey.add(Fault("damaged", exc.detail, "forget_request", space=keyspace.REQUESTS, key=at))


def _check_outcome(survey: Survey, request: bytes, value: bytes) -> int:
    """Check part 0 of an outcome; returns how many parts follow. Raises Corrupt."""
    record = records.decode_request(value)
    wanted = [keyspace.request(request, part) for part in range(1, record.parts + 1)]
    if None in survey.reader.get_many(keyspace.REQUESTS, wanted):
        raise Corrupt("a part of a request's outcome is missing")
    due = keyspace.due(Due.REQUEST, record.until_ms, record.parts, request)
    if survey.reader.get(keyspace.DUE, due) is None:
        detail = f"the outcome of request {request.hex()} has no row in due"
        survey.add(Fault("due", detail, "put_row", space=keyspace.DUE, key=due))
    else:
        survey.expected[keyspace.DUE] += 1
    return record.parts


def fits(survey: Survey, due: keyspace.DueKey) -> bool:
    """Whether the due row belongs to an outcome that ends at that time."""
    try:
        raw = survey.reader.get(keyspace.REQUESTS, keyspace.request(due.reference, 0))
        record = None if raw is None else records.decode_request(raw)
    except Corrupt:
        return True  # the damaged outcome is a fault already
    return record is not None and (record.until_ms, record.parts) == (due.time_ms, due.queue)


def _stray(survey: Survey, at: bytes, why: str) -> None:
    detail = f"a stray row in requests: {why}"
    survey.add(Fault("orphan", detail, "delete_row", space=keyspace.REQUESTS, key=at))
