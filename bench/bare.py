"""The bare layout: the rows of a life, written, read and deleted through rocksdict with the least possible Python.

It is the engine's own limit as reached from Python, and the baseline for a life of Tenure. It does

    enqueue   put jobs, state, ready for each job; journal, 2 counters
    claim     scan ready; read state and jobs; put state, delete ready for each job; lease, lease_jobs, due, journal, 2 counters
    ack       read state and the lease; delete jobs, state for each job; delete lease, lease_jobs, due; journal, 2 counters

with the same keys, values of the same bytes and a CRC in each, the same objects as answers, the same RocksDB options
and the same syncs. It has no API, checks no argument, state or CRC, keeps no time, lock or marks, wakes no waiters,
records no metrics, and knows one queue, one priority and one client. `tests/bench` compares its rows and the number of
its writes with Tenure's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import Struct
from time import monotonic
from typing import Any

from rocksdict import ReadOptions, WriteBatch

from bench.lives import Client
from tenure.model.job import Enqueued
from tenure.model.lease import Delivery, Settled
from tenure.model.lifecycle import Change, State
from tenure.model.names import QueueName
from tenure.storage import keyspace
from tenure.storage.checksum import crc32
from tenure.storage.engines.rocksdb.opening import open_db
from tenure.storage.keyspace import Counter, Due

_NUMBER = 1
_PREFIX = keyspace.queue_prefix(_NUMBER)
_TIER = keyspace.ready_prefix(_NUMBER, 0)
_NO_ID = bytes(16)
_MAX_ATTEMPTS = 5
_LEASE_MS = 30_000
_CACHE = 64 * 1024 * 1024
_SYNC_INTERVAL = 0.1
#: A calendar that is set back during a run would hide recently enqueued jobs.
_CALENDAR = time.time() - monotonic()

_id = Struct(">QQ").pack
_u64 = Struct(">Q").pack
_job = Struct(">BQHHII").pack
_JOB_BYTES = Struct(">BQHHII").size
_state = Struct(">BBBBBIIIQQQQQ16s").pack
_unstate = Struct(">BBBBBIIIQQQQQ16s").unpack_from
_lease = Struct(">BQQIII16s64s").pack
_lease_job = Struct(">16sQ").pack
_journal = Struct(">BBHQQ").pack
_event_head = Struct(">BBBBI").pack
_event_middle = Struct(">QIIQQ").pack

_WAITING, _LEASED, _GONE = int(State.WAITING), int(State.LEASED), int(State.GONE)
_ENQUEUED_HEAD = _event_head(Change.ENQUEUED, _WAITING, 0, 0, _NUMBER)
_CLAIMED_HEAD = _event_head(Change.CLAIMED, _LEASED, 0, 0, _NUMBER)
_DONE_HEAD = _event_head(Change.DONE, _GONE, 0, 0, _NUMBER)
_NO_TEXT = bytes(8)
_COUNTER = {name: keyspace.counter(_NUMBER, name) for name in Counter}


class Bare:
    """An open bare layout, with its one client."""

    name = "bare layout"
    note = "the same rows through rocksdict, no API, no checks"

    def __init__(self, path: Path, durability: str, made: Callable[[Bare], BareClient] | None = None) -> None:
        self.db = open_db(path, _CACHE, "high_throughput")
        self.tables = [self.db.get_column_family(name) for name in keyspace.NAMES]
        self.handles = [self.db.get_column_family_handle(name) for name in keyspace.NAMES]
        self.disk = durability == "disk"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sync, daemon=True)
        if not self.disk:
            self._thread.start()
        self.client_ = (made or BareClient)(self)

    def _sync(self) -> None:
        while not self._stop.wait(_SYNC_INTERVAL):
            self.db.flush_wal(True)

    def client(self) -> Client:
        return self.client_

    def tidy(self) -> None:
        pass

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self.client_.forget()
        self.tables.clear()
        self.handles.clear()
        self.db.close()


class BareClient:
    def __init__(self, bare: Bare) -> None:
        tables, handles = bare.tables, bare.handles
        self._db = bare.db
        self._disk = bare.disk
        self._get_job: Any = tables[keyspace.JOBS].get
        self._get_state: Any = tables[keyspace.STATE].get
        self._get_lease: Any = tables[keyspace.LEASES].get
        self._get_lease_jobs: Any = tables[keyspace.LEASE_JOBS].get
        self._ready = tables[keyspace.READY]
        self._jobs_cf, self._state_cf, self._ready_cf = (
            handles[keyspace.JOBS], handles[keyspace.STATE], handles[keyspace.READY],
        )  # fmt: skip
        self._leases_cf, self._lease_jobs_cf, self._due_cf = (
            handles[keyspace.LEASES], handles[keyspace.LEASE_JOBS], handles[keyspace.DUE],
        )  # fmt: skip
        self._counters_cf, self._journal_cf = handles[keyspace.COUNTERS], handles[keyspace.JOURNAL]
        self._name = QueueName("default", "bench")
        self._head = _TIER
        self._commit = 0
        self._event = 1
        self._low = 1 << 63
        self.waiting = self.leased = self.enqueued = self.removed = 0

    # ── in batches ───────────────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, payloads: Sequence[bytes]) -> object:
        if len(payloads) == 1:
            return self._enqueue_one(payloads[0])
        now, count = int((monotonic() + _CALENDAR) * 1000), len(payloads)
        high, low = now << 16 | 0x7000, self._low
        self._low = low + count
        ids = [_id(high, at) for at in range(low, low + count)]
        self._commit += 1
        ref = self._commit << 10
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        jobs, states, ready = self._jobs_cf, self._state_cf, self._ready_cf
        at_now = _TIER + _u64(now)
        for job, payload in zip(ids, payloads, strict=True):
            key = _PREFIX + job
            body = _job(1, now, 0, 0, 0, len(payload)) + payload
            put(key, body + crc32(body).to_bytes(4, "big"), jobs)
            state = _state(1, _WAITING, 0, 0, 0, 0, _MAX_ATTEMPTS, 0, 0, now, 0, 0, ref, _NO_ID)
            put(key, state + crc32(state).to_bytes(4, "big"), states)
            put(at_now + job, b"", ready)
            ref += 1
        tail = _NO_ID + _event_middle(0, 0, _MAX_ATTEMPTS, now, 0) + _NO_TEXT
        events = _ENQUEUED_HEAD + (tail + _ENQUEUED_HEAD).join(ids) + tail
        self.waiting += count
        self.enqueued += count
        self._finish(batch, now, count, events, Counter.WAITING, self.waiting, Counter.ENQUEUED, self.enqueued)
        return [Enqueued(job.hex()) for job in ids]

    def claim(self, limit: int) -> Sequence[Any]:
        if limit == 1:
            return self._claim_one()
        now = int((monotonic() + _CALENDAR) * 1000)
        iterator = self._ready.iter(_until(_TIER + _u64(now + 1)))
        valid, key_, step = iterator.valid, iterator.key, iterator.next
        iterator.seek(self._head)
        keys: list[bytes] = []
        while len(keys) < limit and valid():
            keys.append(key_())
            step()
        if not keys:
            return []
        self._head = keys[-1]
        ids = [key[13:] for key in keys]
        rows = [_PREFIX + job for job in ids]
        count = len(keys)
        states = self._get_state(rows)
        bodies = self._get_job(rows)
        lease = _id(now << 16 | 0x7000, self._low)
        self._low += 1
        expires = now + _LEASE_MS
        self._commit += 1
        ref = self._commit << 10
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        ready_cf, state_cf, name = self._ready_cf, self._state_cf, self._name
        events, given, deliveries = [], [], []
        for key, row, job, raw, body in zip(keys, rows, ids, states, bodies, strict=True):
            _, _, priority, _, _, attempt, max_attempts, _, token, visible, _, _, last, _ = _unstate(raw)
            attempt += 1
            token += 1
            state = _state(1, _LEASED, priority, 0, 0, attempt, max_attempts, 0, token, visible, 0, 0, ref, lease)
            put(row, state + crc32(state).to_bytes(4, "big"), state_cf)
            delete(key, ready_cf)
            events.append(
                _CLAIMED_HEAD + job + lease + _event_middle(token, attempt, max_attempts, expires, last) + _NO_TEXT
            )
            given.append(_lease_job(job, token))
            created = int.from_bytes(body[1:9], "big")
            deliveries.append(
                Delivery(name, job, lease, token, body[_JOB_BYTES:-4], attempt, max_attempts, priority, created, {})
            )
            ref += 1
        self._put_lease(batch, now, expires, lease, count, b"".join(given))
        self.waiting -= count
        self.leased += count
        self._finish(
            batch, now, count, b"".join(events), Counter.WAITING, self.waiting, Counter.LEASED, self.leased
        )  # fmt: skip
        return deliveries

    def ack(self, claimed: Sequence[Any]) -> object:
        if len(claimed) == 1:
            return self._ack_one(claimed[0])
        now, count = int((monotonic() + _CALENDAR) * 1000), len(claimed)
        lease = claimed[0].lease
        rows = [_PREFIX + delivery.job for delivery in claimed]
        states = self._get_state(rows)
        at_lease = _PREFIX + lease
        raw_lease = self._get_lease(at_lease)
        batch = WriteBatch(raw_mode=True)
        delete = batch.delete
        jobs_cf, state_cf = self._jobs_cf, self._state_cf
        events = []
        for row, raw in zip(rows, states, strict=True):
            _, _, _, _, _, attempt, max_attempts, _, token, _, _, _, last, _ = _unstate(raw)
            delete(row, jobs_cf)
            delete(row, state_cf)
            events.append(
                _DONE_HEAD + row[4:] + lease + _event_middle(token, attempt, max_attempts, 0, last) + _NO_TEXT
            )
        self._delete_lease(batch, lease, at_lease, raw_lease)
        self._commit += 1
        self.leased -= count
        self.removed += count
        self._finish(
            batch, now, count, b"".join(events), Counter.LEASED, self.leased, Counter.REMOVED, self.removed
        )  # fmt: skip
        return Settled([delivery.job.hex() for delivery in claimed], [])

    # ── one at a time ────────────────────────────────────────────────────────────────────────────────────────────────

    def _enqueue_one(self, payload: bytes) -> object:
        now = int((monotonic() + _CALENDAR) * 1000)
        job = _id(now << 16 | 0x7000, self._low)
        self._low += 1
        self._commit += 1
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        key = _PREFIX + job
        body = _job(1, now, 0, 0, 0, len(payload)) + payload
        put(key, body + crc32(body).to_bytes(4, "big"), self._jobs_cf)
        state = _state(1, _WAITING, 0, 0, 0, 0, _MAX_ATTEMPTS, 0, 0, now, 0, 0, self._commit << 10, _NO_ID)
        put(key, state + crc32(state).to_bytes(4, "big"), self._state_cf)
        put(_TIER + _u64(now) + job, b"", self._ready_cf)
        event = _ENQUEUED_HEAD + job + _NO_ID + _event_middle(0, 0, _MAX_ATTEMPTS, now, 0) + _NO_TEXT
        self.waiting += 1
        self.enqueued += 1
        self._finish(batch, now, 1, event, Counter.WAITING, self.waiting, Counter.ENQUEUED, self.enqueued)
        return Enqueued(job.hex())

    def _claim_one(self) -> Sequence[Any]:
        now = int((monotonic() + _CALENDAR) * 1000)
        iterator = self._ready.iter(_until(_TIER + _u64(now + 1)))
        iterator.seek(self._head)
        if not iterator.valid():
            return []
        self._head = key = iterator.key()
        job = key[13:]
        row = _PREFIX + job
        raw = self._get_state(row)
        body = self._get_job(row)
        lease = _id(now << 16 | 0x7000, self._low)
        self._low += 1
        expires = now + _LEASE_MS
        self._commit += 1
        batch = WriteBatch(raw_mode=True)
        _, _, priority, _, _, attempt, max_attempts, _, token, visible, _, _, last, _ = _unstate(raw)
        attempt += 1
        token += 1
        state = _state(
            1, _LEASED, priority, 0, 0, attempt, max_attempts, 0, token, visible, 0, 0, self._commit << 10, lease
        )  # fmt: skip
        batch.put(row, state + crc32(state).to_bytes(4, "big"), self._state_cf)
        batch.delete(key, self._ready_cf)
        event = _CLAIMED_HEAD + job + lease + _event_middle(token, attempt, max_attempts, expires, last) + _NO_TEXT
        self._put_lease(batch, now, expires, lease, 1, _lease_job(job, token))
        self.waiting -= 1
        self.leased += 1
        self._finish(batch, now, 1, event, Counter.WAITING, self.waiting, Counter.LEASED, self.leased)
        created = int.from_bytes(body[1:9], "big")
        return (
            Delivery(self._name, job, lease, token, body[_JOB_BYTES:-4], attempt, max_attempts, priority, created, {}),
        )

    def _ack_one(self, delivery: Delivery) -> object:
        now = int((monotonic() + _CALENDAR) * 1000)
        lease = delivery.lease
        row = _PREFIX + delivery.job
        raw = self._get_state(row)
        at_lease = _PREFIX + lease
        raw_lease = self._get_lease(at_lease)
        batch = WriteBatch(raw_mode=True)
        _, _, _, _, _, attempt, max_attempts, _, token, _, _, _, last, _ = _unstate(raw)
        batch.delete(row, self._jobs_cf)
        batch.delete(row, self._state_cf)
        event = _DONE_HEAD + delivery.job + lease + _event_middle(token, attempt, max_attempts, 0, last) + _NO_TEXT
        self._delete_lease(batch, lease, at_lease, raw_lease)
        self._commit += 1
        self.leased -= 1
        self.removed += 1
        self._finish(batch, now, 1, event, Counter.LEASED, self.leased, Counter.REMOVED, self.removed)
        return None

    # ── rows of a transaction ────────────────────────────────────────────────────────────────────────────────────────

    def _put_lease(self, batch: Any, now: int, expires: int, lease: bytes, count: int, given: bytes) -> None:
        at_lease = _PREFIX + lease
        body = _lease(1, expires, now, count, count, 0, _NO_ID, b"")
        batch.put(at_lease, body + crc32(body).to_bytes(4, "big"), self._leases_cf)
        body = b"\x01" + given
        batch.put(at_lease, body + crc32(body).to_bytes(4, "big"), self._lease_jobs_cf)
        batch.put(keyspace.due(Due.LEASE, expires, _NUMBER, lease), b"", self._due_cf)

    def _delete_lease(self, batch: Any, lease: bytes, at_lease: bytes, raw: bytes) -> None:
        batch.delete(at_lease, self._leases_cf)
        batch.delete(at_lease, self._lease_jobs_cf)
        expires = int.from_bytes(raw[1:9], "big")
        batch.delete(keyspace.due(Due.LEASE, expires, _NUMBER, lease), self._due_cf)

    def _finish(
        self, batch: Any, now: int, count: int, events: bytes, first: Counter, one: int, second: Counter, two: int
    ) -> None:
        """Write the journal's row and two counters, then the batch, and at `disk` sync."""
        body = _journal(1, 0, count, self._event, now) + events
        self._event += count
        batch.put(_u64(self._commit), body + crc32(body).to_bytes(4, "big"), self._journal_cf)
        for name, value in ((first, one), (second, two)):
            raw = _u64(value)
            batch.put(_COUNTER[name], raw + crc32(raw).to_bytes(4, "big"), self._counters_cf)
        self._db.write(batch)
        if self._disk:
            self._db.flush_wal(True)

    def close(self) -> None:
        """Do nothing: the layout outlives its client, and continues with its commits and counters."""

    def forget(self) -> None:
        """Drop the driver's tables, so that the database can close."""
        del self._get_job, self._get_state, self._get_lease, self._get_lease_jobs, self._ready
        del self._jobs_cf, self._state_cf, self._ready_cf, self._leases_cf, self._lease_jobs_cf, self._due_cf
        del self._counters_cf, self._journal_cf, self._db


def _until(end: bytes) -> ReadOptions:
    options = ReadOptions()
    options.set_iterate_upper_bound(end)
    return options
