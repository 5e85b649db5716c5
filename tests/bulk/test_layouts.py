"""numpy's view of the records is `storage.records`' own."""

from __future__ import annotations

import numpy as np
import pytest

from tenure.bulk import layouts
from tenure.storage import keyspace, records

PAIRS = [
    (layouts.STATE, records.states._STATE, records.StateRecord._fields, 4),
    (layouts.LEASE, records.leases._LEASE, records.LeaseRecord._fields, 4),
    (layouts.EVENT, records.journal._EVENT, records.EventRecord._fields, 0),
    (
        layouts.JOB,
        records.jobs._JOB,
        ("version", "created_at_ms", "parts", "key_bytes", "headers_bytes", "payload_bytes"),
        0,
    ),
    (layouts.JOURNAL, records.journal._JOURNAL, ("version", "reserved", "events", "first_number", "time_ms"), 0),
    (layouts.OF_QUEUE, keyspace._QUEUE_ID, ("queue", "id"), 0),
    (layouts.READY, keyspace._READY, ("queue", "tier", "time", "id"), 0),
    (layouts.DUE, keyspace._DUE, ("kind", "time", "queue", "id"), 0),
    (layouts.ENDED, keyspace._ENDED, ("queue", "time", "id"), 0),
    (layouts.GROUP_READY, keyspace._GROUP_READY, ("queue", "group", "tier", "time", "id"), 0),
    (layouts.COUNTER, keyspace._COUNTER, ("queue", "counter"), 0),
]


@pytest.mark.parametrize(("layout", "packed", "names", "crc"), PAIRS)
def test_a_record_reads_the_same_by_both(layout, packed, names, crc):
    raw = bytes(range(1, packed.size + 1))
    assert layout.itemsize == packed.size + crc
    seen = np.frombuffer(raw + bytes(crc), layout)[0]
    for name, value in zip(names, packed.unpack(raw), strict=True):
        found = seen[name].tobytes() if isinstance(value, bytes) else int(seen[name])
        assert found == value, name
