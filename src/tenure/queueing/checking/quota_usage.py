"""The usage counters of tenants with a quota equal a recount, and each of their queues has the tenant's meter."""

from __future__ import annotations

from tenure.errors import Corrupt
from tenure.model.lifecycle import State
from tenure.queueing import quotas
from tenure.queueing.checking.survey import Fault, Survey
from tenure.storage import keyspace, records
from tenure.storage.keyspace import Usage


def check(survey: Survey) -> None:
    if survey.unreadable & {keyspace.META, keyspace.QUEUES, keyspace.STATE}:
        return
    meters: dict[str, int] = {}
    lost: set[str] = set()
    for key, raw in survey.reader.scan(keyspace.META, *keyspace.quota_range(), 1_000_000):
        tenant = keyspace.split_quota_row(key)
        try:
            record = records.decode_struct(records.QuotaRecord, raw, f"the quota of tenant {tenant}")
        except Corrupt as exc:
            survey.add(Fault("damaged", exc.detail, "drop_quota", space=keyspace.META, key=key))
            lost.add(tenant)  # its counters are checked after the repair
            continue
        meters[tenant] = record.number
    for queue in survey.queues.values():
        wanted = meters.get(queue.name.tenant, 0)
        # A deleted queue gets its meter when it is created again.
        if queue.meter != wanted and not queue.deleted and queue.name.tenant not in lost:
            detail = f"queue {queue.name} is counted under {queue.meter} instead of {wanted}"
            survey.add(Fault("quota", detail, "set_meter", queue.number, number=wanted))
    for tenant, meter in meters.items():
        _check_usage(survey, tenant, meter)


def _check_usage(survey: Survey, tenant: str, meter: int) -> None:
    numbers = [queue.number for queue in survey.queues.values() if queue.name.tenant == tenant]
    if any(queue in numbers for queue, _ in survey.unknown | survey.damaged):
        return  # the size of a damaged job is unknown until it is repaired
    waiting = sum(survey.recount[number, int(state)] for number in numbers for state in (State.WAITING, State.BLOCKED))
    try:
        stored = sum(survey.weight[n] for n in numbers) + quotas.manifests(survey.reader, tenant)
    except Corrupt:
        return  # another check reports the unreadable staged write
    for counter, recount in ((Usage.JOBS, waiting), (Usage.STORED, stored)):
        key = keyspace.counter(meter, counter)
        what = f"{'waiting jobs' if counter is Usage.JOBS else 'bytes stored'} of tenant {tenant}"
        try:
            count = records.decode_count(survey.reader.get(keyspace.COUNTERS, key))
        except Corrupt as exc:
            detail = f"the counter of {what}: {exc.detail}"
            survey.add(Fault("counters", detail, "set_counter", space=keyspace.COUNTERS, key=key, number=recount))
            continue
        if count != recount:
            detail = f"the counter of {what} says {count}, and {recount} are there"
            delta = recount - count
            survey.add(Fault("counters", detail, "add_counter", space=keyspace.COUNTERS, key=key, number=delta))
