"""Quotas: what a tenant may have waiting and stored, and how fast it may add to it, decided inside the enqueue.

Setting the first quota of a tenant has to count what it has already. That may be millions of jobs, so it is done
on a snapshot, while others write; the transaction that sets the quota adds what the journal tells of since.
"""

from __future__ import annotations

from tenure.errors import Corrupt, QuotaExceeded, RateLimited
from tenure.model.lifecycle import State
from tenure.model.quota import Quota, QuotaInfo
from tenure.model.rate import Rate
from tenure.model.write import owner_of
from tenure.queueing import quota_usage
from tenure.queueing.core import Core
from tenure.queueing.journal import bounds, rows_from
from tenure.queueing.outcomes import NUMBER
from tenure.queueing.registry import NEXT_QUEUE, RegisteredQueue
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, get_each, iterate_keys
from tenure.storage.keyspace import Limit, Usage
from tenure.storage.records import QuotaRecord

#: So many journal rows are gone through under the writer's lock; more than that, and it is counted again first.
_CATCH_UP = 500
_TRIES = 5
_SPACES = (
    keyspace.QUEUES, keyspace.JOBS, keyspace.NOTES, keyspace.STATE, keyspace.READY, keyspace.BLOCKED, keyspace.JOURNAL,
)  # fmt: skip


def read(reader: Reader, tenant: str) -> QuotaRecord | None:
    raw = reader.get(keyspace.META, keyspace.quota_row(tenant))
    return None if raw is None else records.decode_struct(QuotaRecord, raw, f"the quota of tenant {tenant}")


def meters_in_use(reader: Reader) -> list[int]:
    """The numbers of those quotas that can be read."""
    found = []
    for _, raw in reader.scan(keyspace.META, *keyspace.quota_range(), 1_000_000):
        try:
            found.append(records.decode_struct(QuotaRecord, raw, "a quota").number)
        except Corrupt:
            continue
    return found


# ── deciding ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def admit(unit: UnitOfWork, queue: RegisteredQueue, jobs: int, weight: int, *, by_rate: bool = True) -> None:
    """May so many jobs more wait, and so many bytes more be stored? Raises QuotaExceeded, RateLimited; if not, they
    count as enqueued by the rate (`by_rate=False`: they are not enqueued, but come back)."""
    tenant, tx = queue.name.tenant, unit.tx
    record = read(tx, tenant)
    if record is None or not (jobs or weight):
        return
    quota = record.quota
    waiting = unit.counted(keyspace.counter(record.number, Usage.JOBS))
    used = unit.counted(keyspace.counter(record.number, Usage.STORED))
    if quota.max_waiting is not None and waiting + jobs > quota.max_waiting:
        raise QuotaExceeded(tenant, "waiting jobs", waiting, quota.max_waiting)
    if quota.max_bytes is not None and used + weight > quota.max_bytes:
        raise QuotaExceeded(tenant, "bytes stored", used, quota.max_bytes)
    rate = quota.rate_of("rate") if by_rate else None
    if rate is not None:
        _spend(unit, record.number, Limit.TENANT_RATE, rate, jobs, tenant)


def add_manifest(unit: UnitOfWork, write_id: str, parts: int) -> None:
    """Count a staged write's manifest as its tenant's. Raises QuotaExceeded."""
    tenant = owner_of(write_id)
    record = read(unit.tx, tenant) if tenant else None
    if record is not None:
        size = quota_usage.manifest_bytes(parts)
        _check_stored(unit.tx, tenant, record, size)
        quota_usage.moved(unit, record.number, 0, size)


def drop_manifest(unit: UnitOfWork, write_id: str, parts: int) -> None:
    tenant = owner_of(write_id)
    record = read(unit.tx, tenant) if tenant else None
    if record is not None:
        quota_usage.moved(unit, record.number, 0, -quota_usage.manifest_bytes(parts))


def admit_pieces(core: Core, write_id: str, size: int) -> None:
    """May the staged pieces of a write's tenant be so many bytes? Raises QuotaExceeded."""
    tenant = owner_of(write_id)

    def run(reader: Reader) -> None:
        record = read(reader, tenant)
        if record is not None:
            _check_stored(reader, tenant, record, size)

    if tenant:
        core.read(run)


def _check_stored(reader: Reader, tenant: str, record: QuotaRecord, more: int) -> None:
    limit = record.quota.max_bytes
    used = quota_usage.usage(reader, record.number)[1]
    if limit is not None and used + more > limit:
        raise QuotaExceeded(tenant, "bytes stored", used, limit)


def count_stored(core: Core) -> None:
    """At open: count what tenants have stored, for quotas of stores that counted the bytes of waiting jobs only."""

    def wanting(reader: Reader) -> list[tuple[str, QuotaRecord]]:
        found = []
        for key, raw in reader.scan(keyspace.META, *keyspace.quota_range(), 1_000_000):
            try:
                record = records.decode_struct(QuotaRecord, raw, "a quota")
            except Corrupt:
                continue  # `check` finds it
            if reader.get(keyspace.COUNTERS, keyspace.counter(record.number, Usage.STORED)) is None:
                found.append((keyspace.split_quota_row(key), record))
        return found

    def run(unit: UnitOfWork, tenant: str, record: QuotaRecord) -> None:
        stored = _Count(core, unit.tx, tenant).stored + manifests(unit.tx, tenant)
        unit.tx.put(keyspace.COUNTERS, keyspace.counter(record.number, Usage.STORED), records.encode_count(stored))
        unit.tx.delete(keyspace.COUNTERS, keyspace.counter(record.number, Usage.BYTES))

    for tenant, record in core.read(wanting):
        core.write(lambda unit, tenant=tenant, record=record: run(unit, tenant, record))  # type: ignore[misc]


def manifests(reader: Reader, tenant: str) -> int:
    """Bytes of the manifests of a tenant's staged writes."""
    total = 0
    for keys in iterate_keys(reader, keyspace.META, *keyspace.write_rows()):
        heads = [key for key in keys if keyspace.is_write_head(key)]
        for raw in reader.get_many(keyspace.META, heads):
            record = None if raw is None else records.decode_struct(records.WriteRecord, raw, "a staged write")
            if record is not None and owner_of(record.id) == tenant:
                total += quota_usage.manifest_bytes(record.manifest_parts)
    return total


def draw(core: Core, tenant: str, requests: int) -> int:
    """How many of so many requests a tenant may make now, at least one; they count as made. Raises RateLimited."""

    def run(unit: UnitOfWork) -> int:
        record = read(unit.tx, tenant)
        rate = None if record is None else record.quota.rate_of("requests")
        if record is None or rate is None:
            return requests
        free = rate.free(_full_at(unit.tx, record.number, Limit.TENANT_REQUESTS), unit.now)
        granted = min(requests, max(free, 1))
        _spend(unit, record.number, Limit.TENANT_REQUESTS, rate, granted, tenant)
        return granted

    return core.write(run, answer=NUMBER)


def _spend(unit: UnitOfWork, meter: int, kind: Limit, rate: Rate, count: int, tenant: str) -> None:
    full_at = records.decode_bucket(unit.row(keyspace.LIMITS, keyspace.limit(kind, meter)))
    # A batch larger than the bucket goes when the bucket is full, and is paid off afterwards.
    needed = min(count, rate.capacity)
    if rate.free(full_at, unit.now) < needed:
        raise RateLimited(tenant, (rate.free_at_ms(full_at, needed) - unit.now) / 1000)
    full = records.encode_bucket(rate.take(full_at, unit.now, count))
    unit.put_row(keyspace.LIMITS, keyspace.limit(kind, meter), full)


def _full_at(reader: Reader, meter: int, kind: Limit) -> int:
    return records.decode_bucket(reader.get(keyspace.LIMITS, keyspace.limit(kind, meter)))


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def quotas(core: Core, tenant: str | None) -> list[QuotaInfo]:
    def run(reader: Reader) -> list[QuotaInfo]:
        found = []
        for key, raw in reader.scan(keyspace.META, *keyspace.quota_range(), 1_000_000):
            name = keyspace.split_quota_row(key)
            if tenant is None or name == tenant:
                record = records.decode_struct(QuotaRecord, raw, f"the quota of tenant {name}")
                waiting, weight = quota_usage.usage(reader, record.number)
                found.append(QuotaInfo(tenant=name, quota=record.quota, waiting=waiting, bytes=weight))
        return found

    return core.read(run)


# ── setting ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def set_quota(core: Core, tenant: str, quota: Quota) -> None:
    """An empty quota is none: what was counted for it is forgotten."""
    for attempt in range(_TRIES):
        step = b"try %d" % attempt
        if quota.empty or core.read(lambda reader: read(reader, tenant)) is not None:
            done = core.write(lambda unit: _change(core, unit, tenant, quota), answer=NUMBER, step=step)
        else:
            with core.engine.snapshot(_SPACES) as moment:
                count = _Count(core, moment, tenant)

                def begin(unit: UnitOfWork, count: _Count = count, last: bool = attempt == _TRIES - 1) -> int:
                    return _begin(core, unit, tenant, quota, count, last)

                done = core.write(begin, answer=NUMBER, step=step)
        if done:
            return


def _change(core: Core, unit: UnitOfWork, tenant: str, quota: Quota) -> int:
    """Of a tenant that has one, or has none and gets none. 0: it has none by now, and needs counting first."""
    tx = unit.tx
    record = read(tx, tenant)
    if record is None:
        return int(quota.empty)
    for kind, name in ((Limit.TENANT_RATE, "rate"), (Limit.TENANT_REQUESTS, "requests")):
        if record.quota.rate_of(name) != quota.rate_of(name):
            tx.delete(keyspace.LIMITS, keyspace.limit(kind, record.number))
    if quota.empty:
        tx.delete(keyspace.META, keyspace.quota_row(tenant))
        for counter in Usage:
            tx.delete(keyspace.COUNTERS, keyspace.counter(record.number, counter))
        _meter_queues(core, unit, tenant, 0)
    else:
        tx.put(keyspace.META, keyspace.quota_row(tenant), records.encode_struct(QuotaRecord(record.number, quota)))
    return 1


def _begin(core: Core, unit: UnitOfWork, tenant: str, quota: Quota, count: _Count, last: bool) -> int:
    tx = unit.tx
    if read(tx, tenant) is not None or not (count.behind(tx) <= _CATCH_UP or last):
        return 0  # another was first, or too much has happened since it was counted
    jobs, stored = count.until_now(tx)
    stored += manifests(tx, tenant)
    raw = tx.get(keyspace.META, NEXT_QUEUE)
    number = 1 if raw is None else records.decode_struct(records.NumberRecord, raw, "the queue counter").value
    tx.put(keyspace.META, NEXT_QUEUE, records.encode_struct(records.NumberRecord(number + 1)))
    tx.put(keyspace.META, keyspace.quota_row(tenant), records.encode_struct(QuotaRecord(number, quota)))
    tx.put(keyspace.COUNTERS, keyspace.counter(number, Usage.JOBS), records.encode_count(jobs))
    tx.put(keyspace.COUNTERS, keyspace.counter(number, Usage.STORED), records.encode_count(stored))
    _meter_queues(core, unit, tenant, number)
    return 1


def _meter_queues(core: Core, unit: UnitOfWork, tenant: str, meter: int) -> None:
    for queue in core.registry.all(unit.tx, tenant):
        unit.save_queue(queue.record(meter=meter))


class _Count:
    """What a tenant has waiting and stored in jobs, as counted at a moment, and brought up to a later one by the
    journal.
    """

    def __init__(self, core: Core, moment: Reader, tenant: str) -> None:
        self._moment = moment
        self._queues = {queue.number: queue for queue in core.registry.all(moment, tenant)}
        self._tenant, self._core = tenant, core
        self._journal = bounds(moment)[1]
        self._jobs = self.stored = 0
        for queue in self._queues.values():
            span = keyspace.queue_range(queue.number)
            for space in (keyspace.READY, keyspace.BLOCKED):
                self._jobs += sum([len(keys) for keys in iterate_keys(moment, space, *span)])
            for keys in iterate_keys(moment, keyspace.JOBS, *span):
                self.stored += quota_usage.weigh(moment, queue.number, [key[-16:] for key in keys])

    def behind(self, tx: Reader) -> int:
        return bounds(tx)[1] - self._journal

    def until_now(self, tx: Reader) -> tuple[int, int]:
        ours = {queue.number for queue in self._core.registry.all(tx, self._tenant)}
        touched: dict[int, set[bytes]] = {}
        for _, row in rows_from(tx, self._journal + 1, bounds(tx)[1]):
            for event in row.events:
                if event.queue in ours and any(event.job):
                    touched.setdefault(event.queue, set()).add(event.job)
        jobs, stored = self._jobs, self.stored
        for queue, found in touched.items():
            for reader, sign in ((self._moment, -1), (tx, 1)):
                jobs += sign * sum([_waits(reader, queue, job) for job in found])
                stored += sign * quota_usage.weigh(reader, queue, list(found))
        return jobs, stored


def _waits(reader: Reader, queue: int, job: bytes) -> bool:
    raw = get_each(reader, keyspace.STATE, [keyspace.of_queue(queue, job)])[0]
    try:
        return isinstance(raw, bytes) and records.decode_state(raw, job).state in (State.WAITING, State.BLOCKED)
    except Corrupt:
        return False
