"""A store in which every space has rows, with helpers to damage it and to compare its rows after a repair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tenure
from tenure import Backoff, NewJob, Policy, Quota
from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.model.ids import job_id_bytes
from tenure.model.lease import Proof, Settle
from tenure.model.request import JobRequest
from tenure.storage import keyspace, records
from tenure.storage.engine import Transaction
from tenure.testing.harness import backend_of, engine_of

BIG = b"0123456789abcdef" * 10_000  # three parts
Rows = dict[tuple[int, bytes], bytes]


class Garden:
    """A store on a manual clock, whose jobs have names."""

    def __init__(self, url: str, **options: Any) -> None:
        self.clock = ManualClock()
        self.store: Store = tenure.open(url, clock=self.clock, sweep=False, **options)
        self.engine = engine_of(self.store)
        self.queue: Queue = self.store.queue("work")
        self.other = self.store.queue("work", tenant="acme")
        self.queue.configure(Policy(max_attempts=3, retention=3600, backoff=Backoff.fixed(0)))
        self.other.configure(Policy(rate="100/h", max_leased=50))
        self.ids: dict[str, str] = {}
        self.store.set_quota("acme", Quota(max_waiting=1000, max_bytes=10**6, rate="1000/s"))
        self._grow()
        self.number = next(q.number for q in self.store.queues() if q.tenant == "default")
        assert self.store.check().clean

    def _grow(self) -> None:
        queue = self.queue
        self._add("done", NewJob(b"done", priority=9))
        self._add("dead", NewJob(b"dead", priority=9))
        done, dead = queue.claim(limit=2, lease=600)
        queue.ack(done, b"the result")
        queue.fail(dead, "broken")
        for name in ("held-1", "held-2", "held-3"):
            self._add(name, NewJob(name.encode(), priority=8))
        self.claim = queue.claim(limit=3, lease=600, worker="w1", id="claim-1")
        queue.progress(self.claim[0], 0.5, "half")
        for name in ("mine-1", "mine-2", "mine-3"):
            self._add(name, NewJob(name.encode(), priority=7))
        self.second = queue.claim(limit=3, lease=900, worker="w2")
        queue.cancel(self.ids["mine-3"])
        self._add("retried", NewJob(b"retried", priority=6))
        queue.nack(queue.claim(lease=600)[0], "once", delay=0)
        self._add("ready", NewJob(b"ready", priority=5))
        self._add("big", NewJob(BIG, priority=4))
        self._add("keyed", NewJob(b"keyed", key="order-17", headers={"trace": "1"}))
        self._add("mortal", NewJob(b"mortal", ttl=3600))
        self._add("later", NewJob(b"later", delay=3600))
        self.other.enqueue_many([b"1", b"2", b"3"])
        self.other.claim(limit=1, lease=600)
        backend = backend_of(self.store)
        backend.once(b"small").enqueue(self.other.name, [JobRequest(b"4")])
        unknown = Proof(bytes(16), bytes(16), 1)
        backend.once(b"large").settle(self.other.name, [Settle("ack", unknown)] * 800)  # in parts
        self.clock.advance(1)

    def _add(self, name: str, job: NewJob) -> None:
        self.ids[name] = self.queue.enqueue(job).id

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def job(self, name: str) -> bytes:
        return job_id_bytes(self.ids[name])

    def at(self, name: str) -> bytes:
        return keyspace.of_queue(self.number, self.job(name))

    def get(self, space: int, key: bytes) -> bytes:
        value = self.engine.read(lambda reader: reader.get(space, key))
        assert value is not None, f"nothing is at {keyspace.NAMES[space]} {key.hex()}"
        found: bytes = value
        return found

    def state(self, name: str) -> records.StateRecord:
        return records.decode_state(self.get(keyspace.STATE, self.at(name)), self.job(name))

    def ready_key(self, name: str) -> bytes:
        state = self.state(name)
        return keyspace.ready(self.number, state.priority, state.visible_at_ms, self.job(name))

    def lease(self, claim: Any) -> tuple[bytes, bytes, records.LeaseRecord]:
        """A claim's lease: its id, key and record."""
        key = keyspace.of_queue(self.number, claim.lease)
        return claim.lease, key, records.decode_lease(self.get(keyspace.LEASES, key), claim.lease)

    def write(self, fn: Callable[[Transaction], None]) -> None:
        self.engine.transact(fn)

    def put(self, space: int, key: bytes, value: bytes = b"") -> None:
        self.write(lambda tx: tx.put(space, key, value))

    def delete(self, space: int, key: bytes) -> None:
        self.get(space, key)
        self.write(lambda tx: tx.delete(space, key))

    def spoil(self, space: int, key: bytes) -> None:
        """Flip a bit in the middle of a value, below the engine's checks."""
        value = bytearray(self.get(space, key))
        value[len(value) // 2] ^= 0x04
        self.put(space, key, bytes(value))

    def rows(self) -> Rows:
        found: Rows = {}
        with self.engine.snapshot() as snapshot:
            for space in keyspace.EVERYWHERE:
                for key, value in snapshot.scan(space, b"", keyspace.LAST, 100_000):
                    found[space, key] = value
        return found

    def close(self) -> None:
        self.store.close()


def garden(engine: str, folder: Path) -> Garden:
    if engine == "memory":
        return Garden("memory:")
    if engine == "rocksdb":
        return Garden(f"rocksdb:{folder / 'data'}", durability="os")
    return Garden(f"lmdb:{folder / 'data'}")
