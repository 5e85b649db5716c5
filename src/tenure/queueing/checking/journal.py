"""The sixth invariant: the journal, as far back as it is kept, gives the same states as the tables.

It is read once, forward. The event that a job's state names as its last must agree with the state. A job that is not in
the tables must have a later event that ends it. Together with a count of the states whose last event is in the journal,
this is equal to a full replay, without holding the jobs in memory.
"""

from __future__ import annotations

from tenure.errors import Corrupt
from tenure.model.ids import NO_ID
from tenure.model.lifecycle import Change, State
from tenure.queueing.checking.survey import Fault, Survey
from tenure.queueing.journal import bounds
from tenure.storage import keyspace, records
from tenure.storage.engine import get_each
from tenure.storage.records import EventRecord, StateRecord

_GONE = int(State.GONE)
#: Events whose jobs' states are read together.
_AT_ONCE = 1000


def check(survey: Survey) -> None:
    replay = _Replay(survey)
    oldest, _ = bounds(survey.reader)
    commit, number, time_ms = oldest - 1, 0, 0
    for rows in survey.rows(keyspace.JOURNAL, 200):
        events: list[tuple[int, EventRecord]] = []
        for key, value in rows:
            at = keyspace.split_commit(key)
            if at != commit + 1:
                survey.add(Fault("journal", f"rows {commit + 1} to {at - 1} are missing", key=key))
                replay.broken, number = True, 0
            commit = at
            try:
                row = records.decode_journal(value, at)
            except Corrupt as exc:
                survey.add(Fault("damaged", exc.detail, key=key, space=keyspace.JOURNAL))
                replay.broken, number = True, 0
                continue
            if number and row.header.first_number != number:
                survey.add(Fault("journal", f"row {at} starts at event {row.header.first_number} instead of {number}"))
            if row.header.time_ms < time_ms:
                survey.add(Fault("journal", f"row {at} is earlier than the one before it"))
            number = row.header.first_number + row.header.events
            time_ms = row.header.time_ms
            survey.events += row.header.events
            first = records.event_ref(at, 0)
            events += [(first + index, event) for index, event in enumerate(row.events) if event.job != NO_ID]
            if len(events) >= _AT_ONCE:
                replay.take(events)
                events = []
        replay.take(events)
        survey.say()
    replay.finish(oldest)


class _Replay:
    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._reader = survey.reader
        self._ends_seen = 0
        #: Jobs that are not in the tables, and whose final event has not been read yet.
        self._unended: dict[tuple[int, bytes], int] = {}
        #: A row is missing or damaged: the counts are not conclusive.
        self.broken = False

    def take(self, events: list[tuple[int, EventRecord]]) -> None:
        """Read the next events of jobs, each with its reference."""
        keys = [keyspace.of_queue(event.queue, event.job) for _, event in events]
        rows = get_each(self._reader, keyspace.STATE, keys)
        states = records.decode_states(rows, [event.job for _, event in events])
        for (ref, event), state in zip(events, states, strict=True):
            if state is None:
                if event.state == _GONE:
                    self._unended.pop((event.queue, event.job), None)
                else:
                    self._unended[event.queue, event.job] = ref
            elif not isinstance(state, Corrupt) and state.last_event == ref:
                self._ends_seen += 1
                wrong = _differs(event, state)
                if wrong:
                    detail = f"its last event says {wrong}"
                    self._survey.add(Fault("journal", detail, "", event.queue, event.job))

    def finish(self, oldest: int) -> None:
        if self.broken or self._survey.unreadable & {keyspace.STATE, keyspace.JOURNAL}:
            return
        for (queue, job), ref in self._unended.items():
            if (queue, job) not in self._survey.unknown:
                commit, index = records.split_ref(ref)
                detail = f"its last event is number {index} of row {commit}, and it is not in the tables"
                self._survey.add(Fault("journal", detail, "gone", queue, job, number=ref))
        recent = 0
        first = records.event_ref(oldest, 0)
        for rows in Survey(self._reader).rows(keyspace.STATE):
            for key, value in rows:
                try:
                    recent += records.decode_state(value, key[4:]).last_event >= first
                except Corrupt:
                    continue
        if recent != self._ends_seen:
            detail = f"{recent} jobs name a last event that is still kept, and {self._ends_seen} were met"
            self._survey.add(Fault("journal", detail))


def _differs(event: EventRecord, state: StateRecord) -> str:
    """How a job's last event and its state differ; empty if they agree."""
    pairs = [
        ("state", event.state, state.state),
        ("priority", event.priority, state.priority),
        ("token", event.token, state.token),
        ("attempt", event.attempt, state.attempt),
        ("max_attempts", event.max_attempts, state.max_attempts),
        ("reason", event.reason, state.reason),
    ]
    if state.state == State.WAITING:
        pairs.append(("visible_at", event.at_ms, state.visible_at_ms))
    if event.change in (Change.CLAIMED, Change.DONE):
        pairs.append(("lease", event.lease, state.lease))  # type: ignore[arg-type]
    return ", ".join(f"{name} {said!r}, and the tables say {found!r}" for name, said, found in pairs if said != found)
