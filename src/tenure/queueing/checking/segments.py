"""Segments: both records exist and can be read. `jobs` and `strays` check their jobs like all others."""

from __future__ import annotations

from tenure.errors import Corrupt
from tenure.queueing.checking.survey import Fault, Survey
from tenure.storage import keyspace, records
from tenure.storage.engine import get_each


def check(survey: Survey) -> None:
    reader = survey.reader
    if not reader.segment_spaces:
        return
    for rows in survey.rows(keyspace.SEGMENTS, 100):
        keys = [key for key, _ in rows]
        states = get_each(reader, keyspace.SEGMENT_STATE, keys)
        for (key, value), state in zip(rows, states, strict=True):
            if state is None:
                _broken(survey, key, value, "orphan", "jobs that were enqueued together have no state")
    for space in reader.segment_spaces[1:]:
        for _ in survey.rows(space):
            pass  # read for the engine's count of rows, and to find unreadable rows
    begin = b""
    while found := reader.segments(begin, 100):
        for key, segment in found:
            if isinstance(segment, Corrupt):
                _broken(survey, key, get_each(reader, keyspace.SEGMENTS, [key])[0], "damaged", segment.detail)
        begin = found[-1][0] + b"\0"


def _broken(survey: Survey, key: bytes, value: bytes | Corrupt | None, rule: str, detail: str) -> None:
    queue, job = keyspace.split_of_queue(key)
    survey.add(Fault(rule, detail, "break_up", queue, job, keyspace.SEGMENTS, key))
    try:
        jobs = records.Segment(value).jobs if isinstance(value, bytes) else []
    except Corrupt:
        jobs = []
    survey.unknown.update((queue, each) for each in (job, *jobs))
