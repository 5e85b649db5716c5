"""Is everything as it must be? The invariants, verified over one moment of the store in bounded memory.

1. A job is in exactly one state, and in exactly the index row of that state.
2. Every index row points at a job in that state; every leased job names a lease that holds it; open counts are right.
3. A lease with no open job has no row left, and nothing due.
4. Counters equal a recount.
5. Conservation, per queue: enqueued = waiting + leased + done + dead + removed.
6. The journal, as far back as it is kept, leads to the same states as the tables.

Whether an index holds more than it should is told by counting: every row that must be there was looked up, so a space
with no more rows than that has no stray one. Only if the counts differ are its rows looked at one by one.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable

from leasehold.errors import Corrupt
from leasehold.model.lifecycle import State
from leasehold.model.report import Finding, Report
from leasehold.queueing.check_journal import check_journal
from leasehold.queueing.core import Core
from leasehold.queueing.faults import Fault, Faults
from leasehold.queueing.registry import Registered, registered
from leasehold.queueing.removal import due_row, index_row
from leasehold.queueing.repair import repair as mend
from leasehold.storage import keyspace, records
from leasehold.storage.engine import Snapshot, Space, get_each
from leasehold.storage.keyspace import Counter, Due
from leasehold.storage.records import StateRecord

Progress = Callable[[int, int | None], None]
_LEASED = int(State.LEASED)


def check(core: Core, repair: bool, progress: Progress | None = None) -> Report:
    with core.engine.snapshot() as reader:
        checker = Checker(reader, progress)
        checker.run()
    repairs = mend(core, checker.faults.found) if repair and checker.faults.found else {}
    names = {queue.number: queue.name for queue in checker.queues.values()}
    findings = []
    for index, fault in enumerate(checker.faults.found):
        name = names.get(fault.queue)
        findings.append(
            Finding(
                rule=fault.rule,
                detail=fault.detail,
                tenant=name.tenant if name else None,
                queue=name.queue if name else None,
                job_id=fault.job.hex() or None,
                repair=repairs.get(index),
            )
        )
    return Report(
        findings=findings,
        jobs=checker.jobs,
        events=checker.events,
        leases=checker.leases,
        queues=len(checker.queues),
        truncated=checker.faults.truncated,
    )


class Checker:
    def __init__(self, reader: Snapshot, progress: Progress | None) -> None:
        self.reader = reader
        self.faults = Faults()
        self.queues: dict[int, Registered] = {}
        self.jobs = self.events = self.leases = 0
        self._progress = progress
        self._recount: Tally[tuple[int, int]] = Tally()
        #: Rows each space must have, all of which were seen to be there (or are faults already).
        self._expected: Tally[Space] = Tally()
        self._held: Tally[tuple[int, bytes]] = Tally()
        self._recent: Tally[int] = Tally()

    def run(self) -> None:
        self._check_queues()
        self._check_states()
        self._check_leases()
        self._check_strays()
        self._check_counters()
        self._check_small_spaces()
        self.events = check_journal(self.reader, self.faults, self._say)
        self._check_entries()

    def _say(self, events: int = 0) -> None:
        if self._progress is not None:
            self._progress(self.jobs + events, None)

    def _check_entries(self) -> None:
        """An engine that counts its rows apart from them may have lost some without a trace in any one."""
        for space, name in enumerate(keyspace.NAMES):
            entries = self.reader.entries(space)
            if entries is None or space in self.faults.unreadable:
                continue
            read = self.faults.read[space]
            if entries != read:
                detail = (
                    f"{name} has {entries} rows by the engine's own count, and {read} can be read. Restore a snapshot"
                )
                self.faults.add(Fault("damaged", detail, space=space))

    # ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_queues(self) -> None:
        for rows in self.faults.rows(self.reader, keyspace.QUEUES):
            for key, value in rows:
                try:
                    queue = registered(value)
                except Corrupt as exc:
                    self.faults.add(Fault("damaged", f"the row of queue {_queue_text(key)}: {exc.detail}",
                                          "queue_row", space=keyspace.QUEUES, key=key))  # fmt: skip
                    continue
                self.queues[queue.number] = queue

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_states(self) -> None:
        for rows in self.faults.rows(self.reader, keyspace.STATE):
            states = []
            for key, value in rows:
                queue, job = keyspace.split_of_queue(key)
                try:
                    states.append((queue, job, records.decode_state(value, job)))
                except Corrupt as exc:
                    self._expected[keyspace.STATE] += 1
                    self._expected[keyspace.JOBS] += 1
                    self.faults.add(Fault("damaged", exc.detail, "rebuild_state", queue, job, keyspace.STATE, key))
            self.jobs += len(rows)
            self._check_bodies(states)
            self._check_notes(states)
            self._check_indexes(states)
            for queue, job, state in states:
                self._expected[keyspace.STATE] += 1
                self._recount[queue, state.state] += 1
                if queue not in self.queues and keyspace.QUEUES not in self.faults.unreadable:
                    self.faults.add(Fault("one_state", f"its queue number {queue} is not known", "", queue, job))
                if state.state == _LEASED:
                    self._held[queue, state.lease] += 1
            self._say()

    def _check_bodies(self, states: list[tuple[int, bytes, StateRecord]]) -> None:
        keys = [keyspace.of_queue(queue, job) for queue, job, _ in states]
        for (queue, job, state), key, value in zip(
            states, keys, get_each(self.reader, keyspace.JOBS, keys), strict=True
        ):
            try:
                if value is None:
                    raise Corrupt("its payload is missing")
                if isinstance(value, Corrupt):
                    raise value
                record = records.decode_job(value, job)
                if bool(record.parts) != bool(state.flags & records.HAS_PARTS):
                    raise Corrupt("its payload's parts do not fit its state")
                if record.parts:
                    parts = [keyspace.payload_part(queue, job, part) for part in range(1, record.parts + 1)]
                    values = self.reader.get_many(keyspace.PAYLOAD, parts)
                    records.join_parts(record.payload, values, record.payload_bytes, job)
                    self._expected[keyspace.PAYLOAD] += record.parts
                self._expected[keyspace.JOBS] += 1
            except Corrupt as exc:
                self._expected[keyspace.JOBS] += value is not None
                self.faults.add(Fault("damaged", exc.detail, "remove_job", queue, job, keyspace.JOBS, key))

    def _check_notes(self, states: list[tuple[int, bytes, StateRecord]]) -> None:
        noted = [(queue, job, state) for queue, job, state in states if state.flags & records.HAS_NOTES]
        keys = [keyspace.of_queue(queue, job) for queue, job, _ in noted]
        for (queue, job, state), value in zip(noted, get_each(self.reader, keyspace.NOTES, keys), strict=True):
            try:
                if value is None:
                    raise Corrupt("its notes are missing")
                if isinstance(value, Corrupt):
                    raise value
                notes = records.decode_struct(records.Notes, value, "its notes", job)
                self._expected[keyspace.NOTES] += 1
                if state.flags & records.HAS_RESULT_PARTS:
                    self._expected[keyspace.PAYLOAD] += -(-notes.result_bytes // records.PART_BYTES) - 1
            except Corrupt as exc:
                self._expected[keyspace.NOTES] += value is not None
                self.faults.add(Fault("damaged", exc.detail, "drop_notes", queue, job, keyspace.NOTES))

    def _check_indexes(self, states: list[tuple[int, bytes, StateRecord]]) -> None:
        wanted: dict[Space, list[tuple[int, bytes, bytes]]] = {}
        for queue, job, state in states:
            index = index_row(queue, job, state)
            if index is not None:
                wanted.setdefault(index[0], []).append((queue, job, index[1]))
            due = due_row(queue, job, state)
            if due is not None:
                wanted.setdefault(keyspace.DUE, []).append((queue, job, due))
        for space, rows in wanted.items():
            values = get_each(self.reader, space, [key for _, _, key in rows])
            for (queue, job, key), value in zip(rows, values, strict=True):
                if value is None:
                    rule = "index" if space != keyspace.DUE else "due"
                    detail = f"it has no row in {keyspace.NAMES[space]}"
                    self.faults.add(Fault(rule, detail, "put_row", queue, job, space, key))
                elif isinstance(value, Corrupt):
                    self.faults.add(Fault("damaged", value.detail, "put_row", queue, job, space, key))
                else:
                    self._expected[space] += 1

    # ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_leases(self) -> None:
        known: set[tuple[int, bytes]] = set()
        for rows in self.faults.rows(self.reader, keyspace.LEASES):
            self.leases += len(rows)
            for key, value in rows:
                queue, lease = keyspace.split_of_queue(key)
                known.add((queue, lease))
                self._check_lease(queue, lease, key, value)
        if keyspace.STATE not in self.faults.unreadable:
            for (queue, lease), count in self._held.items():
                if (queue, lease) not in known:
                    detail = f"{count} leased jobs name lease {lease.hex()}, which is not there"
                    self.faults.add(Fault("lease", detail, "give_back", queue, key=lease, space=keyspace.LEASES))

    def _check_lease(self, queue: int, lease: bytes, key: bytes, value: bytes) -> None:
        held = self._held[queue, lease]
        given = 0
        try:
            record = records.decode_lease(value, lease)
            jobs = self.reader.get(keyspace.LEASE_JOBS, key)
            if jobs is None:
                raise Corrupt(f"the jobs of lease {lease.hex()} are missing")
            rows = records.decode_lease_jobs(jobs, lease)
            states = get_each(self.reader, keyspace.STATE, [keyspace.of_queue(queue, job) for job, _ in rows])
            for (job, token), raw in zip(rows, states, strict=True):
                if isinstance(raw, bytes):
                    given += _names(raw, job, lease, token)
        except Corrupt as exc:
            self.faults.add(Fault("damaged", exc.detail, "give_back", queue, key=lease, space=keyspace.LEASES))
            return
        self._expected[keyspace.LEASE_JOBS] += 1 + record.lost
        text = f"lease {lease.hex()}"
        if given != held:
            detail = f"{text} was given {given} of the {held} jobs that name it"
            self.faults.add(Fault("lease", detail, "give_back", queue, key=lease, space=keyspace.LEASES))
        elif record.open != held:
            rule = "empty_lease" if not held else "lease"
            detail = f"{text} says it holds {record.open} jobs, and holds {held}"
            self.faults.add(Fault(rule, detail, "give_back", queue, key=lease, space=keyspace.LEASES))
        due = keyspace.due(Due.LEASE, record.expires_at_ms, queue, lease)
        if self.reader.get(keyspace.DUE, due) is None:
            self.faults.add(Fault("due", f"{text} has no row in due", "put_row", queue, space=keyspace.DUE, key=due))
        else:
            self._expected[keyspace.DUE] += 1

    # ── rows nothing points at ───────────────────────────────────────────────────────────────────────────────────────

    def _check_strays(self) -> None:
        for space in (
            keyspace.JOBS, keyspace.READY, keyspace.DONE, keyspace.DEAD, keyspace.NOTES, keyspace.PAYLOAD,
            keyspace.LEASE_JOBS, keyspace.DUE,
        ):  # fmt: skip
            count = 0
            for rows in self.faults.rows(self.reader, space, 5000):
                count += sum([_judged(space, key) for key, _ in rows])
            if count != self._expected[space]:
                for rows in Faults().rows(self.reader, space):
                    for key, value in rows:
                        self._check_stray(space, key, value)

    def _check_stray(self, space: Space, key: bytes, value: bytes) -> None:
        if not _judged(space, key):
            return
        if space in (keyspace.JOBS, keyspace.NOTES, keyspace.PAYLOAD):
            queue, job = keyspace.split_of_queue(key[:20])
        elif space == keyspace.LEASE_JOBS:
            queue, lease = keyspace.split_of_queue(key[:20])
            if self.reader.get(keyspace.LEASES, keyspace.of_queue(queue, lease)) is None:
                self._stray(space, key, queue, b"", f"lease {lease.hex()} is not there")
            return
        elif space == keyspace.DUE:
            self._check_stray_due(key)
            return
        else:
            queue, job = int.from_bytes(key[:4], "big"), key[-16:]
        state = self._state(queue, job)
        if space in (keyspace.READY, keyspace.DONE, keyspace.DEAD):
            if state is None or index_row(queue, job, state) != (space, key):
                self._stray(space, key, queue, job, "the job is not in that state")
        elif state is None:
            mend = "rebuild_state" if space == keyspace.JOBS else "delete_row"
            detail = f"it has a row in {keyspace.NAMES[space]}, and no state"
            self.faults.add(Fault("orphan", detail, mend, queue, job, space, key))
        elif space == keyspace.NOTES and not state.flags & records.HAS_NOTES:
            self._stray(space, key, queue, job, "its state does not know of it")

    def _check_stray_due(self, key: bytes) -> None:
        due = keyspace.split_due(key)
        if due.kind == Due.LEASE:
            raw = self.reader.get(keyspace.LEASES, keyspace.of_queue(due.queue, due.reference))
            try:
                fits = raw is not None and records.decode_lease(raw, due.reference).expires_at_ms == due.time_ms
            except Corrupt:
                fits = True  # the lease's own damage is noted already
            if not fits:
                self._stray(keyspace.DUE, key, due.queue, b"", f"lease {due.reference.hex()} does not end then")
            return
        state = self._state(due.queue, due.reference)
        if state is None or due_row(due.queue, due.reference, state) != key:
            self._stray(keyspace.DUE, key, due.queue, due.reference, "the job has nothing due then")

    def _stray(self, space: Space, key: bytes, queue: int, job: bytes, why: str) -> None:
        rule = "orphan" if space not in (keyspace.READY, keyspace.DONE, keyspace.DEAD) else "index"
        detail = f"a stray row in {keyspace.NAMES[space]}: {why}"
        self.faults.add(Fault(rule, detail, "delete_row", queue, job, space, key))

    def _state(self, queue: int, job: bytes) -> StateRecord | None:
        try:
            raw = self.reader.get(keyspace.STATE, keyspace.of_queue(queue, job))
            return None if raw is None else records.decode_state(raw, job)
        except Corrupt:
            return None

    # ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_counters(self) -> None:
        if keyspace.STATE in self.faults.unreadable:
            return
        numbers = {queue for queue, _ in self._recount} | set(self.queues)
        for queue in sorted(numbers):
            counts: dict[Counter, int] = {}
            for name in Counter:
                key = keyspace.counter(queue, name)
                try:
                    counts[name] = records.decode_count(self.reader.get(keyspace.COUNTERS, key))
                except Corrupt as exc:
                    number = self._recount[queue, _COUNTS[name]] if name in _COUNTS else -1
                    detail = f"counter {name.name.lower()}: {exc.detail}"
                    self.faults.add(
                        Fault("counters", detail, "set_counter", queue, space=keyspace.COUNTERS, key=key, number=number)
                    )
            for name, state in _COUNTS.items():
                recount = self._recount[queue, state]
                if name in counts and counts[name] != recount:
                    detail = f"counter {name.name.lower()} says {counts[name]}, and {recount} are there"
                    self.faults.add(Fault("counters", detail, "add_counter", queue, space=keyspace.COUNTERS,
                                          key=keyspace.counter(queue, name), number=recount - counts[name]))  # fmt: skip
            if len(counts) == len(Counter):
                alive = sum(self._recount[queue, state] for state in _COUNTS.values())
                total = alive + counts[Counter.REMOVED]
                if counts[Counter.ENQUEUED] != total:
                    detail = f"{counts[Counter.ENQUEUED]} were enqueued, and {total} are there or removed"
                    self.faults.add(Fault("conservation", detail, "add_counter", queue, space=keyspace.COUNTERS,
                                          key=keyspace.counter(queue, Counter.REMOVED),
                                          number=counts[Counter.ENQUEUED] - total))  # fmt: skip

    def _check_small_spaces(self) -> None:
        decoders: dict[Space, tuple[Callable[[bytes], object], str]] = {
            keyspace.DEDUP: (records.decode_dedup, "delete_row"),
            keyspace.CLAIMS: (records.decode_claim, "delete_row"),
            keyspace.META: (lambda value: records.unseal("a setting of the store", value), ""),
            keyspace.COUNTERS: (records.decode_count, ""),
        }
        for space, (decode, mender) in decoders.items():
            for rows in self.faults.rows(self.reader, space):
                for key, value in rows:
                    self._try(space, key, value, decode, mender)

    def _try(self, space: Space, key: bytes, value: bytes, decode: Callable[[bytes], object], mend: str) -> None:
        try:
            decode(value)
        except Corrupt as exc:
            if space != keyspace.COUNTERS or int.from_bytes(key[:4], "big") not in self.queues:
                self.faults.add(Fault("damaged", exc.detail, mend, space=space, key=key))


#: The counter that must equal how many jobs are in a state.
_COUNTS = {
    Counter.WAITING: int(State.WAITING),
    Counter.LEASED: int(State.LEASED),
    Counter.DONE: int(State.DONE),
    Counter.DEAD: int(State.DEAD),
}


def _judged(space: Space, key: bytes) -> bool:
    """Due rows of keys and claims may be left over from a key that was taken anew: the sweeper clears them."""
    return space != keyspace.DUE or key[0] in (Due.LEASE, Due.TTL, Due.RETENTION)


def _names(raw: bytes, job: bytes, lease: bytes, token: int) -> bool:
    try:
        state = records.decode_state(raw, job)
    except Corrupt:
        return False
    return state.state == _LEASED and state.lease == lease and state.token == token


def _queue_text(key: bytes) -> str:
    try:
        size = key[0]
        return f"{key[1 : 1 + size].decode()}/{key[2 + size :].decode()}"
    except (IndexError, UnicodeDecodeError):
        return key.hex()
